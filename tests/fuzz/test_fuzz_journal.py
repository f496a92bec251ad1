"""A journal after an accident: whatever lies in its directory is read, and its writer goes on (CRASH-18)."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzed import HOSTILE, QUIET, TEXTS, damaged, ends, fuzz, near, peak_bytes, to_json, to_raw_json
from kandev.agentctl import records
from kandev.agentctl.journal import Journal
from kandev.agentctl.segments import READ_BYTES, journal_bounds, missing_end, read_journal
from kandev.lifecycle.line_splitter import LineSplitter
from kandev.store.sqlite import SqliteDatabase
from stored import StoredSession, chunk, stored

pytestmark = QUIET

SEGMENT = 200
RECORDS = (
    records.Started(gen=1, pid=7, start_time=9, pgid=7),
    records.StdinLine(n=1),
    records.StdinWritten(n=1),
    records.Torn(),
    records.Overflow(unacknowledged=5),
    records.Exited(code=0, signal=None),
)
WORDS = st.sampled_from([b"a line\n", b"half", b"\n", b"\x1e", chunk("Hello") + b"\n", b"\0" * 9, b"x" * 300 + b"\n"])
STEPS = st.lists(st.one_of(WORDS, st.sampled_from(RECORDS)), max_size=12)
NAMES = st.sampled_from(
    [
        *(
            ".seg",
            "x.seg",
            "7.seg",
            "-5.seg",
            "+0000000000000000007.seg",
            "1_0.seg",
            "\uff11\uff12.seg",
            "9" * 20 + ".seg",
        ),
        *("9" * 5000, "00000000000000000003.seg", "00000000000000000000.seg.bak", "waiting", "waiting.new", "notes"),
    ]
)
CONTENTS = st.one_of(
    st.sampled_from([b"", b"\n", b"5\n", b"-9\nx", b"1" * 5000 + b"\n", b'0\n\x1e{"ev":"torn"}\n', b"\0" * 70_000]),
    st.binary(max_size=30),
)


def write(directory: Path, steps: list[bytes | records.Record]) -> None:
    """A journal as agentctl writes it, in small segments, ended as a kill ends it."""
    journal = Journal(str(directory), on_growth=lambda: None, segment_bytes=SEGMENT)
    for step in steps:
        if isinstance(step, bytes):
            journal.write_output(step)
        else:
            journal.write_record(step)
    journal.close()


@st.composite
def accidents(draw: st.DrawFn) -> list[tuple[str, int, bytes, str]]:
    """(what, which file, bytes, name): files lost, cut, filled, doubled under another name, and strange ones."""
    kind = st.sampled_from(["lose", "cut", "zeros", "append", "damage", "rename", "add"])
    return [(draw(kind), draw(st.integers(0, 20)), draw(CONTENTS), draw(NAMES)) for _ in range(draw(st.integers(0, 3)))]


def strike(directory: Path, accident: tuple[str, int, bytes, str], data: st.DataObject) -> None:
    what, number, content, name = accident
    files = sorted(path for path in directory.iterdir() if path.is_file())
    if what == "add" and len(name) < 200:
        (directory / name).write_bytes(content)
    if not files:
        return
    path = files[number % len(files)]
    match what:
        case "lose":
            path.unlink()
        case "cut":
            os.truncate(path, data.draw(st.integers(0, path.stat().st_size)))
        case "zeros":
            os.truncate(path, path.stat().st_size + 90)
        case "append":
            path.write_bytes(path.read_bytes() + content)
        case "damage":
            path.write_bytes(data.draw(damaged(path.read_bytes())))
        case "rename" if len(name) < 200:
            path.rename(directory / name)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journals") / "journal"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    with stored(tmp_path_factory.mktemp("fuzz")) as opened:
        yield opened


@fuzz(400)
@given(steps=STEPS, struck=accidents(), offset=st.integers(-5, 2000), data=st.data())
def test_crash_18_any_directory_is_read_and_written_on(
    place: Path, steps: list[bytes | records.Record], struck: list[tuple[str, int, bytes, str]], offset: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    """Never an error: bounds and bytes agree, every line ends, and the writer goes on where the reader ended."""
    shutil.rmtree(place, ignore_errors=True)
    write(place, steps)
    for accident in struck:
        strike(place, accident, data)
    with ends():
        bounds = journal_bounds(str(place))
        missing = missing_end(str(place))
        pieces = list(read_journal(str(place), offset))
    whole = b"".join(pieces)
    assert all(len(piece) <= max(READ_BYTES, len(missing)) for piece in pieces)
    assert len(whole) == max(0, bounds.end - max(offset, bounds.start))
    assert not whole or whole.endswith(b"\n")
    with ends():
        journal = Journal(str(place), on_growth=lambda: None, segment_bytes=SEGMENT)
        assert (journal.start, journal.end) == (bounds.start, bounds.end)
        journal.write_output(b"and on\n")
        journal.close()
        assert b"".join(read_journal(str(place), offset)).endswith(b"and on\n"[max(0, offset - bounds.end) :])


@fuzz(120)
@given(steps=STEPS, struck=accidents(), data=st.data())
async def test_crash_18_and_state_1_a_damaged_journal_settles_its_session(
    place: Path,
    database: SqliteDatabase,
    steps: list[bytes | records.Record],
    struck: list[tuple[str, int, bytes, str]],
    data: st.DataObject,
) -> None:
    """What is read from it is applied and stored, whatever it is, and the turn ends."""
    shutil.rmtree(place, ignore_errors=True)
    write(place, steps)
    for accident in struck:
        strike(place, accident, data)
    session = await StoredSession.create(database)
    reader = session.reader(live=False)
    await session.prompt(reader)
    splitter = LineSplitter(1 << 20)
    with ends():
        for piece in read_journal(str(place), 0):
            splitter.feed(piece, reader)
        reader.agent_ended(stderr="")
        await session.commit(reader)
    assert session.store.open_turn(session.ref.session_id) is None
    assert session.state == "WAITING_FOR_INPUT"


RECORD_VALUES = near(st.sampled_from([{"ev": "exit", "code": 3, "signal": None}, {"ev": "stdin", "n": 1}]))


@fuzz(400)
@given(
    raw=st.one_of(
        RECORD_VALUES.map(to_json),
        RECORD_VALUES.map(to_raw_json),
        RECORD_VALUES.flatmap(lambda value: damaged(to_json(value))),
        st.builds(lambda name, value: to_json({"ev": name, "n": value}), TEXTS, HOSTILE),
        st.binary(max_size=40).map(lambda rest: b"{" + rest),
    )
)
def test_a_record_is_a_record_whatever_stands_in_it(raw: bytes) -> None:
    """A damaged one is unknown; one of a known kind has numbers that the store can hold where its readers want them."""
    with ends():
        record = records.parse(b"\x1e" + raw)
    match record:
        case records.StdinLine(n=n) | records.StdinWritten(n=n):
            assert type(n) is int
            assert abs(n) < 2**63
        case records.Exited(code=code, signal=signal):
            assert all(value is None or (type(value) is int and abs(value) < 2**63) for value in (code, signal))


def test_wire_2_a_last_line_without_end_is_not_read_into_memory(tmp_path: Path) -> None:
    """Its length alone decides: 24 MB without a newline are passed in pieces, in time and memory of one piece."""
    (tmp_path / f"{0:020d}.seg").write_bytes(b"x" * (24 << 20))
    with ends():
        assert missing_end(str(tmp_path)).startswith(b"\n\x1e")
        assert peak_bytes(lambda: journal_bounds(str(tmp_path))) < 1 << 20
        assert peak_bytes(lambda: [len(piece) for piece in read_journal(str(tmp_path), 0)]) < 1 << 20
