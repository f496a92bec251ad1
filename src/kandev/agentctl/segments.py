"""The journal's files: their names, and reading them when nobody writes them any more.

A journal is a directory of segments `{start offset:020d}.seg`, each beginning at a line boundary. Acknowledged
segments are deleted, so a journal may begin anywhere. `waiting` holds records that are due but may not yet be put in,
because the agent is in the middle of a line: JSON `{"offset"}`, a newline, and the records' bytes. They are put in
behind the first newline at or after that offset.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from kandev.agentctl.records import MARK, Torn, encode

__all__ = [
    "READ_BYTES",
    "SUFFIX",
    "WAITING",
    "Bounds",
    "journal_bounds",
    "journal_in",
    "mend",
    "missing_end",
    "read_journal",
    "segment_path",
    "segments",
]

READ_BYTES: Final = 64 * 1024
SUFFIX: Final = ".seg"
WAITING: Final = "waiting"
_NAME: Final = re.compile(r"[0-9]{20}\.seg")
_BEYOND: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Offsets of the first byte that is still there and of the byte after the last."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    start: int
    end: int
    path: str


def segment_path(directory: str, start: int) -> str:
    """Return the file of the segment that begins at `start`."""
    return os.path.join(directory, f"{start:020d}{SUFFIX}")


def segments(directory: str) -> list[int]:
    """Return the start offsets of the segments in `directory`, ascending; none when it does not exist.

    A file of another name is no segment, whoever put it there.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    starts = sorted(int(name.removesuffix(SUFFIX)) for name in names if _NAME.fullmatch(name))
    return [start for start in starts if start < _BEYOND]


def _connected(directory: str) -> list[_Segment]:
    """Segments up to the first gap, without a tail of zero bytes: power loss leaves both (CRASH-18).

    A segment ends where the next one begins, whatever its file has behind that.
    """
    found: list[_Segment] = []
    for start in segments(directory):
        if found and found[-1].end < start:
            break
        if found:
            found[-1] = replace(found[-1], end=start)
        path = segment_path(directory, start)
        found.append(_Segment(start=start, end=start + os.stat(path).st_size, path=path))
    while found:
        last = found.pop()
        size = _size_without_zeros(last.path)
        if size or not found:
            found.append(_Segment(start=last.start, end=last.start + size, path=last.path))
            break
    return found


def _size_without_zeros(path: str) -> int:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        while size:
            at = max(0, size - READ_BYTES)
            file.seek(at)
            kept = file.read(size - at).rstrip(b"\0")
            if kept:
                return at + len(kept)
            size = at
    return 0


def _last_line_begins(found: list[_Segment]) -> bytes:
    """Return the first two bytes behind the last newline. Segments begin at line boundaries, so the last one has it."""
    with open(found[-1].path, "rb") as file:
        begin = at = found[-1].end - found[-1].start
        while at:
            step = min(at, READ_BYTES)
            at -= step
            file.seek(at)
            newline = file.read(step).rfind(b"\n")
            begin = at + newline + 1  # without a newline: where this piece begins
            if newline >= 0:
                break
        file.seek(begin)
        return file.read(min(2, found[-1].end - found[-1].start - begin))


def mend(directory: str) -> list[int]:
    """Remove from the files what no reader sees of them, so that a writer can go on; return their start offsets."""
    found = _connected(directory)
    for segment in found:
        if os.stat(segment.path).st_size != segment.end - segment.start:
            os.truncate(segment.path, segment.end - segment.start)
    kept = [segment.start for segment in found]
    for start in segments(directory):
        if start not in kept:
            os.unlink(segment_path(directory, start))
    return kept


def _read_from(found: list[_Segment], offset: int) -> Iterator[bytes]:
    for segment in found:
        if segment.end <= offset:
            continue
        with open(segment.path, "rb") as file:
            at = max(offset, segment.start)
            file.seek(at - segment.start)
            while at < segment.end:
                data = file.read(min(READ_BYTES, segment.end - at))
                at += len(data)
                yield data


def _waiting_records(directory: str, found: list[_Segment]) -> bytes:
    """Return the records that were due when the writer died and are not in the journal."""
    try:
        with open(os.path.join(directory, WAITING), "rb") as file:
            head, _, records = file.read().partition(b"\n")
    except FileNotFoundError:
        return b""
    try:
        offset = int(head)
    except ValueError:
        return b""  # it died while it wrote this file, so it had not yet done what the record is about
    records = records[: records.rfind(b"\n") + 1]  # zero bytes that a power loss left end no line
    rest = b""
    for data in _read_from(found, offset):
        rest += data
        line, newline, behind = rest.partition(b"\n")
        if newline and len(behind) >= len(records):
            return b"" if behind.startswith(records) else records
        rest = rest if newline else line[-1:]
    return records


def missing_end(directory: str) -> bytes:
    """Return what is missing at the end of a journal whose writer died: a newline and torn, and waiting records.

    Whoever goes on writing this journal appends exactly this, and an offline reader yields it, so that offsets agree.
    """
    found = _connected(directory)
    if not found:
        return b""
    torn = _last_line_begins(found)
    end = b""
    if torn:
        # A record that was cut off is no output of the agent; what it announced has not been done.
        end = b"\n" if torn == MARK + b"{" else b"\n" + encode(Torn())
    return end + _waiting_records(directory, found)


def journal_in(instance_directory: str) -> str:
    """Return where in an instance's directory its journal is."""
    return os.path.join(instance_directory, "journal")


def journal_bounds(directory: str) -> Bounds:
    """Return the bounds of a journal that nobody writes; (0, 0) when there is none."""
    found = _connected(directory)
    if not found:
        return Bounds(start=0, end=0)
    return Bounds(start=found[0].start, end=found[-1].end + len(missing_end(directory)))


def read_journal(directory: str, from_offset: int) -> Iterator[bytes]:
    """Yield the bytes from `from_offset` on, in pieces of at most 64 KiB, of a journal that nobody writes.

    An offset at or beyond the end yields nothing, without an error; one before the first byte that is still there
    begins at that byte. A torn last line is completed as `missing_end` says, so that every line ends.
    """
    found = _connected(directory)
    if not found:
        return
    yield from _read_from(found, from_offset)
    end = missing_end(directory)[max(0, from_offset - found[-1].end) :]
    if end:
        yield end
