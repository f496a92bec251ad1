"""The live transcript shows every character once, whatever comes twice or in another order."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kandev.cli.transcript import LiveTranscript, message_text


def message(identity: str, seq: int | None, content: str, **fields: Any) -> dict[str, Any]:
    return {"id": identity, "seq": seq, "content": content, "author_type": "agent", "type": "message"} | fields


def test_a_streamed_message_is_written_once() -> None:
    """Added empty, grown by deltas, closed by the whole: the text stands there once."""
    live = LiveTranscript("demo")
    shown = live.message(message("m1", 1, ""))
    shown += live.delta("m1", 0, "hello ")
    shown += live.delta("m1", 6, "world")
    shown += live.message(message("m1", 1, "hello world"))
    assert shown == "demo: hello world"
    assert not live.missing


@given(st.data())
def test_pieces_that_come_again_are_not_shown_again(data: st.DataObject) -> None:
    """Deltas, repeated deltas and whole messages in any mixture add up to the text."""
    text = data.draw(st.text(alphabet="abc \n", min_size=1, max_size=40))
    live = LiveTranscript("demo")
    live.message(message("m1", 1, ""))
    shown, known = "", 0
    for end in [*data.draw(st.lists(st.integers(0, len(text)), max_size=12)), len(text)]:
        start = data.draw(st.integers(0, min(known, end)))
        if data.draw(st.booleans()):
            shown += live.message(message("m1", 1, text[:end]))
        else:
            shown += live.delta("m1", start, text[start:end])
        known = max(known, end)
    assert shown == f"demo: {text}"


def test_a_lacking_piece_is_asked_for() -> None:
    """A delta behind a gap, or of an unknown message, is not shown: the whole message is asked for."""
    live = LiveTranscript("demo")
    live.message(message("m1", 1, "ab"))
    assert live.delta("m1", 5, "f") == ""
    assert live.delta("m2", 0, "x") == ""
    assert live.missing == {"m1", "m2"}
    assert live.message(message("m1", 1, "abcdef")) == "cdef"
    assert live.missing == {"m2"}


def test_another_message_in_between_gets_lines_of_its_own() -> None:
    """A tool call in the middle of a text starts on a new line, and the text goes on under its author's name."""
    live = LiveTranscript("demo")
    tool = message("t1", 2, "", type="tool_call", metadata={"title": "pytest", "status": "in_progress"})
    shown = live.message(message("m1", 1, "one"))
    shown += live.message(tool)
    shown += live.message(tool)
    shown += live.message({**tool, "metadata": {"title": "pytest", "status": "completed"}})
    shown += live.delta("m1", 3, " two")
    shown += live.line("── done")
    expected = ["demo: one", "  … pytest (in_progress)", "  ✓ pytest (completed)", "demo: …  two", "── done", ""]
    assert shown.split("\n") == expected


def test_prompt_8_a_queued_message_is_shown_when_it_has_its_place() -> None:
    """A message without a place is not part of the transcript yet."""
    live = LiveTranscript("demo")
    assert live.message(message("m1", None, "later", author_type="user")) == ""
    assert live.message(message("m1", 7, "later", author_type="user")) == "You: later\n"
    assert live.last_seq == 7


def test_what_was_typed_here_is_not_echoed() -> None:
    """The line that a person typed stands on his screen already."""
    live = LiveTranscript("demo")
    live.own.add("c1")
    assert live.message(message("m1", 1, "hi", author_type="user", client_message_id="c1")) == ""


def test_wire_3_an_unknown_kind_is_shown_as_unknown() -> None:
    """A message of a kind that this version does not know is named, not hidden."""
    assert message_text(message("m1", 1, "…", type="hologram"), "demo") == "  (hologram) …"
