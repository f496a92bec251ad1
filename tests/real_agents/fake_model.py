"""A model server for real agents: the dialect of OpenAI's responses API, on loopback, without a model.

    python tests/real_agents/fake_model.py --log requests.jsonl [--port 18080]

It answers each request with what the request held, so that a test can tell whether an agent remembers:

    HEARD 3 messages, marks: MARK-apple MARK-pear

A mark is MARK- and letters or digits, and counts wherever it stands in the input. The last text of the user steers:
`slow: N` answers in N pieces, 0.1 s apart; `fail: CODE` is an HTTP error. Each request is one JSON line of the log:
{"path", "messages", "marks", "last", "body"}.
"""

import argparse
import asyncio
import itertools
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Json = dict[str, Any]

MARK = re.compile(r"MARK-\w+")
STEERING = re.compile(r"^(slow|fail): *(\d+)", re.MULTILINE)
MODELS = ("fake-model", "gpt-5")
PIECE_PAUSE = 0.1
"""Seconds between the pieces of a slow answer."""

numbers = itertools.count(1)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What matters of one request: how many messages it holds, the marks in their order, the user's last text."""

    messages: int
    marks: tuple[str, ...]
    last: str

    @classmethod
    def from_body(cls, body: Json) -> "Question":
        """Reads the body of POST /responses, whose input is a text or a list of items."""
        given = body.get("input") or []
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        texts = [text for item in items if item.get("role") == "user" for text in texts_of(item)]
        marks = MARK.findall(json.dumps(items))
        return cls(messages=len(items), marks=tuple(dict.fromkeys(marks)), last=texts[-1] if texts else "")

    def steering(self) -> tuple[str, int]:
        """("slow", pieces), ("fail", status), or ("", 0)."""
        found = STEERING.search(self.last)
        return (found[1], int(found[2])) if found else ("", 0)

    def pieces(self) -> list[str]:
        """The answer as it is streamed."""
        kind, count = self.steering()
        if kind == "slow":
            return [f"piece {number} " for number in range(1, count + 1)]
        return [f"HEARD {self.messages} messages, ", f"marks: {' '.join(self.marks) or 'none'}"]


def texts_of(item: Json) -> list[str]:
    """The texts of one item of the input."""
    content = item.get("content") or []
    return [content] if isinstance(content, str) else [part.get("text", "") for part in content]


def response_of(question: Question, model: str) -> Json:
    """The whole answer as one response object."""
    number = next(numbers)
    text = {"type": "output_text", "text": "".join(question.pieces()), "annotations": []}
    message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [text]}
    usage = {
        "input_tokens": 10 * question.messages,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10 * question.messages + 5,
    }
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 0,
        "model": model,
        "status": "completed",
        "output": [message],
        "usage": usage,
    }


def stream_of(response: Json, pieces: list[str]) -> Iterator[Json]:
    """The events of the same answer when it is streamed, in the API's order."""
    message = response["output"][0]
    whole = message["content"][0]
    place = {"item_id": message["id"], "output_index": 0, "content_index": 0}
    yield {"type": "response.created", "response": {**response, "status": "in_progress", "output": [], "usage": None}}
    opened = {**message, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": 0, "item": opened}
    yield {"type": "response.content_part.added", **place, "part": {**whole, "text": ""}}
    for piece in pieces:
        yield {"type": "response.output_text.delta", **place, "delta": piece}
    yield {"type": "response.output_text.done", **place, "text": whole["text"]}
    yield {"type": "response.content_part.done", **place, "part": whole}
    yield {"type": "response.output_item.done", "output_index": 0, "item": message}
    yield {"type": "response.completed", "response": response}


async def server_sent(events: Iterator[Json], pause: float) -> AsyncIterator[bytes]:
    """The events as a body of type text/event-stream; `pause` in seconds stands before each piece of text."""
    for number, event in enumerate(events):
        if event["type"] == "response.output_text.delta":
            await asyncio.sleep(pause)
        yield f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n".encode()


def make_app(log: Path) -> Starlette:
    """The server as an ASGI application that writes its requests to `log`."""

    def note(path: str, body: Any, question: Question) -> None:
        entry = {"path": path, **msgspec.to_builtins(question), "body": body}
        with log.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(entry) + b"\n")

    async def responses(request: Request) -> Response:
        body = await request.json()
        question = Question.from_body(body)
        note(request.url.path, body, question)
        kind, amount = question.steering()
        if kind == "fail":
            error = {"message": f"fake failure {amount}", "type": "server_error", "code": str(amount)}
            return JSONResponse({"error": error}, status_code=amount)
        response = response_of(question, body.get("model", MODELS[0]))
        if not body.get("stream"):
            return JSONResponse(response)
        events = stream_of(response, question.pieces())
        pause = PIECE_PAUSE if kind == "slow" else 0.0
        return StreamingResponse(server_sent(events, pause), media_type="text/event-stream")

    async def models(_: Request) -> Response:
        listed = [{"id": name, "object": "model", "created": 0, "owned_by": "fake"} for name in MODELS]
        return JSONResponse({"object": "list", "data": listed, "models": []})

    async def other(request: Request) -> Response:
        note(request.url.path, (await request.body()).decode(errors="replace"), Question(messages=0, marks=(), last=""))
        return JSONResponse({"error": {"message": f"no {request.method} {request.url.path}"}}, status_code=404)

    return Starlette(
        routes=[
            Route("/v1/responses", responses, methods=["POST"]),
            Route("/v1/models", models),
            Route("/{rest:path}", other, methods=["GET", "POST", "PUT", "DELETE"]),
        ]
    )


def main() -> None:
    """Serves until it is stopped, on a port of 127.0.0.1 or on a listening socket that the starter handed down."""
    options = argparse.ArgumentParser(description="A model server without a model, for tests of real agents.")
    options.add_argument("--log", type=Path, required=True, help="file that gets one JSON line a request")
    options.add_argument("--port", type=int, default=18080)
    options.add_argument("--fd", type=int, help="number of an inherited listening socket, instead of --port")
    chosen = options.parse_args()
    listener = socket.socket(fileno=chosen.fd) if chosen.fd else socket.create_server(("127.0.0.1", chosen.port))
    uvicorn.Server(uvicorn.Config(make_app(chosen.log), log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
