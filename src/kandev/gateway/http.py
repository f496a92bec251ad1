"""The HTTP application: health, metrics, export, the page, and the WebSocket's door."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from kandev.errors import BadRequest, Forbidden, Internal, KandevError, NotFound
from kandev.gateway.actions import health
from kandev.gateway.backend import Backend
from kandev.gateway.connection import Connection
from kandev.gateway.fields import Id
from kandev.gateway.guard import Guard, refusal
from kandev.gateway.metrics import Metrics
from kandev.gateway.outbox import SERVICE_RESTART
from kandev.gateway.security import Policy
from kandev.gateway.work import Work

PAGE = Path(__file__).parent.parent / "page"
"""Where the build puts the page."""

PLACEHOLDER = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>kandev</title>
<h1>kandev</h1>
<p>The server runs. This build comes without its page.</p>
<p>Use the command line: <code>kandev ls</code>, <code>kandev attach ID</code>, <code>kandev --help</code>.</p>
</html>
"""


class _Assets(StaticFiles):
    """Files whose names hold a hash of what is in them, so that a browser never asks for one twice."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        return response


class Gateway:
    """The routes, bound to one backend. Knows its open sockets, so that they can be told of the end."""

    def __init__(
        self, backend: Backend, *, sessions_by_state: Callable[[], Mapping[str, int]] = dict, page: Path = PAGE
    ) -> None:
        self._backend = backend
        self._page = page
        self._started = time.monotonic()
        self._connections: set[Connection] = set()
        self.work = Work()
        self.metrics = Metrics(backend.hub, clients=lambda: len(self._connections), sessions=sessions_by_state)

    def application(self, policy: Policy) -> ASGIApp:
        """Return the ASGI application, guarded by `policy`."""
        routes: list[BaseRoute] = [
            Route("/healthz", self._health),
            Route("/metrics", self._metrics),
            Route("/api/sessions/{session_id}/export", self._export),
            WebSocketRoute("/ws", self._websocket),
            Route("/", self._index),
            Route("/tasks/{rest:path}", self._index),
        ]
        if (assets := self._page / "assets").is_dir():
            routes.append(Mount("/assets", _Assets(directory=assets)))
        handlers = {HTTPException: _http_error, KandevError: _kandev_error, Exception: _unexpected}
        return Guard(Starlette(routes=routes, exception_handlers=handlers), policy)  # type: ignore[arg-type]  # handlers of one kind of error

    def close_sockets(self) -> None:
        """Close every WebSocket with 1012 once what waits for it is sent; its client comes back."""
        for connection in self._connections:
            connection.outbox.close(SERVICE_RESTART)

    async def _websocket(self, websocket: WebSocket) -> None:
        connection = Connection(websocket, self._backend, self.work)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    async def _health(self, _: Request) -> Response:
        uptime = round(time.monotonic() - self._started, 3)
        return JSONResponse({**health(self._backend.boot_id), "uptime": uptime})

    async def _metrics(self, _: Request) -> Response:
        return Response(self.metrics.render(), media_type="text/plain; version=0.0.4")

    async def _export(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        try:
            msgspec.convert(session_id, Id)
        except msgspec.ValidationError:
            raise NotFound("There is no such session.") from None
        lines = self._backend.messages.export(session_id)
        first = await anext(lines, b"")  # an unknown session is known here, before the status is sent
        headers = {"Content-Disposition": f'attachment; filename="{session_id}.jsonl"', "Cache-Control": "no-store"}
        return StreamingResponse(_and(first, lines), media_type="application/x-ndjson", headers=headers)

    async def _index(self, _: Request) -> Response:
        index = self._page / "index.html"
        headers = {"Cache-Control": "no-cache"}
        if index.is_file():
            return FileResponse(index, headers=headers)
        return HTMLResponse(PLACEHOLDER, headers=headers)


async def _and(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


async def _kandev_error(_: Request, error: KandevError) -> Response:
    return refusal(error)


async def _http_error(_: Request, error: HTTPException) -> Response:
    kinds: dict[int, type[KandevError]] = {404: NotFound, 403: Forbidden}
    return JSONResponse(kinds.get(error.status_code, BadRequest)(error.detail).payload(), error.status_code)


async def _unexpected(_: Request, __: Exception) -> Response:
    # The server logs it with its traceback.
    return refusal(Internal("Something went wrong in the server. Its log says what."))
