"""What an agent writes cannot steer the terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kandev.cli.output import to_json
from kandev.cli.plain import PlainStream, one_line, strip_controls

ESCAPES = {
    "\x1b[31mred\x1b[0m": "red",
    "\x1b]0;title\x07text": "text",
    "\x1b]8;;https://x\x1b\\link\x1b]8;;\x1b\\": "link",
    "\x1bPq...\x1b\\after": "after",
    "a\x9b2Jb": "ab",
    "over\rwritten": "over\nwritten",
    "line\r\nnext": "line\nnext",
    "tab\tand\nline": "tab\tand\nline",
    "bell\x07\x08\x00": "bell",
    "abc\u202edef": "abcdef",
    "half \ud800 pair": "half ? pair",
    "\x1b(Bcharset\x1bM": "charset",
    "\x1b\x1b[1mtwice": "twice",
}


@pytest.mark.parametrize(("text", "plain"), ESCAPES.items())
def test_escape_sequences_are_taken_out(text: str, plain: str) -> None:
    """Sequences and control characters go, text, tabs and new lines stay."""
    assert strip_controls(text) == plain


@given(st.lists(st.sampled_from(list(ESCAPES)), max_size=6), st.data())
def test_a_stream_strips_the_same_as_the_whole(parts: list[str], data: st.DataObject) -> None:
    """However a text is cut into pieces, what is shown of it is the same."""
    text = "".join(parts)
    stream, shown, place = PlainStream(), "", 0
    while place < len(text):
        size = data.draw(st.integers(1, len(text) - place))
        shown += stream.feed(text[place : place + size])
        place += size
    assert shown + ("\n" if text.endswith("\r") else "") == strip_controls(text)


@given(st.text())
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    """Of any text, no C0 (but tab and new line), DEL or C1 character comes through, in text or in JSON."""
    steering = {chr(code) for code in (*range(32), *range(0x7F, 0xA0))}
    assert not (steering - {"\t", "\n"}) & set(strip_controls(text))
    assert not steering & set(to_json({"text": text}))


def test_one_line_is_one_line_of_bounded_length() -> None:
    """A title of many lines cannot break a table."""
    assert one_line("a\n b\tc") == "a b c"
    assert one_line("abcdef", 4) == "abc…"
