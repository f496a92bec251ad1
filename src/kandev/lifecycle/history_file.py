"""One session's history file: appending to it, reading its end, and putting in what is missing.

Every call blocks and raises StorageFull or Unavailable; what was in the file before stays whole (HIST-12).
"""

import contextlib
import os
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.domain.history import (
    Boundary,
    Entry,
    EntryKey,
    decode_entries,
    decode_line,
    encode_entry,
    entry_key,
    merge_entries,
    newest_entry,
)
from kandev.store.failures import file_failure

READ_LIMIT = 8 << 20
"""Bytes of a file's end that are read for a context; some hundred times what can be used of them (HIST-11)."""

_GLANCE = 64 << 10
_CHUNK = 1 << 20
_LINE_LIMIT = 4 << 20
_BOUNDARY_LINE = b'{"type":"boundary"'
"""So it begins in the file. Inside of an entry the quotes would be escaped."""

_OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW


class Newest(msgspec.Struct, frozen=True, kw_only=True):
    """The entries at the end of a file, and how many lines since the last boundary stand before them."""

    entries: list[Entry]
    unread: int


class HistoryFile:
    """Holds the descriptor, which is opened at the first append. Not for two threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._torn = False
        self._unsynced = False
        self._created = False

    def append(self, entry: Entry) -> None:
        """Write `entry` as one line, in one write. The file is 0600 (TOK-9)."""
        self._write(encode_entry(entry))

    def has_history(self) -> bool:
        """True if there is something to tell an agent: the newest good entry is no boundary."""
        for window in (_GLANCE, READ_LIMIT):
            data, start = self._end(window)
            newest = newest_entry(data)
            if newest is not None:
                return not isinstance(newest, Boundary)
            if not start:
                break
        return False

    def read(self, newest_bytes: int) -> Newest:
        """Read the entries within the last `newest_bytes` bytes; count the older lines without keeping them."""
        data, start = self._end(newest_bytes)
        entries = decode_entries(data)
        if not start or any(isinstance(entry, Boundary) for entry in entries):
            return Newest(entries=entries, unread=0)
        with self._failures():
            return Newest(entries=entries, unread=_count_lines(self.path, start))

    def complete(self, expected: Sequence[Entry]) -> int:
        """Put in those of `expected` (in order, with message ids) that the file lacks; return how many.

        At the end they are appended; in the middle the file is written anew beside the old one, which it replaces.
        """
        places = {key: at for at, entry in enumerate(expected) if (key := entry_key(entry)) is not None}
        present, fresh_start = self._recorded(places)
        absent = sorted(at for key, at in places.items() if key not in present)
        if not absent:
            return 0
        missing = [expected[at] for at in absent]
        behind = absent[0] > max((places[key] for key in present), default=-1)
        if behind and missing[0].time > fresh_start:
            self._write(b"".join(encode_entry(entry) for entry in missing))
        else:
            self._rewrite(expected, missing)
        return len(missing)

    def sync(self) -> None:
        """Bring what was appended to the disk."""
        if not self._unsynced or self._descriptor is None:
            return
        with self._failures():
            os.fdatasync(self._descriptor)
            if self._created:
                _sync_directory(self.path.parent)
        self._unsynced = self._created = False

    def close(self) -> None:
        """Close the descriptor; the next append opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def delete(self) -> None:
        """Close and remove the file."""
        self.close()
        with self._failures():
            self.path.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        with self._failures():
            descriptor = self._open()
            if self._torn:
                data = b"\n" + data  # what is torn becomes a line of its own, which readers skip
            written = 0
            try:
                while written < len(data):  # a second round only if there was no room for all of it
                    written += os.write(descriptor, data[written:])
            except OSError:
                self._take_back(descriptor, written)
                raise
        self._torn = False
        self._unsynced = True

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, _OPEN_FLAGS, 0o600)
            size = os.fstat(self._descriptor).st_size
            self._created = not size
            self._torn = bool(size) and os.pread(self._descriptor, 1, size - 1) != b"\n"
        return self._descriptor

    def _take_back(self, descriptor: int, written: int) -> None:
        if not written:
            return
        try:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
        except OSError:
            self._torn = True

    def _end(self, window: int) -> tuple[bytes, int]:
        """Return the whole lines within the last `window` bytes, and where they begin."""
        with self._failures():
            try:
                file = self.path.open("rb")
            except FileNotFoundError:
                return b"", 0
            with file:
                size = os.fstat(file.fileno()).st_size
                start = max(size - window, 0)
                data = os.pread(file.fileno(), window, start)
        if not start:
            return data, 0
        cut = data.find(b"\n") + 1 or len(data)
        return data[cut:], start + cut

    def _entries(self) -> Iterator[Entry]:
        """Yield every good entry, repeated ones too, one line in memory at a time."""
        with self._failures(), contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            while line := file.readline(_LINE_LIMIT):
                entry = decode_line(line)
                if entry is not None:
                    yield entry

    def _recorded(self, wanted: Container[EntryKey]) -> tuple[set[EntryKey], str]:
        """Return which of `wanted` the file holds, and the time of its last boundary or ''."""
        present: set[EntryKey] = set()
        fresh_start = ""
        for entry in self._entries():
            key = entry_key(entry)
            if isinstance(entry, Boundary):
                fresh_start = max(fresh_start, entry.time)
            elif key is not None and key in wanted:
                present.add(key)
        return present, fresh_start

    def _rewrite(self, expected: Sequence[Entry], missing: Sequence[Entry]) -> None:
        partial = self.path.with_name(self.path.name + ".part")
        with self._failures():
            try:
                descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    for entry in merge_entries(self._entries(), expected, missing):
                        file.write(encode_entry(entry))
                    file.flush()
                    os.fdatasync(file.fileno())
                failpoint("history.before_replace")
                partial.replace(self.path)
                _sync_directory(self.path.parent)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
        self.close()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise file_failure(exc, self.path) from exc


def _count_lines(path: Path, end: int) -> int:
    """Count the lines in the first `end` bytes that follow the last boundary there."""
    lines = 0
    rest = b""
    with path.open("rb") as file:
        while end > 0 and (chunk := file.read(min(_CHUNK, end))):
            end -= len(chunk)
            block = rest + chunk  # a boundary may lie across the cut
            boundary = block.rfind(_BOUNDARY_LINE)
            if boundary >= 0:
                lines = block.count(b"\n", boundary) - 1  # its own line is none of them
            else:
                lines += chunk.count(b"\n")
            rest = block[-len(_BOUNDARY_LINE) + 1 :]
    return max(lines, 0)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
