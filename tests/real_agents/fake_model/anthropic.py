"""Anthropic's POST /v1/messages, which Claude Code and its adapter speak."""

import itertools
import json
from collections.abc import Iterable, Iterator

from real_agents.fake_model.question import Answer, Frame, Json, Question, framed, marks_in, texts_of

name = "messages"
_numbers = itertools.count(1)


def read(body: Json) -> Question:
    """Tools' results are parts of the user's messages; such a message says nothing else of its own."""
    messages = body.get("messages") or []
    last, answered = "", False
    for message in messages:
        content = message.get("content")
        if message.get("role") != "user":
            continue
        if isinstance(content, list) and any(part.get("type") == "tool_result" for part in content):
            answered = True
        elif texts := texts_of(content):
            last, answered = texts[-1], False
    wanted = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    return Question(
        messages=len(messages),
        marks=marks_in(messages),
        last=last,
        answered=answered,
        tools={tool.get("name", ""): tool.get("input_schema") or {} for tool in body.get("tools") or []},
        schema=wanted.get("schema") if wanted.get("type") == "json_schema" else None,
    )


def failure(status: int) -> Json:
    """The body of an HTTP error."""
    return {"type": "error", "error": {"type": "api_error", "message": f"fake failure {status}"}}


def whole(answer: Answer, question: Question, model: str) -> Json:
    """The answer as one message."""
    return {
        "id": f"msg_{next(_numbers)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [_block(answer)],
        "stop_reason": "tool_use" if answer.tool else "end_turn",
        "stop_sequence": None,
        "usage": _usage(question),
    }


def stream(answer: Answer, question: Question, model: str) -> Iterator[Frame]:
    """The events of the same answer, in the API's order."""
    message = whole(answer, question, model)
    block = message["content"][0]
    yield _event("message_start", message={**message, "content": [], "stop_reason": None})
    yield from _call_events(block) if answer.tool else _text_events(answer)
    yield _event("content_block_stop", index=0)
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", delta=ended, usage=message["usage"])
    yield _event("message_stop")


def _block(answer: Answer) -> Json:
    if not answer.tool:
        return {"type": "text", "text": answer.text}
    return {
        "type": "tool_use",
        "id": f"toolu_{next(_numbers)}",
        "name": answer.tool.name,
        "input": answer.tool.arguments,
    }


def _usage(question: Question) -> Json:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": 10 * question.messages, "output_tokens": 5, **cached}


def _call_events(block: Json) -> Iterable[Frame]:
    yield _event("content_block_start", index=0, content_block={**block, "input": {}})
    delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    yield _event("content_block_delta", index=0, delta=delta)


def _text_events(answer: Answer) -> Iterable[Frame]:
    yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})

    def delta(piece: str) -> Json:
        return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}

    yield from framed(answer.pieces, delta, "content_block_delta")


def _event(kind: str, **fields: object) -> Frame:
    return Frame(data={"type": kind, **fields}, name=kind)
