"""OpenAI's POST /v1/responses, which Codex speaks."""

import itertools
import json
from collections.abc import Iterable, Iterator

from real_agents.fake_model.question import Answer, Frame, Json, Question, framed, marks_in, texts_of

name = "responses"
_numbers = itertools.count(1)


def read(body: Json) -> Question:
    """Its input is a text or a list of items; tools' results are items of their own."""
    given = body.get("input") or []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    last, answered = "", False
    for item in items:
        if item.get("role") == "user":
            last, answered = (texts_of(item.get("content")) or [""])[-1], False
        elif str(item.get("type", "")).endswith("_output"):
            answered = True
    wanted = (body.get("text") or {}).get("format") or {}
    return Question(
        messages=len(items),
        marks=marks_in(items),
        last=last,
        answered=answered,
        tools={tool.get("name") or tool.get("type"): tool.get("parameters") or {} for tool in body.get("tools") or []},
        schema=wanted.get("schema") if wanted.get("type") == "json_schema" else None,
    )


def failure(status: int) -> Json:
    """The body of an HTTP error."""
    return {"error": {"message": f"fake failure {status}", "type": "server_error", "code": str(status)}}


def whole(answer: Answer, question: Question, model: str) -> Json:
    """The answer as one response object."""
    usage = {
        "input_tokens": 10 * question.messages,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10 * question.messages + 5,
    }
    return {
        "id": f"resp_{next(_numbers)}",
        "object": "response",
        "created_at": 0,
        "model": model,
        "status": "completed",
        "output": [_item(answer)],
        "usage": usage,
    }


def _item(answer: Answer) -> Json:
    number = next(_numbers)
    if answer.tool:
        arguments = json.dumps(answer.tool.arguments)
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed"}
        return {**call, "name": answer.tool.name, "arguments": arguments}
    text = {"type": "output_text", "text": answer.text, "annotations": []}
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [text]}


def stream(answer: Answer, question: Question, model: str) -> Iterator[Frame]:
    """The events of the same answer, in the API's order and numbered."""
    response = whole(answer, question, model)
    item = response["output"][0]
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    frames = [
        [_event("response.created", response=begun)],
        _call_events(item) if answer.tool else _text_events(item, answer),
        [_event("response.output_item.done", output_index=0, item=item)],
        [_event("response.completed", response=response)],
    ]
    for number, frame in enumerate(itertools.chain.from_iterable(frames)):
        assert isinstance(frame.data, dict)
        yield Frame(data={**frame.data, "sequence_number": number}, name=frame.data["type"], piece=frame.piece)


def _call_events(item: Json) -> Iterable[Frame]:
    place = {"item_id": item["id"], "output_index": 0}
    opened = {**item, "arguments": "", "status": "in_progress"}
    yield _event("response.output_item.added", output_index=0, item=opened)
    yield _event("response.function_call_arguments.delta", **place, delta=item["arguments"])
    yield _event("response.function_call_arguments.done", **place, arguments=item["arguments"])


def _text_events(item: Json, answer: Answer) -> Iterable[Frame]:
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    part = item["content"][0]
    yield _event("response.output_item.added", output_index=0, item={**item, "status": "in_progress", "content": []})
    yield _event("response.content_part.added", **place, part={**part, "text": ""})
    yield from framed(answer.pieces, lambda piece: {"type": "response.output_text.delta", **place, "delta": piece})
    yield _event("response.output_text.done", **place, text=part["text"])
    yield _event("response.content_part.done", **place, part=part)


def _event(kind: str, **fields: object) -> Frame:
    return Frame(data={"type": kind, **fields})
