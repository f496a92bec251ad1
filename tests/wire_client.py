"""A client of the server's WebSocket that knows the envelope and nothing else."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

LIMIT = 60.0
"""Seconds after which a wait is given up: far beyond what anything here takes, even on a busy machine."""

FRAME_LIMIT = 16 * 2**20
"""Bytes of the largest frame that the server sends."""

Event = dict[str, Any]


class CallFailed(Exception):
    """Raised for an error frame: `code`, `reason` and all `details` of its payload."""

    def __init__(self, action: str, payload: Mapping[str, Any]) -> None:
        super().__init__(f"{action}: {payload}")
        self.code: str = payload.get("code", "")
        self.details: Mapping[str, Any] = payload.get("details") or {}
        self.reason: str = self.details.get("reason", "")
        self.message: str = payload.get("message", "")


class Client:
    """One connection. Answers go to their callers; notifications are kept, in order, in `events`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Event]] = {}
        self._news = asyncio.Condition()
        self.events: list[Event] = []
        self.closed_with: int | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, address: str, headers: Mapping[str, str]) -> AsyncIterator[Self]:
        """Connects, reads for as long as the block runs, and closes."""
        # A proxy in the environment is for other hosts.
        async with connect(address, additional_headers=headers, max_size=FRAME_LIMIT, proxy=None) as connection:
            client = cls(connection)
            reader = asyncio.create_task(client._read(), name="wire client")
            try:
                yield client
            finally:
                await connection.close()
                await reader

    async def call(self, action: str, payload: Mapping[str, Any] | None = None) -> Any:
        """The payload of the answer. Raises CallFailed for an error, ConnectionError when the server went away."""
        if self.closed_with is not None:
            raise ConnectionError(f"closed with {self.closed_with}")
        number = str(next(self._numbers))
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "type": "request", "action": action, "payload": payload or {}}
        try:
            async with asyncio.timeout(LIMIT):
                await self._send(json.dumps(message))
                frame = await answer
        finally:
            del self._waiting[number]
        if frame["type"] == "error":
            raise CallFailed(action, frame["payload"])
        return frame["payload"]

    async def wait_event(self, action: str, matches: Callable[[Any], bool] = bool, *, after: int = 0) -> Any:
        """The payload of the first such event, come or to come, at or behind position `after` of `events`.

        `matches` looks at the payload. Raises ConnectionError when the connection ends first.
        """
        position = after
        async with asyncio.timeout(LIMIT), self._news:
            while True:
                while position < len(self.events):
                    event, position = self.events[position], position + 1
                    if event["action"] == action and matches(event["payload"]):
                        return event["payload"]
                if self.closed_with is not None:
                    raise ConnectionError(f"closed with {self.closed_with} before {action}")
                await self._news.wait()

    def seen(self, action: str) -> list[Any]:
        """The payloads of all events of this kind so far."""
        return [event["payload"] for event in self.events if event["action"] == action]

    async def _send(self, text: str) -> None:
        try:
            await self._connection.send(text)
        except ConnectionClosed as closed:
            raise ConnectionError(str(closed)) from closed

    async def _read(self) -> None:
        try:
            async for frame in self._connection:
                for line in frame.splitlines() if isinstance(frame, bytes) else frame.split("\n"):
                    await self._take(json.loads(line))
        except ConnectionClosed:
            pass  # the server was killed, which is what many tests are about; close_code tells
        finally:
            await self._finish()

    async def _take(self, message: Event) -> None:
        if message["type"] == "notification":
            async with self._news:
                self.events.append(message)
                self._news.notify_all()
        elif (answer := self._waiting.get(str(message.get("id")))) and not answer.done():
            answer.set_result(message)

    async def _finish(self) -> None:
        self.closed_with = self._connection.close_code or 1006
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError(f"closed with {self.closed_with}"))
                answer.exception()  # whoever could not even send does not wait for it
        async with self._news:
            self._news.notify_all()
