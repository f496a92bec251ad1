"""What a check says of a transcript behind a kill: nothing twice, nothing gone."""

from typing import Any

import pytest

from kandev.cli.transcript_check import Before, transcript_fault

BEFORE = Before(prompts=["remember", "count", "which?"], first_answer="yes", partial="1 2 3")


def message(author: str, content: str, turn: str | None, kind: str = "message") -> dict[str, Any]:
    """A message with the fields that count."""
    return {"author_type": author, "type": kind, "content": content, "turn_id": turn}


WHOLE = [
    message("user", "remember", "a"),
    message("agent", "hm", "a", "thinking"),
    message("agent", "yes", "a"),
    message("user", "count", "b"),
    message("agent", "1 2 3 4", "b"),
    message("system", "interrupted", "b", "status"),
    message("user", "which?", "c"),
    message("agent", "yes", "c"),
]


def test_a_transcript_with_all_of_it_has_no_fault() -> None:
    """More than what was seen before the kill may be there, and a later answer may be like the first."""
    assert transcript_fault(WHOLE, BEFORE) == ""


def test_words_that_nobody_asked_for_are_no_fault() -> None:
    """A greeting at each start is the agent's way."""
    assert transcript_fault([*WHOLE, message("agent", "Welcome", None)], BEFORE) == ""


@pytest.mark.parametrize(
    ("messages", "beginning"),
    [
        ([*WHOLE[:4], message("user", "count", "b"), *WHOLE[4:]], "3 prompts were sent, and the transcript has 4"),
        ([*WHOLE[:6], WHOLE[7]], "3 prompts were sent, and the transcript has 2"),
        ([*WHOLE, message("agent", "yes", None)], "there twice: yes"),
        ([*WHOLE, message("agent", "1 2 3\n", None)], "there twice: 1 2 3"),
        ([*WHOLE[:3], message("agent", "yes", "a"), *WHOLE[3:]], "the first answer was 'yes' and is now"),
        ([*WHOLE[:2], *WHOLE[3:]], "the first answer was 'yes' and is now ''"),
        ([*WHOLE[:4], *WHOLE[5:]], "what was said before the kill is not there: '1 2 3'"),
    ],
)
def test_what_is_twice_or_gone_is_told(messages: list[dict[str, Any]], beginning: str) -> None:
    """A replay that was taken for news, a prompt that was sent again, an answer that was lost."""
    assert transcript_fault(messages, BEFORE).startswith(beginning)
