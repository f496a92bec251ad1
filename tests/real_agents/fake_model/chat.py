"""OpenAI's POST /v1/chat/completions, which Copilot's own-provider mode and OpenCode speak."""

import itertools
import json
from collections.abc import Iterator

from real_agents.fake_model import responses
from real_agents.fake_model.question import Answer, Frame, Json, Question, framed, marks_in, texts_of

name = "chat"
failure = responses.failure  # the same vendor, the same words
_numbers = itertools.count(1)


def read(body: Json) -> Question:
    """Its messages have roles, among them `tool` for results."""
    messages = body.get("messages") or []
    last, answered = "", False
    for message in messages:
        if message.get("role") == "user":
            last, answered = (texts_of(message.get("content")) or [""])[-1], False
        elif message.get("role") == "tool":
            answered = True
    functions = [tool.get("function") or {} for tool in body.get("tools") or []]
    wanted = body.get("response_format") or {}
    return Question(
        messages=len(messages),
        marks=marks_in(messages),
        last=last,
        answered=answered,
        tools={function.get("name", ""): function.get("parameters") or {} for function in functions},
        schema=(wanted.get("json_schema") or {}).get("schema") if wanted.get("type") == "json_schema" else None,
    )


def whole(answer: Answer, question: Question, model: str) -> Json:
    """The answer as one completion."""
    message = {"role": "assistant", "content": None if answer.tool else answer.text, **_calls(answer)}
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
    return {**_head("chat.completion", model), "choices": [choice], "usage": _usage(question)}


def stream(answer: Answer, question: Question, model: str) -> Iterator[Frame]:
    """The same answer in chunks, and the line that ends them."""
    head = _head("chat.completion.chunk", model)

    def chunk(delta: Json, finish: str | None = None) -> Json:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield Frame(data=chunk({"role": "assistant", "content": ""}))
    if answer.tool:
        yield Frame(data=chunk({"tool_calls": [{"index": 0, **call} for call in _calls(answer)["tool_calls"]]}))
    yield from framed(answer.pieces, lambda piece: chunk({"content": piece}))
    yield Frame(data={**chunk({}, _finish(answer)), "usage": _usage(question)})
    yield Frame(data="[DONE]")


def _head(kind: str, model: str) -> Json:
    return {"id": f"chatcmpl-{next(_numbers)}", "object": kind, "created": 0, "model": model}


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.tool else "stop"


def _calls(answer: Answer) -> Json:
    if not answer.tool:
        return {}
    function = {"name": answer.tool.name, "arguments": json.dumps(answer.tool.arguments)}
    return {"tool_calls": [{"id": f"call_{next(_numbers)}", "type": "function", "function": function}]}


def _usage(question: Question) -> Json:
    read_tokens = 10 * question.messages
    return {"prompt_tokens": read_tokens, "completion_tokens": 5, "total_tokens": read_tokens + 5}
