"""One WebSocket: reads requests, starts their answers, and sends what its outbox holds."""

import asyncio
import contextlib

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from kandev.errors import AgentError, Internal, KandevError, RuntimeUnreachable, Stopping, TimedOut, Unavailable
from kandev.gateway import protocol
from kandev.gateway.actions import perform
from kandev.gateway.backend import Backend
from kandev.gateway.context import Context
from kandev.gateway.outbox import Outbox
from kandev.gateway.work import Work

REQUESTS_AT_ONCE = 1024  # of one socket; more are refused, so that one client cannot take all memory

log = structlog.get_logger(__name__)


class Connection:
    """A client for as long as its socket is open. Requests run at the same time; answers carry their ids."""

    def __init__(self, websocket: WebSocket, backend: Backend, work: Work) -> None:
        self.outbox = Outbox()
        self._websocket = websocket
        self._hub = backend.hub
        self._context = Context(backend, self.outbox)
        self._work = work
        self._running = 0

    async def run(self) -> None:
        """Serve the client until either side closes. What it has asked for goes on without it (RACE-4)."""
        await self._websocket.accept()
        sender = asyncio.create_task(self._send(), name="websocket sender")
        try:
            await self._read()
        finally:
            self._hub.drop(self.outbox)
            self.outbox.close(1001)
            sender.cancel()
            await asyncio.wait([sender])  # not it itself: a cancel of this task would pass for the sender's own

    async def _read(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text: str | None = message.get("text")
            for item in protocol.decode_frame(message["bytes"] if text is None else text):
                self._take(item)

    def _take(self, item: protocol.Request | protocol.Refusal) -> None:
        if isinstance(item, protocol.Refusal):
            self.outbox.push(protocol.failure(item.id, item.action, item.error))
        elif self._work.stopping:
            self.outbox.push(protocol.failure(item.id, item.action, Stopping()))
        elif self._running >= REQUESTS_AT_ONCE:
            error = Unavailable(f"This connection already waits for {REQUESTS_AT_ONCE} answers.", reason="too_many")
            self.outbox.push(protocol.failure(item.id, item.action, error))
        else:
            self._running += 1
            self._work.start(f"request {item.action}", self._answer(item)).add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._running -= 1

    async def _answer(self, request: protocol.Request) -> None:
        # There is no await between the end of the action and the push: a subscription's answer comes before its events.
        try:
            answer = protocol.response(request, await perform(self._context, request))
        except asyncio.CancelledError:
            self.outbox.push(protocol.failure(request.id, request.action, Stopping()))
            raise
        except Exception as error:  # noqa: BLE001 - whatever failed, its client gets an answer and the log the rest
            answer = protocol.failure(request.id, request.action, _for_client(error, request.action))
        self.outbox.push(answer)

    async def _send(self) -> None:
        # A socket that is gone is noticed by the reader; here it only ends the sending.
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while frame := await self.outbox.take():
                await self._websocket.send_text(frame.decode())
            await self._websocket.close(self.outbox.closed_with or 1000)


def _for_client(error: Exception, action: str) -> KandevError:
    if isinstance(error, RuntimeUnreachable):
        return Unavailable(error.message, reason="unreachable")
    if isinstance(error, AgentError):
        log.error("an agent's error reached the gateway", action=action, error=error.message)
        return Internal(error.message)
    if isinstance(error, KandevError):
        return error
    if isinstance(error, TimeoutError):
        return TimedOut(f"{action} did not end in time.")
    log.error("a request failed", action=action, exc_info=error)
    return Internal("Something went wrong in the server. Its log says what.")
