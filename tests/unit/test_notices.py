"""What the server says in a transcript: the same again is counted, not said again."""

import msgspec
import pytest

from kandev.domain.models import Message, MessageId, SessionId
from kandev.lifecycle.effects import Notice
from kandev.orchestrator.notices import KEPT_TIMES, LAST_WORDS, counted, last_words, parked_notice, status

THEN = "2026-01-01T00:00:00.000Z"
ENDED = status("agent_died", "The agent ended.", "resume", exit_code=1)


def said(notice: Notice, **other: object) -> Message:
    """A notice as it was stored."""
    message = Message(
        id=MessageId("m1"),
        session_id=SessionId("s1"),
        seq=7,
        author_type="system",
        type=notice.type,
        content=notice.content,
        metadata=notice.metadata,
        created_at=THEN,
        updated_at=THEN,
    )
    return msgspec.structs.replace(message, **other)


def test_the_same_again_counts_in_its_place() -> None:
    """Its place and its first time stay; text and details are the newest, with how often and when."""
    first = said(ENDED)
    again = counted(first, status("agent_died", "It ended once more.", "resume", exit_code=9))
    assert again is not None
    assert (again.id, again.seq, again.created_at) == (first.id, 7, THEN)
    assert again.content == f"It ended once more. That happened 2 times in a row, first at {THEN}."
    assert (again.metadata["times"], again.metadata["exit_code"], again.metadata["actions"]) == (2, 9, ["resume"])
    assert again.metadata["at"] == [THEN, again.updated_at]


def test_times_are_kept_within_a_bound() -> None:
    """The number goes on; the list of times does not."""
    message = said(ENDED)
    for _ in range(2 * KEPT_TIMES):
        message = counted(message, ENDED) or pytest.fail("it is the same notice")
    assert message.metadata["times"] == 2 * KEPT_TIMES + 1
    assert len(message.metadata["at"]) == KEPT_TIMES


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(None, id="nothing was said yet"),
        pytest.param(said(status("parked", "It is parked.")), id="something else was said"),
        pytest.param(said(ENDED, author_type="user"), id="a person wrote meanwhile"),
        pytest.param(said(ENDED, author_type="agent", metadata={}), id="the agent spoke meanwhile"),
    ],
)
def test_anything_between_ends_the_count(last: Message | None) -> None:
    """Then it is news, and gets a place of its own."""
    assert counted(last, ENDED) is None


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("", ""),
        ("\n --- \n", ""),
        ("Traceback:\n  File x\nMemoryError: out of it\n\n", "MemoryError: out of it."),
        ("\x1b[31mno room!\x1b[0m\x00", "no room!"),
        ("\ud800 lone", "\ufffd lone."),
        ("w" * 1000, "w" * LAST_WORDS + "…"),
    ],
)
def test_last_words_are_the_last_line_that_says_something(stderr: str, words: str) -> None:
    """Plain, one line, bounded, and a sentence."""
    assert last_words(stderr) == words


def test_state_5_a_parked_agent_has_its_last_words() -> None:
    """In the text and for the page; an agent that said nothing is not quoted."""
    told = parked_notice("boom\n")
    assert "by itself. Its last words: boom. Everything is kept." in told.content
    assert told.metadata["last_words"] == "boom."
    assert "by itself. Everything is kept." in parked_notice("").content
