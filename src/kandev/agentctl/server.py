"""agentctl's HTTP side: which request does what, and the stream of the journal."""

import asyncio
import hmac
import os
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from kandev.agentctl.failpoints import failpoint
from kandev.agentctl.http import HttpConnection, Request
from kandev.agentctl.identity import claim_directory
from kandev.agentctl.journal import Cursor
from kandev.agentctl.platform import peer_uid
from kandev.agentctl.refusal import Refusal
from kandev.agentctl.sidecar import Options, Sidecar

__all__ = ["run", "serve"]

_STREAM_BYTES: Final = 256 * 1024
_LAST_WORDS_S: Final = 2.0
"""How long readers may still read what is in the journal when agentctl ends."""

Handler = Callable[[Request], Awaitable[Mapping[str, Any]]]
Streaming = Callable[[HttpConnection, Request], Awaitable[bool]]
"""Answers by itself; True when a next request may follow on the connection."""


class Server:
    """Serves one Sidecar to any number of connections."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._connections: set[asyncio.Task[None]] = set()
        self._streams: set[asyncio.Task[None]] = set()
        self._handlers: Mapping[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/status"): self._health,
            ("POST", "/configure"): self._configure,
            ("POST", "/run"): self._run,
            ("POST", "/start"): self._start,
            ("POST", "/send"): self._send,
            ("POST", "/stop"): self._stop,
            ("POST", "/ack"): self._ack,
            ("GET", "/stderr"): self._stderr,
            ("GET", "/sources/state"): self._sources_state,
            ("POST", "/sources/checkout"): self._check_out,
            ("POST", "/work/collect"): self._collect,
        }
        self._streaming: Mapping[tuple[str, str], Streaming] = {
            ("GET", "/stream"): self._stream,
            ("GET", "/work"): self._work,
            ("POST", "/sources"): self._sources,
        }

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection; the callback of the listening socket."""
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def finish(self) -> None:
        """Let the streams reach the journal's end, for a bounded time, and end all connections."""
        if self._streams:
            await asyncio.wait(self._streams, timeout=_LAST_WORDS_S)
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = HttpConnection(reader, writer)
        try:
            if _is_stranger(writer.get_extra_info("socket")):
                return
            while await self._serve_one(connection) and connection.reusable:
                pass
        except ConnectionError:
            pass  # the client has gone; requests are safe to repeat
        finally:
            writer.close()

    async def _serve_one(self, connection: HttpConnection) -> bool:
        """Answer one request; False when the client has gone."""
        try:
            request = await connection.next_request(self._streaming)
            if request is None:
                return False
            self._check_token(request)
            self._sidecar.active()
            streaming = self._streaming.get((request.method, request.path))
            if streaming is not None:
                return await streaming(connection, request)
            handler = self._handlers.get((request.method, request.path), _unknown)
            await connection.respond(200, await handler(request))
        except Refusal as refusal:
            answer = {"code": refusal.code, "message": refusal.message, **refusal.details}
            await connection.respond(refusal.status, answer)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001  # one bad request must not end the agent's keeper
            traceback.print_exc(file=sys.stderr)
            await connection.respond(500, {"code": "internal_error", "message": f"{type(error).__name__}: {error}"})
        return True

    def _check_token(self, request: Request) -> None:
        token = self._sidecar.options.token
        given = request.authorization.removeprefix("Bearer ")
        if token and not hmac.compare_digest(given.encode(), token.encode()):
            raise Refusal(401, "unauthorized", "The bearer token is missing or wrong.")

    async def _health(self, _request: Request) -> Mapping[str, Any]:
        return self._sidecar.health()

    async def _configure(self, request: Request) -> Mapping[str, Any]:
        self._sidecar.configure(request.json())
        return {}

    async def _run(self, request: Request) -> Mapping[str, Any]:
        return await self._sidecar.run(request.json())

    async def _start(self, _request: Request) -> Mapping[str, Any]:
        return self._sidecar.start()

    async def _send(self, request: Request) -> Mapping[str, Any]:
        await self._sidecar.send(request.number("n"), request.body)
        return {}

    async def _stop(self, request: Request) -> Mapping[str, Any]:
        grace_s = request.json().get("grace_s", 0)
        if not isinstance(grace_s, (int, float)) or not 0 <= grace_s <= 3600:
            raise Refusal(400, "bad_request", "grace_s is a number of seconds.")
        await self._sidecar.stop(float(grace_s))
        return self._sidecar.health()

    async def _ack(self, request: Request) -> Mapping[str, Any]:
        offset = request.json().get("offset")
        if not isinstance(offset, int) or offset < 0:
            raise Refusal(400, "bad_request", "offset is a number.")
        self._sidecar.acknowledge(offset)
        return {}

    async def _stderr(self, request: Request) -> Mapping[str, Any]:
        return {"text": self._sidecar.stderr(request.number("limit", 4096)).decode("utf-8", "replace")}

    async def _sources_state(self, request: Request) -> Mapping[str, Any]:
        try:
            path = bytes.fromhex(request.query.get("path", "")).decode()
        except ValueError:
            raise Refusal(400, "bad_request", "path is hexadecimal UTF-8.") from None
        return self._sidecar.sources.state(path)

    async def _check_out(self, request: Request) -> Mapping[str, Any]:
        return await self._sidecar.sources.check_out(request.json())

    async def _collect(self, request: Request) -> Mapping[str, Any]:
        return await self._sidecar.sources.collect(request.json())

    async def _sources(self, connection: HttpConnection, _request: Request) -> bool:
        """Take a bundle of any size."""
        await connection.respond(200, await self._sidecar.sources.take(connection.pieces()))
        return True

    async def _work(self, connection: HttpConnection, _request: Request) -> bool:
        """Send the bundle that was collected."""
        try:
            file = open(self._sidecar.sources.outgoing, "rb")  # noqa: ASYNC230, SIM115 - of our own disk; closed below
        except FileNotFoundError:
            raise Refusal(409, "nothing_collected", "No work was collected.") from None
        with file:
            connection.begin_stream()
            while data := await asyncio.to_thread(file.read, _STREAM_BYTES):
                await connection.send_chunk(data)
            await connection.send_chunk(b"")
        return False

    async def _stream(self, connection: HttpConnection, request: Request) -> bool:
        """Send the journal from `from` on, for ever; it ends behind the exit record."""
        journal = self._sidecar.journal
        offset = request.number("from")
        bounds = {"start": journal.start, "end": journal.end}
        if request.query.get("instance_id") != self._sidecar.options.instance_id:
            raise Refusal(409, "instance_mismatch", "This is the journal of another instance.", **bounds)
        if not journal.is_line_start(offset):
            raise Refusal(409, "offset_refused", f"{offset} is not the start of a line in the journal.", **bounds)
        connection.begin_stream()
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            await self._send_journal(connection, Cursor(journal, offset))
        finally:
            self._streams.discard(task)
        return False

    async def _send_journal(self, connection: HttpConnection, cursor: Cursor) -> None:
        grown = asyncio.Event()
        self._sidecar.growth.add(grown)
        # The client sends nothing more: whatever its end yields means that it has gone.
        gone = asyncio.get_running_loop().create_task(connection.reader.read(1), name="end of a reader")
        gone.add_done_callback(lambda _: grown.set())
        try:
            while not gone.done():
                grown.clear()
                data = cursor.read(_STREAM_BYTES)
                if data:
                    await connection.send_chunk(data)
                elif self._sidecar.is_complete():
                    await connection.send_chunk(b"")
                    return
                else:
                    await grown.wait()
        finally:
            gone.cancel()
            self._sidecar.growth.discard(grown)
            cursor.close()


async def _unknown(request: Request) -> Mapping[str, Any]:
    raise Refusal(404, "not_found", f"{request.method} {request.path} is unknown.")


def run(options: Options, listeners: Sequence[socket.socket]) -> None:
    """Serve on all `listeners` until agentctl is to end: the whole life of one agentctl."""
    asyncio.run(serve(options, listeners))


async def serve(options: Options, listeners: Sequence[socket.socket]) -> None:
    """The same inside a running loop."""
    claim = claim_directory(options.directory)
    sidecar = Sidecar(options)
    server = Server(sidecar)
    failpoint("agentctl.before_listen")
    listening = [await _listen(server, listener) for listener in listeners]
    await sidecar.ending.wait()
    for one in listening:
        one.close()
    await server.finish()
    sidecar.close()
    os.close(claim)


async def _listen(server: Server, listener: socket.socket) -> asyncio.Server:
    start = asyncio.start_unix_server if listener.family == socket.AF_UNIX else asyncio.start_server
    return await start(server.connected, sock=listener)


def _is_stranger(connection: Any) -> bool:
    """True for a process of another user on a Unix socket; the file's mode says the same."""
    return connection.family == socket.AF_UNIX and peer_uid(connection) not in {0, os.geteuid()}
