"""agentctl's own lines in the journal: pure encoding and parsing, used by both sides.

The journal is the agent's stdout, byte for byte. A record is a line that begins with 0x1e, a byte that cannot occur
in JSON text, followed by one JSON object. A line of the agent that begins with 0x1e gets that byte doubled.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, Final

__all__ = [
    "MARK",
    "Exited",
    "Overflow",
    "Record",
    "Started",
    "StdinLine",
    "StdinWritten",
    "Torn",
    "UnknownRecord",
    "encode",
    "escape",
    "parse",
    "unescape",
]

MARK: Final = b"\x1e"
_TOO_LARGE: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The agent was started. `gen` counts the starts in this instance; line numbers begin again at 1 with each."""

    gen: int
    pid: int
    start_time: int
    pgid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StdinLine:
    """agentctl is about to write line `n` to the agent's stdin. Without this record the line reached nobody."""

    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StdinWritten:
    """Line `n` is in the agent's pipe as a whole."""

    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Torn:
    """The line before this record had no newline when the agent, or agentctl, ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """Reading stopped: so many bytes were not acknowledged. It goes on once the reader acknowledges."""

    unacknowledged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """The agent ended, by `code` or by `signal`; the other one is None. The last record of a run."""

    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRecord:
    """A record that this version does not know, or that was cut off when agentctl died. `ev` is '' then."""

    ev: str


Record = Started | StdinLine | StdinWritten | Torn | Overflow | Exited | UnknownRecord

_KINDS: Final[Mapping[str, type[Record]]] = MappingProxyType(
    {
        "start": Started,
        "stdin": StdinLine,
        "written": StdinWritten,
        "torn": Torn,
        "overflow": Overflow,
        "exit": Exited,
    }
)
_NAMES: Final[Mapping[type[Record], str]] = MappingProxyType({kind: name for name, kind in _KINDS.items()})


def encode(record: Record) -> bytes:
    r"""Return the record as one line of the journal, with its newline."""
    text = json.dumps({"ev": _NAMES[type(record)], **asdict(record)}, separators=(",", ":"))
    return MARK + text.encode() + b"\n"


def parse(line: bytes) -> Record | None:
    """Return the record in `line` (with or without newline), or None when the line is the agent's own output."""
    if not line.startswith(b"\x1e{"):
        return None
    try:
        values = json.loads(line[1:])
        ev = str(values.pop("ev"))
    except (ValueError, KeyError, RecursionError):
        return UnknownRecord(ev="")
    kind = _KINDS.get(ev)
    if kind is None:
        return UnknownRecord(ev=ev)
    wanted = fields(kind)
    if any(one.name not in values or not _fits(values[one.name], one.type) for one in wanted):
        return UnknownRecord(ev=ev)
    return kind(**{one.name: values[one.name] for one in wanted})


def _fits(value: object, kind: Any) -> bool:
    """Tell whether a field has its type: a number that the store can hold, or null where that is allowed."""
    if type(value) is int:
        return abs(value) < _TOO_LARGE
    return value is None and isinstance(value, kind)


def unescape(line: bytes) -> bytes:
    """Return a line of the agent's output as the agent wrote it. Call it only where `parse` returned None."""
    return line[1:] if line.startswith(b"\x1e\x1e") else line


def escape(data: bytes, *, at_line_start: bool) -> bytes:
    """Double the 0x1e that begins a line of output. `at_line_start` says whether `data` begins a line."""
    if b"\n\x1e" in data:
        data = data.replace(b"\n\x1e", b"\n\x1e\x1e")
    return MARK + data if at_line_start and data.startswith(MARK) else data
