"""The journal's writer: the agent's stdout byte for byte, and agentctl's records at its line boundaries.

One offset addresses everything, in one order for every reader. The writer does nothing per line: it looks for a
newline only when a record waits, or when a segment is full.

Bytes that find no room on the disk are kept, in order, and written later; whoever reads the agent's stdout stops as
long as `trouble` says so, which bounds them to one read.
"""

import contextlib
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final

from kandev.agentctl.records import Record, Torn, encode, escape
from kandev.agentctl.segments import (
    WAITING,
    Bounds,
    journal_bounds,
    mend,
    missing_end,
    read_journal,
    segment_path,
)

__all__ = ["SEGMENT_BYTES", "Bounds", "Cursor", "Journal", "journal_bounds", "read_journal"]

SEGMENT_BYTES: Final = 16 << 20
_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class Journal:
    """Writes the journal in `directory`, going on behind what is there. Not thread safe: one loop owns it.

    `on_growth` is called after bytes were added.
    """

    def __init__(self, directory: str, *, on_growth: Callable[[], None], segment_bytes: int = SEGMENT_BYTES) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self.directory = directory
        self.trouble = ""
        """Why bytes cannot be written now, in the system's words; '' when they can."""
        self._on_growth = on_growth
        self._segment_bytes = segment_bytes
        self._unwritten: deque[bytes] = deque()
        self._waiting: list[bytes] = []
        bounds = journal_bounds(directory)
        tail = missing_end(directory)
        self.end = bounds.end - len(tail)
        self.start = self.acknowledged = bounds.start
        self._starts = mend(directory) or [0]
        self._at_line_start = True
        self._open_line = self.end
        self._fd = os.open(self._path(self._starts[-1]), _APPEND, 0o600)
        self._append(tail)
        self._forget_waiting()

    def write_output(self, data: bytes) -> None:
        """Append bytes of the agent's stdout, split anywhere."""
        data = escape(data, at_line_start=self._at_line_start)
        waited = False
        if self._waiting:
            line, newline, rest = data.partition(b"\n")
            if newline:
                data = b"".join((line, newline, *self._waiting, rest))
                self._waiting.clear()
                waited = True
        if self._at_line_start or b"\n" in data:
            self._open_line = self.end + sum(map(len, self._unwritten)) + data.rfind(b"\n") + 1
        self._at_line_start = data.endswith(b"\n")
        self._append(data)
        if waited:
            self._forget_waiting_once_written()

    def write_record(self, record: Record) -> None:
        """Append a record about what has happened; amid a line it waits for the line's end."""
        if self._at_line_start:
            self._append(encode(record))
            return
        self._waiting.append(encode(record))
        self._store_waiting(self._waiting)

    def announce(self, record: Record) -> bool:
        """Record what is about to be done; False, and nothing recorded, when there is no room for it.

        After True the record is read by whoever reads this journal after our death, even when it waits for the end
        of a line: no line reaches the agent without a trace (PROMPT-4).
        """
        if self._unwritten:
            return False
        if not self._at_line_start:
            stored = self._store_waiting([*self._waiting, encode(record)])
            if stored:
                self._waiting.append(encode(record))
            return stored
        end = self.end
        self._append(encode(record))
        if not self._unwritten:
            return True
        self._unwritten.clear()
        self.end = end
        os.ftruncate(self._fd, end - self._starts[-1])
        return False

    def finish_line(self) -> None:
        """End a line that will get no newline any more, say so, and let the waiting records in."""
        if not self._at_line_start:
            self._at_line_start = True
            self._append(b"".join((b"\n", encode(Torn()), *self._waiting)))
            self._waiting.clear()
            self._forget_waiting_once_written()

    def retry(self) -> None:
        """Try again to write what found no room."""
        self.trouble = ""
        pieces = list(self._unwritten)
        self._unwritten.clear()
        for piece in pieces:
            self._append(piece)
        if self._waiting:
            self._store_waiting(self._waiting)
        else:
            self._forget_waiting_once_written()

    @property
    def unacknowledged(self) -> int:
        """How many bytes no reader has acknowledged."""
        return self.end - self.acknowledged

    @property
    def one_line(self) -> bool:
        """True when all that is not acknowledged is the beginning of one line: no reader can acknowledge any of it."""
        return not self._at_line_start and self._open_line <= self.acknowledged

    def acknowledge(self, offset: int) -> None:
        """Note that everything before `offset` is stored elsewhere, and delete the segments that lie before it."""
        self.acknowledged = max(self.acknowledged, min(offset, self.end))
        while len(self._starts) > 1 and self._starts[1] <= self.acknowledged:
            os.unlink(self._path(self._starts.pop(0)))
        self.start = self._starts[0]

    def is_line_start(self, offset: int) -> bool:
        """True when a reader may begin at `offset`."""
        if not self.start <= offset <= self.end:
            return False
        if offset == self.start:
            return True
        cursor = Cursor(self, offset - 1)
        try:
            return cursor.read(1) == b"\n"
        finally:
            cursor.close()

    def open_segment(self, offset: int) -> tuple[int, int]:
        """Return (descriptor, start offset) of the segment that holds, or will hold, `offset`."""
        start = self._starts[bisect_right(self._starts, offset) - 1]
        return os.open(self._path(start), os.O_RDONLY | os.O_CLOEXEC), start

    def close(self) -> None:
        """Close the file. What found no room is lost."""
        os.close(self._fd)

    def _path(self, start: int) -> str:
        return segment_path(self.directory, start)

    def _append(self, data: bytes) -> None:
        if not data:
            return
        if self._unwritten:
            self._unwritten.append(data)
            return
        before = self.end
        try:
            self._write(data)
        except OSError as error:
            self.trouble = error.strerror or str(error)
            self._unwritten.append(data[self.end - before :])
        if self.end != before:
            self._on_growth()

    def _write(self, data: bytes) -> None:
        """Write all of `data`, in a new segment from the first line boundary on where this one is full."""
        view = memoryview(data)
        if self.end - self._starts[-1] + len(data) > self._segment_bytes:
            boundary = self._boundary_in(data)
            if boundary >= 0:
                self._write_whole(view[:boundary])
                self._begin_segment()
                view = view[boundary:]
        self._write_whole(view)

    def _boundary_in(self, data: bytes) -> int:
        """Return how many bytes of `data` go to a full segment before the next one may begin; -1 for all."""
        if self.end == self._starts[-1]:
            return -1  # an empty segment takes data of any length
        if self.is_line_start(self.end):
            return 0
        return data.find(b"\n") + 1 or -1

    def _write_whole(self, view: memoryview) -> None:
        while view:
            count = os.write(self._fd, view)
            self.end += count
            view = view[count:]

    def _begin_segment(self) -> None:
        fd = os.open(self._path(self.end), _APPEND, 0o600)
        os.close(self._fd)
        self._fd = fd
        self._starts.append(self.end)

    def _store_waiting(self, lines: list[bytes]) -> bool:
        """Write the file of waiting records; False when it cannot be written."""
        path = os.path.join(self.directory, WAITING)
        place = self.end + sum(map(len, self._unwritten))
        content = b"".join((b"%d\n" % place, *lines))
        try:
            fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                complete = os.write(fd, content) == len(content)
            finally:
                os.close(fd)
            if complete:
                os.rename(path + ".new", path)
        except OSError:
            return False
        return complete

    def _forget_waiting_once_written(self) -> None:
        if not self._unwritten:
            self._forget_waiting()

    def _forget_waiting(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.directory, WAITING))


class Cursor:
    """A reader's place in a journal that is being written."""

    def __init__(self, journal: Journal, offset: int) -> None:
        self.offset = offset
        self._journal = journal
        self._fd, self._start = journal.open_segment(offset)

    def read(self, limit: int) -> bytes:
        """Return up to `limit` bytes and move behind them; b'' when there are no more yet."""
        limit = min(limit, self._journal.end - self.offset)
        if limit <= 0:
            return b""
        data = os.pread(self._fd, limit, self.offset - self._start)
        if not data:  # this segment is read whole
            os.close(self._fd)
            self._fd, self._start = self._journal.open_segment(self.offset)
            data = os.pread(self._fd, limit, self.offset - self._start)
        self.offset += len(data)
        return data

    def close(self) -> None:
        """Close the segment's file."""
        os.close(self._fd)
