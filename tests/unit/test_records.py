"""agentctl's own lines in the journal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kandev.agentctl.records import (
    Exited,
    Overflow,
    Record,
    Started,
    StdinLine,
    StdinWritten,
    Torn,
    UnknownRecord,
    encode,
    escape,
    parse,
    unescape,
)


@pytest.mark.parametrize(
    "record",
    [
        Started(gen=1, pid=10, start_time=99, pgid=10),
        StdinLine(n=7),
        StdinWritten(n=7),
        Torn(),
        Overflow(unacknowledged=1 << 28),
        Exited(code=3, signal=None),
        Exited(code=None, signal=9),
    ],
)
def test_a_record_comes_back_from_its_line(record: Record) -> None:
    """Every record is one line that begins with 0x1e, and is read back as it was."""
    line = encode(record)
    assert line.startswith(b"\x1e{")
    assert line.index(b"\n") == len(line) - 1
    assert parse(line) == record
    assert parse(line[:-1]) == record


def test_the_wire_form_is_fixed() -> None:
    """The form that other programs read does not change by accident."""
    assert encode(StdinLine(n=7)) == b'\x1e{"ev":"stdin","n":7}\n'
    assert encode(Exited(code=None, signal=9)) == b'\x1e{"ev":"exit","code":null,"signal":9}\n'


@pytest.mark.parametrize(
    "line", [b"", b"{}", b'{"ev":"torn"}', b"\x1e", b'\x1e\x1e{"ev":"torn"}', b'x\x1e{"ev":"torn"}']
)
def test_what_the_agent_wrote_is_no_record(line: bytes) -> None:
    """Only a line that begins with one 0x1e and a brace is ours; the agent's own is doubled."""
    assert parse(line) is None


@pytest.mark.parametrize(
    ("line", "ev"),
    [
        (b'\x1e{"ev":"comet","tail":1}', "comet"),
        (b'\x1e{"ev":"st', ""),
        (b"\x1e{}", ""),
        (b'\x1e{"ev":"stdin"}', "stdin"),
        (b"\x1e{\xff}", ""),
    ],
)
def test_a_record_of_another_version_or_cut_off_is_unknown(line: bytes, ev: str) -> None:
    """What cannot be read is still no output of the agent."""
    assert parse(line) == UnknownRecord(ev=ev)


def test_a_field_of_a_later_version_is_passed_over() -> None:
    """A record with more fields than this version knows is read."""
    assert parse(b'\x1e{"ev":"stdin","n":3,"at":12.5}') == StdinLine(n=3)


@given(st.lists(st.lists(st.sampled_from([b"\n", b"\x1e", b"{", b"x"])).map(b"".join)))
def test_escaping_is_undone_line_by_line(pieces: list[bytes]) -> None:
    """Output split anywhere, escaped piece by piece, is the agent's own once its lines are unescaped."""
    at_start, stored = True, b""
    for piece in filter(None, pieces):
        stored += escape(piece, at_line_start=at_start)
        at_start = piece.endswith(b"\n")
    lines = stored.split(b"\n")
    assert all(parse(line) is None for line in lines)
    assert b"\n".join(map(unescape, lines)) == b"".join(pieces)
