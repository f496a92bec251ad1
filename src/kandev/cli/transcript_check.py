"""Whether a transcript has everything of before a kill, and nothing of it twice."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """What was there before the kill: every prompt that was sent, the first answer, and what was said of the second."""

    prompts: Sequence[str]
    first_answer: str
    partial: str


def transcript_fault(messages: Sequence[Mapping[str, Any]], before: Before) -> str:
    """Return what is wrong with a transcript (messages in order, the first one a prompt); '' where all is well.

    An agent may speak unasked, a greeting or a warning. What it repeats there of an answer is a double.
    """
    said = [message["content"] for message in messages if message["author_type"] == "user"]
    if said != list(before.prompts):
        return f"{len(before.prompts)} prompts were sent, and the transcript has {len(said)}: {said}"
    answers = [message for message in messages if _is_answer(message)]
    unasked = {message["content"].strip() for message in answers if not message["turn_id"]}
    if doubled := sorted(unasked & {before.first_answer.strip(), before.partial.strip()} - {""}):
        return f"there twice: {doubled[0]}"
    first = answer_of([message for message in answers if message["turn_id"] == messages[0]["turn_id"]])
    if first != before.first_answer:
        return f"the first answer was {before.first_answer!r} and is now {first!r}"
    if before.partial.strip() not in "".join(message["content"] for message in answers):
        return f"what was said before the kill is not there: {before.partial!r}"
    return ""


def answer_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return what the agent said in these messages, as one text."""
    return "\n\n".join(message["content"].strip("\n") for message in messages)


def _is_answer(message: Mapping[str, Any]) -> bool:
    return (message["author_type"], message["type"]) == ("agent", "message")
