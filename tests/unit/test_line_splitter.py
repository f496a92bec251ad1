"""A stream is cut into lines wherever its pieces end; what is too long is counted and not kept (WIRE-2)."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kandev.lifecycle.line_splitter import LineSplitter

LIMIT = 8


class Lines:
    """Takes what the splitter hands on, as a reader does: whole lines, or the length of one that was too long."""

    def __init__(self) -> None:
        self.taken: list[bytes | int] = []

    def feed(self, lines: Sequence[bytes]) -> None:
        self.taken += lines

    def too_long(self, length: int, *, limit: int) -> None:
        assert limit == LIMIT
        self.taken.append(length)


def split(*pieces: bytes, splitter: LineSplitter | None = None) -> list[bytes | int]:
    """What a reader gets of a stream that comes in these pieces."""
    splitter, lines = splitter or LineSplitter(LIMIT), Lines()
    for piece in pieces:
        splitter.feed(piece, lines)  # type: ignore[arg-type]  # the two methods of a reader that it calls
    return lines.taken


def test_lines_are_handed_on_without_their_newlines() -> None:
    """Also empty ones: each newline counts for the position."""
    assert split(b"one\n\ntwo\n") == [b"one", b"", b"two"]


def test_the_rest_of_a_line_is_waited_for() -> None:
    """Half a line is nothing; joined with its rest it is one."""
    splitter = LineSplitter(LIMIT)
    assert split(b"one\ntw", splitter=splitter) == [b"one"]
    assert split(b"o", splitter=splitter) == []
    assert split(b"\nthree\n", splitter=splitter) == [b"two", b"three"]


def test_wire_2_a_line_of_the_limit_is_fine_and_one_byte_more_is_not() -> None:
    """The length that is told counts the newline, because it moves the position."""
    assert split(b"12345678\n", b"123456789\n", b"ok\n") == [b"12345678", 10, b"ok"]


def test_wire_2_what_is_too_long_is_not_kept() -> None:
    """Memory holds the limit at most, however long the line goes on."""
    splitter = LineSplitter(LIMIT)
    for _ in range(1000):
        split(b"12345", splitter=splitter)
        assert sum(map(len, splitter._pieces)) <= LIMIT
    assert split(b"\nok\n", splitter=splitter) == [5001, b"ok"]


STREAMS = st.lists(st.binary(max_size=2 * LIMIT).map(lambda text: text.replace(b"\n", b"")), max_size=8)


@given(lines=STREAMS, rest=st.sampled_from([b"", b"rest", b"x" * 20]), cuts=st.lists(st.integers(0, 80), max_size=12))
def test_wire_2_the_pieces_make_no_difference(lines: list[bytes], rest: bytes, cuts: list[int]) -> None:
    """Any split of a stream gives the lines that it has, each whole, and the lengths of those over the limit."""
    stream = b"".join(line + b"\n" for line in lines) + rest
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(places)]
    assert split(*pieces) == [line if len(line) <= LIMIT else len(line) + 1 for line in lines]
