"""Clients: each follows all sessions over one WebSocket, keeps cursors, reconnects, and acts for a person."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from websockets.exceptions import WebSocketException

from chaos.mirror import Json, Mirror
from chaos.stage import Stage
from wire_client import CallFailed, Client

AGAIN_S: Final = 0.03
PAGE: Final = 200


class Tab:
    """One client. It follows for as long as `run` runs; `cut` loses its connection."""

    def __init__(self, name: str, stage: Stage) -> None:
        self.name = name
        self.mirrors: dict[str, Mirror] = {}
        self.problems: list[str] = []
        self.connections = 0
        self.events = 0
        self._stage = stage
        self._client: Client | None = None
        self._connected = asyncio.Event()
        self._watchers: list[tuple[Callable[[Json], bool], asyncio.Future[Json]]] = []

    def follow(self, session_ids: Sequence[str]) -> None:
        """Names the sessions, before `run`."""
        self.mirrors = {session_id: Mirror(session_id) for session_id in session_ids}

    async def run(self) -> None:
        """Connects, follows, and connects again, until it is cancelled."""
        while True:
            try:
                await self._connection()
            except (OSError, WebSocketException, TimeoutError, CallFailed) as error:
                if isinstance(error, CallFailed) and error.code != "UNAVAILABLE":
                    self.problems.append(f"{self.name}: {error}")
                await asyncio.sleep(AGAIN_S)

    async def _connection(self) -> None:
        if not self._stage.up:
            await asyncio.sleep(AGAIN_S)
            return
        async with self._stage.client() as client:
            self.connections += 1
            try:
                for mirror in self.mirrors.values():
                    await self._subscribe(client, mirror)
                self._client = client
                self._connected.set()
                await self._listen(client)
            finally:
                self._connected.clear()
                self._client = None

    async def _subscribe(self, client: Client, mirror: Mirror) -> None:
        request: dict[str, Any] = {"session_id": mirror.session_id}
        if mirror.cursor is not None:
            request["since"] = mirror.cursor
        answer = await client.call("session.subscribe", request)
        mirror.take_answer(answer)
        while answer["gap"] and mirror.oldest > 1:
            asked = {"session_id": mirror.session_id, "before": mirror.oldest, "limit": PAGE}
            page = await client.call("message.list", asked)
            if not page["messages"]:
                break
            mirror.add_older(page["messages"])

    async def _listen(self, client: Client) -> None:
        taken = 0
        while client.closed_with is None or taken < len(client.events):
            fresh = client.events[taken:]
            taken += len(fresh)
            self.events += len(fresh)
            for event in fresh:
                mirror = self.mirrors.get(event["payload"].get("session_id", ""))
                if mirror is not None:
                    mirror.take(event)
                    self._tell(event)
            async with client._news:
                while client.closed_with is None and taken == len(client.events):
                    await client._news.wait()

    def next_event(self, matches: Callable[[Json], bool]) -> asyncio.Future[Json]:
        """The next event like that, as soon as it is seen."""
        seen: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._watchers.append((matches, seen))
        return seen

    def _tell(self, event: Json) -> None:
        self._watchers = [(matches, seen) for matches, seen in self._watchers if not seen.done()]
        for matches, seen in self._watchers:
            if matches(event):
                seen.set_result(event)

    async def call(self, action: str, payload: Mapping[str, Any]) -> Any:
        """Asks over the connection, once there is one. Raises CallFailed, ConnectionError, TimeoutError."""
        await self._connected.wait()
        client = self._client
        if client is None:
            raise ConnectionError("lost just now")
        return await client.call(action, payload)

    def listen(self, *, again: bool) -> None:
        """Stops reading what comes, or goes on."""
        if self._client is not None:
            transport = self._client._connection.transport
            (transport.resume_reading if again else transport.pause_reading)()

    def cut(self) -> None:
        """Loses the connection, without a word to the other side."""
        if self._client is not None:
            self._client._connection.transport.abort()


__all__ = ["CallFailed", "Tab"]
