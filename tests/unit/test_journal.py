"""The journal: stdout byte for byte, records at line boundaries, one offset for everything."""

import json
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kandev.agentctl.journal import Cursor, Journal, journal_bounds, read_journal
from kandev.agentctl.records import (
    Exited,
    Record,
    StdinLine,
    StdinWritten,
    Torn,
    UnknownRecord,
    encode,
    parse,
    unescape,
)


def opened(directory: Path | str, segment_bytes: int = 1 << 20) -> Journal:
    return Journal(str(directory), on_growth=lambda: None, segment_bytes=segment_bytes)


def everything(journal: Journal, offset: int) -> bytes:
    cursor = Cursor(journal, offset)
    pieces = iter(lambda: cursor.read(7), b"")
    data = b"".join(pieces)
    cursor.close()
    return data


def taken_apart(data: bytes) -> tuple[bytes, list[Record]]:
    """Return the agent's stdout and the records in a journal's bytes."""
    output, records = b"", []
    for line in [line + b"\n" for line in data.split(b"\n")][:-1]:
        record = parse(line)
        if isinstance(record, Torn):
            output = output[:-1]  # that newline was agentctl's
        elif record is None:
            output += unescape(line)
        if record is not None:
            records.append(record)
    return output, records


@contextmanager
def no_room_beyond(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes: the nearest thing to a full disk without one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


OUTPUT = st.lists(st.sampled_from([b"\n", b"\x1e", b"{", b"}", b"a", b"\r", b'\x1e{"ev":"torn"}', b"\xff"])).map(
    b"".join
)
STEPS = st.lists(
    st.one_of(
        OUTPUT.filter(bool),
        st.sampled_from(["line", "written", "death", "full", "room", "acknowledge"]),
    ),
    max_size=30,
)


class Play:
    """Plays a history against a journal, and keeps what must be found in it."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.journal = opened(directory, segment_bytes=48)
        self.output = b""
        self.records: list[Record] = []
        self.read = b""
        self.full = False

    def step(self, step: bytes | str) -> None:
        limit = 8 if self.full else 1 << 30
        with no_room_beyond(limit):
            self._step(step)

    def _step(self, step: bytes | str) -> None:
        if isinstance(step, bytes):
            # Whoever feeds the journal stands still while it is in trouble.
            if not self.journal.trouble:
                self.journal.write_output(step)
                self.output += step
        elif step == "line":
            record = StdinLine(n=len(self.records))
            if self.journal.announce(record):
                self.records.append(record)
        elif step == "written":
            record_w = StdinWritten(n=len(self.records))
            self.journal.write_record(record_w)
            self.records.append(record_w)
        elif step in {"full", "room"}:
            self.full = step == "full"
        elif step == "acknowledge":
            self.read_on()
            self.journal.acknowledge(len(self.read))
        elif step == "death" and not self.full:
            self.journal.retry()
            self.die()

    def read_on(self) -> None:
        self.read += everything(self.journal, len(self.read))

    def die(self) -> None:
        """The writer is gone; who reads offline, and who goes on, find the same."""
        self.journal.close()
        offline = b"".join(read_journal(self.directory, len(self.read)))
        assert journal_bounds(self.directory).end == len(self.read) + len(offline)
        self.read += offline
        self.journal = opened(self.directory, segment_bytes=48)
        assert self.journal.end == len(self.read)

    def end(self) -> None:
        self.journal.retry()
        self.journal.finish_line()
        self.journal.write_record(Exited(code=0, signal=None))
        self.records.append(Exited(code=0, signal=None))
        self.read_on()


@given(STEPS)
@settings(max_examples=400, deadline=None)
def test_stdout_is_kept_byte_for_byte_whatever_happens(steps: list[bytes | str]) -> None:
    """Any bytes, split anywhere, records amid a line, full disks, acknowledgements and deaths of the writer.

    The output is recovered exactly, records keep their order and are there once, the exit is last, and a reader that
    begins at any line sees exactly the rest.
    """
    directory = tempfile.mkdtemp()
    try:
        play = Play(directory)
        for step in steps:
            play.step(step)
        play.end()
        output, records = taken_apart(play.read)
        assert output == play.output
        assert [record for record in records if not isinstance(record, Torn)] == play.records
        for start in range(play.journal.start, play.journal.end + 1):
            boundary = start in {play.journal.start, 0} or play.read[start - 1 : start] == b"\n"
            assert play.journal.is_line_start(start) == boundary
            if boundary:
                assert everything(play.journal, start) == play.read[start:]
                assert b"".join(read_journal(directory, start)) == play.read[start:]
        play.journal.close()
    finally:
        shutil.rmtree(directory)


def test_a_record_amid_a_line_follows_that_line(tmp_path: Path) -> None:
    """A record waits for the newline, and comes before what the agent writes next."""
    journal = opened(tmp_path)
    journal.write_output(b'{"half":')
    assert journal.announce(StdinLine(n=1))
    assert everything(journal, 0) == b'{"half":'
    journal.write_output(b"1}\nanswer\n")
    assert everything(journal, 0) == b'{"half":1}\n' + encode(StdinLine(n=1)) + b"answer\n"
    journal.close()


def test_prompt_4_a_line_announced_amid_output_is_known_after_death(tmp_path: Path) -> None:
    """What was announced to the agent is in the journal, even when its writer died before the line's end."""
    journal = opened(tmp_path)
    journal.write_output(b"prompt> ")
    assert journal.announce(StdinLine(n=1))
    journal.close()  # nothing else is done at a death
    assert b"".join(read_journal(str(tmp_path), 0)) == b"prompt> \n" + encode(Torn()) + encode(StdinLine(n=1))


def test_a_record_cut_off_by_death_is_no_output(tmp_path: Path) -> None:
    """A record of which only the head was written is ended, and read as unknown."""
    journal = opened(tmp_path)
    journal.write_output(b"a\n")
    journal.close()
    with (tmp_path / f"{0:020d}.seg").open("ab") as file:
        file.write(encode(StdinLine(n=1))[:9])
    output, records = taken_apart(b"".join(read_journal(str(tmp_path), 0)))
    assert output == b"a\n"
    assert records == [UnknownRecord(ev="")]


@pytest.mark.parametrize("zeros", [1, 100, 70_000])
def test_crash_18_zero_bytes_at_the_end_are_nothing(tmp_path: Path, zeros: int) -> None:
    """Power loss leaves zero bytes; readers end before them and the next writer goes on there."""
    journal = opened(tmp_path)
    journal.write_output(b"one\ntwo\n")
    journal.close()
    with (tmp_path / f"{0:020d}.seg").open("ab") as file:
        file.write(b"\0" * zeros)
    assert b"".join(read_journal(str(tmp_path), 0)) == b"one\ntwo\n"
    journal = opened(tmp_path)
    journal.write_output(b"three\n")
    assert everything(journal, 0) == b"one\ntwo\nthree\n"
    journal.close()


def test_crash_18_an_offset_beyond_the_end_has_nothing_more(tmp_path: Path) -> None:
    """A position that outlived the journal's last bytes is normal after power loss."""
    assert b"".join(read_journal(str(tmp_path / "none"), 5)) == b""
    journal = opened(tmp_path)
    journal.write_output(b"one\n")
    journal.close()
    assert b"".join(read_journal(str(tmp_path), 4)) == b""
    assert b"".join(read_journal(str(tmp_path), 4000)) == b""


def test_crash_18_segments_behind_a_gap_are_not_read(tmp_path: Path) -> None:
    """What follows a lost segment is not joined to what came before it."""
    journal = opened(tmp_path, segment_bytes=8)
    for n in range(4):
        journal.write_output(b"line %d.\n" % n)
    journal.close()
    names = sorted(name for name in os.listdir(tmp_path) if name.endswith(".seg"))
    assert len(names) == 4
    (tmp_path / names[2]).unlink()
    assert b"".join(read_journal(str(tmp_path), 0)) == b"line 0.\nline 1.\n"
    journal = opened(tmp_path, segment_bytes=8)
    journal.write_output(b"line 2?\n")
    assert everything(journal, 0) == b"line 0.\nline 1.\nline 2?\n"
    journal.close()


def test_acknowledged_segments_are_deleted(tmp_path: Path) -> None:
    """Segments that lie wholly before the acknowledged offset go; later offsets stay what they were."""
    journal = opened(tmp_path, segment_bytes=8)
    for n in range(4):
        journal.write_output(b"line %d.\n" % n)
    journal.acknowledge(17)
    assert (journal.start, journal.end, journal.acknowledged) == (16, 32, 17)
    assert everything(journal, 16) == b"line 2.\nline 3.\n"
    journal.acknowledge(3)
    assert journal.acknowledged == 17
    journal.close()
    assert journal_bounds(str(tmp_path)).start == 16


def test_segments_begin_at_lines_however_long_a_line_is(tmp_path: Path) -> None:
    """A line longer than a segment stays in one."""
    journal = opened(tmp_path, segment_bytes=16)
    journal.write_output(b"x" * 50)
    journal.write_output(b"x" * 50 + b"\nnext\n" + b"y" * 10)
    journal.write_output(b"y" * 10 + b"\n")
    journal.close()
    starts = sorted(int(name[:20]) for name in os.listdir(tmp_path) if name.endswith(".seg"))
    assert starts == [0, 101, 127]


def test_hist_12_no_room_loses_and_reorders_nothing(tmp_path: Path) -> None:
    """Bytes that find no room are written in order when there is room; no line is announced meanwhile."""
    journal = opened(tmp_path)
    with no_room_beyond(10):
        journal.write_output(b"0123456789abcdef\n")
        assert journal.trouble
        assert not journal.announce(StdinLine(n=1))
        journal.write_record(Exited(code=0, signal=None))
        journal.retry()
        assert journal.trouble
    journal.retry()
    assert not journal.trouble
    assert everything(journal, 0) == b"0123456789abcdef\n" + encode(Exited(code=0, signal=None))
    journal.close()


def test_hist_12_an_announcement_without_room_leaves_no_trace(tmp_path: Path) -> None:
    """A record that fits only in part is taken back, so that nobody thinks that the line went out."""
    journal = opened(tmp_path)
    journal.write_output(b"a\n")
    with no_room_beyond(6):
        assert not journal.announce(StdinLine(n=1))
    journal.retry()
    assert journal.announce(StdinLine(n=2))
    assert everything(journal, 0) == b"a\n" + encode(StdinLine(n=2))
    journal.close()


def test_the_files_are_for_their_owner_only(tmp_path: Path) -> None:
    """TOK-9: what an agent says may hold secrets."""
    journal = opened(tmp_path / "journal")
    journal.write_output(b"half")
    journal.announce(StdinLine(n=1))
    journal.close()
    modes = {name: os.stat(tmp_path / "journal" / name).st_mode & 0o777 for name in os.listdir(tmp_path / "journal")}
    assert set(modes.values()) == {0o600}
    assert os.stat(tmp_path / "journal").st_mode & 0o777 == 0o700
    assert len(modes) == 2, json.dumps(modes)
