"""The client of the command line against a server that drops it, restarts, repeats itself and forgets."""

import asyncio
import http.server
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve

from kandev.cli.address import Address, NoBackend
from kandev.cli.client import Client, ConnectionLost
from kandev.cli.follow import Follower, Lost, Notification, Snapshot
from kandev.errors import Conflict, Unauthorized

LIMIT_S = 20.0


class StandIn:
    """A server with one session "s": its events in a ring, its restarts at will."""

    def __init__(self) -> None:
        self.boot_id, self.seq, self.ring = "boot-1", 0, list[dict[str, Any]]()
        self.added: dict[str, str] = {}
        self.drop_after_add = False
        self.sockets: set[ServerConnection] = set()
        self.server: Server | None = None
        self.token = ""

    async def start(self) -> None:
        self.server = await serve(self._handle, "127.0.0.1", 0, process_request=self._check)

    async def stop(self) -> None:
        assert self.server is not None
        self.server.close()
        await self.server.wait_closed()

    async def restart(self) -> None:
        await self.stop()
        self.boot_id, self.seq, self.ring = "boot-2", 0, []
        await self.start()

    def locate(self) -> Address:
        assert self.server is not None
        port = next(iter(self.server.sockets)).getsockname()[1] if self.server.sockets else 1
        return Address(url=f"http://127.0.0.1:{port}", token="t")

    async def client(self) -> Client:
        return await Client.open(self.locate())

    async def publish(self, text: str) -> None:
        self.seq += 1
        payload = {"session_id": "s", "seq": self.seq, "text": text}
        self.ring.append({"type": "notification", "action": "session.said", "payload": payload})
        for socket in list(self.sockets):
            await socket.send(json.dumps(self.ring[-1]) + "\n" + json.dumps(self.ring[-1]))

    def _check(self, socket: ServerConnection, request: Any) -> Any:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return socket.respond(401, "")
        return None

    async def _handle(self, socket: ServerConnection) -> None:
        self.sockets.add(socket)
        try:
            async for frame in socket:
                request = json.loads(frame)
                kind, payload = self._answer(request["action"], request["payload"])
                if request["action"] == "message.add" and self.drop_after_add:
                    self.drop_after_add = False
                    await socket.close(1012)
                    return
                if kind:
                    await socket.send(json.dumps({"id": request["id"], "type": kind, "payload": payload}))
        finally:
            self.sockets.discard(socket)

    def _answer(self, action: str, payload: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if action == "session.subscribe":
            head = {"boot_id": self.boot_id, "seq": self.seq}
            since = payload.get("since")
            if since and since["boot_id"] == self.boot_id:
                return "response", {**head, "gap": False, "events": self.ring[since["seq"] :]}
            return "response", {**head, "gap": True, "session": {"id": "s"}}
        if action == "message.add":
            client_id = payload["client_message_id"]
            return "response", {"message": {"id": self.added.setdefault(client_id, f"m{len(self.added)}")}}
        if action == "never":
            return "", {}
        if action == "refuse":
            return "error", {"code": "CONFLICT", "message": "no", "details": {"reason": "parked", "extra": 1}}
        return "response", {"echo": payload}


@asynccontextmanager
async def standing() -> AsyncIterator[StandIn]:
    stand_in = StandIn()
    await stand_in.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            yield stand_in
    finally:
        await stand_in.stop()


async def test_calls_overlap_and_missing_fields_are_left_out() -> None:
    """Each answer finds its call; a field that is None is not sent."""
    async with standing() as stand_in, await Client.open(stand_in.locate()) as client:
        answers = await asyncio.gather(*(client.call("echo", number=number, nothing=None) for number in range(50)))
    assert [answer["echo"] for answer in answers] == [{"number": number} for number in range(50)]


async def test_an_error_comes_as_the_class_that_was_raised() -> None:
    """With its reason and details."""
    async with standing() as stand_in, await Client.open(stand_in.locate()) as client:
        with pytest.raises(Conflict) as caught:
            await client.call("refuse")
    assert (caught.value.reason, caught.value.details) == ("parked", {"extra": 1})


async def test_a_call_without_an_answer_fails_when_the_server_goes() -> None:
    """It does not hang, and later calls fail too."""
    async with standing() as stand_in, await Client.open(stand_in.locate()) as client:
        waiting = asyncio.ensure_future(client.call("never"))
        await client.call("echo")
        await stand_in.restart()
        with pytest.raises(ConnectionLost):
            await waiting
        with pytest.raises(ConnectionLost):
            await client.call("echo")


async def test_who_is_not_let_in_is_told_why() -> None:
    """A wrong token is not "no backend"."""
    async with standing() as stand_in:
        stand_in.token = "another"
        with pytest.raises(Unauthorized, match="token"):
            await Client.open(stand_in.locate())


class OtherProgram(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def other_program() -> Iterator[Address]:
    """A web server that is no backend."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), OtherProgram)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Address(url=f"http://127.0.0.1:{server.server_port}", token="")
    server.shutdown()
    thread.join()
    server.server_close()


async def test_another_program_on_the_port_is_no_backend(other_program: Address) -> None:
    """A port that was taken over by something else is named as such; so is one where nothing listens."""
    with pytest.raises(NoBackend, match="is no kandev backend"):
        await Client.open(other_program)
    with pytest.raises(NoBackend, match="kandev serve"):
        await Client.open(Address(url="http://127.0.0.1:1", token=""))


async def test_ui_5_events_missed_while_the_connection_was_lost_come_once() -> None:
    """After a lost connection to the same boot the follower gets what it missed, and nothing a second time."""
    async with (
        standing() as stand_in,
        Follower(await stand_in.client(), stand_in.locate, "s") as follower,
        aclosing(follower.updates()) as updates,
    ):
        assert isinstance(await anext(updates), Snapshot)
        await stand_in.publish("one")
        assert said(await anext(updates)) == "one"
        await next(iter(stand_in.sockets)).close(1013)
        await stand_in.publish("two")
        assert isinstance(await anext(updates), Lost)
        assert said(await anext(updates)) == "two"
        await stand_in.publish("three")
        assert said(await anext(updates)) == "three"


async def test_ui_5_after_a_restart_a_snapshot_takes_the_place_of_the_gap() -> None:
    """Another boot counts from anew, so its first events are not mistaken for old ones."""
    async with (
        standing() as stand_in,
        Follower(await stand_in.client(), stand_in.locate, "s") as follower,
        aclosing(follower.updates()) as updates,
    ):
        await anext(updates)
        await stand_in.publish("one")
        await anext(updates)
        await stand_in.restart()
        assert isinstance(await anext(updates), Lost)
        snapshot = await anext(updates)
        assert isinstance(snapshot, Snapshot)
        assert snapshot.payload["boot_id"] == "boot-2"
        await stand_in.publish("new")
        assert said(await anext(updates)) == "new"


async def test_prompt_2_a_call_is_made_again_with_the_same_id_after_a_lost_answer() -> None:
    """The server stored the message and died before it said so: the repeat finds it."""
    async with standing() as stand_in, Follower(await stand_in.client(), stand_in.locate, "s") as follower:
        stand_in.drop_after_add = True
        answer = await follower.call("message.add", content="x", client_message_id="c1")
    assert answer["message"]["id"] == "m0"
    assert stand_in.added == {"c1": "m0"}


async def test_a_follower_that_is_refused_says_so() -> None:
    """When the token was changed by a restart, whoever waits is told instead of waiting for ever."""
    async with (
        standing() as stand_in,
        Follower(await stand_in.client(), stand_in.locate, "s") as follower,
        aclosing(follower.updates()) as updates,
    ):
        await anext(updates)
        waiting = asyncio.ensure_future(follower.call("never"))
        stand_in.token = "another"
        await stand_in.restart()
        assert isinstance(await anext(updates), Lost)
        with pytest.raises(Unauthorized):
            await anext(updates)
        with pytest.raises(Unauthorized):
            await waiting


def said(update: object) -> str:
    assert isinstance(update, Notification)
    return str(update.payload["text"])


async def test_a_cancel_that_comes_while_a_client_closes_is_not_lost() -> None:
    """It is the caller's, and no end of the reader: `kandev agents check` would go on after SIGTERM."""
    async with standing() as server:
        client = await server.client()
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)  # it waits for the reader now
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await client.close()
