"""The events of one session across restarts of the backend: nothing twice, and a gap is filled from a snapshot."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from kandev.cli.address import Address, NoBackend
from kandev.cli.client import CALL_TIMEOUT_S, Client, ConnectionLost
from kandev.errors import KandevError

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
UPDATES_HELD = 20_000  # for a reader that is slower than the session; beyond it a snapshot takes their place


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything there is to know of the session now; comes first, and after a gap."""

    payload: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Notification:
    """One event of the session."""

    action: str
    payload: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The connection is gone; the follower connects again by itself."""


Update = Snapshot | Notification | Lost


class Follower:
    """Subscribes to one session and keeps a cursor (boot id and number of the last event).

    It begins on `client` and closes it. When that or a later connection is lost it tries for ever, with back-off;
    `locate` is asked at each attempt, because a restarted backend may listen on another port.
    """

    def __init__(self, client: Client, locate: Callable[[], Address], session_id: str) -> None:
        self._first = client
        self._locate = locate
        self._session_id = session_id
        self._client: Client | None = None
        self._changed = asyncio.Event()  # a connection was made, or the follower gave up
        self._cursor: dict[str, Any] | None = None
        self._updates: asyncio.Queue[Update] = asyncio.Queue(maxsize=UPDATES_HELD)
        self._pump: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._pump = asyncio.create_task(self._follow(self._first), name=f"follow-{self._session_id}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._pump is not None
        self._pump.cancel()
        await asyncio.wait([self._pump])  # not it itself: a cancel of the caller would pass for the pump's own
        if not self._pump.cancelled() and not isinstance(self._pump.exception(), KandevError):
            self._pump.result()

    async def updates(self) -> AsyncGenerator[Update]:
        """Yield a snapshot, then every event; after a lost connection `Lost`, then what came after, or a snapshot.

        Raises what the backend refuses: NotFound for a session that was deleted, Unauthorized.
        """
        assert self._pump is not None
        while True:
            while not self._updates.empty():
                yield self._updates.get_nowait()
            waiting = asyncio.ensure_future(self._updates.get())
            try:
                await asyncio.wait({waiting, self._pump}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not waiting.done():
                    waiting.cancel()
            if not waiting.done():
                self._pump.result()
                return
            yield waiting.result()

    async def call(self, action: str, /, **payload: Any) -> dict[str, Any]:
        """Call, and call again after a lost connection; so `action` must be one that may be repeated."""
        return await self.call_within(CALL_TIMEOUT_S, action, **payload)

    async def call_within(self, timeout_s: float | None, action: str, /, **payload: Any) -> dict[str, Any]:
        """Call with another time limit for each attempt; None for none."""
        assert self._pump is not None
        while True:
            await self._changed.wait()
            if self._pump.done():
                self._pump.result()
            client = self._client
            assert client is not None
            try:
                return await client.call_within(timeout_s, action, **payload)
            except ConnectionLost:
                if self._client is client:
                    self._changed.clear()

    async def _follow(self, client: Client) -> None:
        try:
            while True:
                async with client:
                    with contextlib.suppress(ConnectionLost):
                        await self._subscribe(client)
                self._changed.clear()
                self._put(Lost())
                client = await self._connect_again()
        finally:
            self._changed.set()

    async def _subscribe(self, client: Client) -> None:
        answer = await client.call("session.subscribe", session_id=self._session_id, since=self._cursor)
        boot_id = str(answer.get("boot_id", ""))
        if "session" in answer:
            self._cursor = {"boot_id": boot_id, "seq": answer["seq"]}
            self._put(Snapshot(payload=answer))
        self._client = client
        self._changed.set()
        for event in answer.get("events", []):
            self._accept(boot_id, event)
        async for event in client.events():
            if not self._accept(boot_id, event):
                return

    def _accept(self, boot_id: str, event: dict[str, Any]) -> bool:
        """Keep one event; False when the reader is so far behind that a new snapshot is cheaper."""
        payload = event["payload"]
        if payload.get("session_id") != self._session_id:
            return True
        if isinstance(seq := payload.get("seq"), int):
            if self._cursor and self._cursor["boot_id"] == boot_id and seq <= self._cursor["seq"]:
                return True
            self._cursor = {"boot_id": boot_id, "seq": seq}
        return self._put(Notification(action=event["action"], payload=payload))

    def _put(self, update: Update) -> bool:
        try:
            self._updates.put_nowait(update)
        except asyncio.QueueFull:
            while not self._updates.empty():
                self._updates.get_nowait()
            self._cursor = None
            return False
        return True

    async def _connect_again(self) -> Client:
        wait_s = FIRST_WAIT_S
        while True:
            try:
                return await Client.open(self._locate())
            except NoBackend:
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, LONGEST_WAIT_S)
