"""The server itself: paths to dialects, the log, and the streams."""

import argparse
import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from real_agents.fake_model import anthropic, chat, gemini, responses
from real_agents.fake_model.question import Answer, Dialect, Frame, Json, Question, plan

MODELS = ("fake-model", "gpt-5", "claude-sonnet-4-5", "gemini-2.5-pro")
NOTHING = Question(messages=0, marks=(), last="")
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"]


class Log:
    """The file of requests: one JSON line each, whole before its request is answered."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, request: Request, dialect: str, question: Question, body: Any) -> None:
        seen = {"messages": question.messages, "marks": question.marks, "last": question.last}
        entry = {"path": request.url.path, "dialect": dialect, **seen, "body": body}
        with self._path.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(entry) + b"\n")


async def server_sent(frames: Iterable[Frame], answer: Answer) -> AsyncIterator[bytes]:
    """The frames as a body of type text/event-stream, with the answer's pause before each later piece of text."""
    for frame in frames:
        if frame.piece == "later":
            await asyncio.sleep(answer.pause_s)
        data = frame.data if isinstance(frame.data, str) else json.dumps(frame.data)
        name = f"event: {frame.name}\n" if frame.name else ""
        yield f"{name}data: {data}\n\n".encode()


async def answered(dialect: Dialect, question: Question, model: str, *, stream: bool) -> Response:
    """The response to a question."""
    answer = plan(question)
    if answer.status >= 400:
        return JSONResponse(dialect.failure(answer.status), status_code=answer.status)
    if stream:
        frames = dialect.stream(answer, question, model)
        return StreamingResponse(server_sent(frames, answer), media_type="text/event-stream")
    await asyncio.sleep(answer.pause_s * max(0, len(answer.pieces) - 1))
    return JSONResponse(dialect.whole(answer, question, model))


def make_app(path: Path) -> Starlette:
    """The server as an ASGI application that writes its requests to `path`."""
    log = Log(path)

    def asked(dialect: Dialect) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            body: Json = await request.json()
            question = dialect.read(body)
            log.note(request, dialect.name, question, body)
            model = body.get("model") or MODELS[0]
            return await answered(dialect, question, model, stream=bool(body.get("stream")))

        return answer

    async def gemini_asked(request: Request) -> Response:
        model, _, verb = request.path_params["call"].rpartition(":")
        body: Json = await request.json()
        if verb == "countTokens":
            return JSONResponse({"totalTokens": 10})
        question = gemini.read(body)
        log.note(request, gemini.name, question, body)
        return await answered(gemini, question, model, stream=verb == "streamGenerateContent")

    async def count_tokens(_: Request) -> Response:
        return JSONResponse({"input_tokens": 10})

    async def models(_: Request) -> Response:
        about = {"object": "model", "type": "model", "created": 0, "created_at": "2025-01-01T00:00:00Z"}
        listed = [{"id": name, "display_name": name, "owned_by": "fake", **about} for name in MODELS]
        return JSONResponse({"object": "list", "data": listed, "models": [], "has_more": False})

    async def other(request: Request) -> Response:
        log.note(request, "", NOTHING, (await request.body()).decode(errors="replace"))
        return JSONResponse({"error": {"message": f"no {request.method} {request.url.path}"}}, status_code=404)

    return Starlette(
        routes=[
            Route("/v1/responses", asked(responses), methods=["POST"]),
            Route("/v1/chat/completions", asked(chat), methods=["POST"]),
            Route("/v1/messages", asked(anthropic), methods=["POST"]),
            Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1beta/models/{call}", gemini_asked, methods=["POST"]),
            Route("/{rest:path}", other, methods=METHODS),
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
