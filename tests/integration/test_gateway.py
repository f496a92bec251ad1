"""The gateway over real sockets: uvicorn on a free port, before a stand-in for the services."""

import asyncio
import base64
import hashlib
import http.client
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self, cast

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from kandev.domain.models import Event
from kandev.errors import Conflict, Invalid, NotFound, Unavailable
from kandev.gateway.backend import Backend
from kandev.gateway.http import PAGE
from kandev.gateway.hub import Hub
from kandev.gateway.listening import bind, port_owner
from kandev.gateway.server import Server, serve
from kandev.home import Home
from kandev.orchestrator.views import CreateTask
from wire_client import CallFailed, Client

TOKEN = "t0ken-of-a-test-that-is-long-enough"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LIMIT = 30.0


class StandIn:
    """Answers as the services would: every service is this one object."""

    def __init__(self) -> None:
        self.boot_id = "boot1"
        self.hub = Hub(self.boot_id)
        self.tasks = self.operations = self.messages = self.permissions = self
        self.may_end = asyncio.Event()
        self.ended = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.texts: list[str] = []

    def snapshot(self, session_id: str) -> Mapping[str, Any]:
        if session_id == "unknown":
            raise NotFound("There is no session unknown.")
        return {"session": {"id": session_id}, "messages": []}

    async def resume_task_session(self, *_: object, **__: object) -> dict[str, Any]:
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.ended.set()
        return {"success": True}

    async def cancel_turn(self, *_: object) -> None:
        self.may_end.set()

    async def add(self, _: str, __: str, content: str, *___: object) -> dict[str, Any]:
        self.texts.append(content)
        return {"id": "m1", "content": content}

    async def complete(self, task_id: str) -> None:
        raise Conflict("It was completed before.", reason="session_completed", task=task_id)

    async def create(self, wanted: CreateTask) -> tuple[CreateTask, dict[str, str]]:
        return wanted, {"id": "s1"}

    async def list_agents(self) -> list[Any]:
        raise ZeroDivisionError("a secret of the inside")

    async def export(self, session_id: str) -> AsyncIterator[bytes]:
        if session_id == "unknown":
            raise NotFound("There is no session unknown.")
        for number in range(3):
            yield b'{"n": %d}\n' % number

    def say(self, action: str, session_id: str = "s1", **payload: Any) -> None:
        self.hub.publish([Event(action=action, payload=payload, session_id=session_id, task_id="t1")])


class Running:
    """A server in front of a stand-in, and how to reach it."""

    def __init__(self, home: Home, token: str = TOKEN, page: Path = PAGE) -> None:
        self.backend = StandIn()
        self.home = home
        self._token = token
        self._page = page
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        serving = serve(
            cast("Backend", self.backend), self.home, host="127.0.0.1", port=0, token=self._token, page=self._page
        )
        self.server: Server = await self._exit.enter_async_context(serving)
        self.port = int(self.server.url.rpartition(":")[2])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        await self._exit.aclose()

    def client(self) -> Any:
        return Client.connected(f"ws://127.0.0.1:{self.port}/ws", BEARER)

    def socket(self, **headers: str) -> connect:
        address = f"ws://127.0.0.1:{self.port}/ws"
        return connect(address, additional_headers={**BEARER, **headers}, proxy=None, max_size=None)

    async def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return await asyncio.to_thread(self._get, path, headers)

    def _get(self, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            connection.request("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
        finally:
            connection.close()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.prepare()
    return home


@pytest.fixture
async def running(home: Home) -> AsyncIterator[Running]:
    async with Running(home) as server:
        yield server


async def receive(client: ClientConnection) -> list[dict[str, Any]]:
    async with asyncio.timeout(LIMIT):
        frame = await client.recv()
    assert isinstance(frame, str)
    return [json.loads(line) for line in frame.split("\n")]


async def end(client: ClientConnection) -> None:
    """Reads until the server closes."""
    with suppress(ConnectionClosed):
        async with asyncio.timeout(LIMIT):
            while True:
                await client.recv()


async def test_a_request_gets_an_answer_with_its_id(running: Running) -> None:
    """An answer has the id and the action of its request, type response, and a timestamp."""
    async with running.socket() as client:
        await client.send('{"id": "7", "type": "request", "action": "health.check"}')
        (answer,) = await receive(client)
    assert (answer["id"], answer["type"], answer["action"]) == ("7", "response", "health.check")
    assert answer["payload"]["boot_id"] == "boot1"
    assert answer["payload"]["status"] == "ok"
    assert answer["timestamp"].endswith("Z")


async def test_a_slow_request_does_not_block_another_of_its_socket(running: Running) -> None:
    """A cancel is answered while a resume of the same socket still runs."""
    async with running.client() as client:
        ids = {"task_id": "t1", "session_id": "s1"}
        resume = asyncio.create_task(client.call("task.session.resume", {**ids, "wait": True}))
        await client.call("health.check")
        assert not resume.done()
        await client.call("task.session.cancel", ids)
        assert (await resume)["success"] is True


async def test_race_4_a_client_that_goes_away_does_not_abort_its_resume(running: Running) -> None:
    """The resume of a closed socket runs to its end."""
    async with running.socket() as client:
        payload = '{"task_id": "t1", "session_id": "s1"}'
        await client.send('{"id": 1, "action": "task.session.resume", "payload": ' + payload + "}")
        await client.send('{"id": 2, "action": "health.check"}')
        await receive(client)
    running.backend.may_end.set()
    await asyncio.wait_for(running.backend.ended.wait(), LIMIT)
    assert not running.backend.cancelled.is_set()


async def test_what_a_request_leaves_out_has_the_service_s_defaults(running: Running) -> None:
    """task.create with the least it needs, and with an explicit null, is the same task."""
    async with running.client() as client:
        least = {"description": "work", "agent": "demo"}
        short = await client.call("task.create", least)
        nulls = await client.call("task.create", {**least, "title": None, "start": None, "runtime": None})
    assert short == nulls
    assert (short["task"]["start"], short["task"]["in_place"], short["session"]["id"]) == (True, False, "s1")


async def test_errors_cross_the_wire_with_code_reason_and_details(running: Running) -> None:
    """A KandevError arrives as code, message and details; anything else as INTERNAL_ERROR without its text."""
    async with running.client() as client:
        with pytest.raises(CallFailed) as conflict:
            await client.call("task.complete", {"task_id": "t1"})
        with pytest.raises(CallFailed) as internal:
            await client.call("agent.list")
        with pytest.raises(CallFailed) as unknown:
            await client.call("task.explode")
        with pytest.raises(CallFailed) as invalid:
            await client.call("message.add", {"task_id": "t1", "content": "x"})
    assert (conflict.value.code, conflict.value.reason) == ("CONFLICT", "session_completed")
    assert conflict.value.details["task"] == "t1"
    assert internal.value.code == "INTERNAL_ERROR"
    assert "secret" not in internal.value.message
    assert unknown.value.code == "UNKNOWN_ACTION"
    assert (invalid.value.code, invalid.value.details["field"]) == ("VALIDATION_ERROR", "session_id")


async def test_rubbish_is_refused_and_the_socket_lives_on(running: Running) -> None:
    """Broken JSON, broken UTF-8, a wrong envelope and a good request share a socket; each gets its own answer."""
    async with running.socket() as client:
        await client.send('not json\n{"id": "a", "action": 5}\n\n{"id": "b", "action": "health.check"}')
        await client.send(b'\xff\xfe{"id": "c"}')
        answers: list[dict[str, Any]] = []
        while len(answers) < 4:
            answers += await receive(client)
    codes = [answer["payload"].get("code") for answer in answers if answer["type"] == "error"]
    assert codes == ["BAD_REQUEST"] * 3
    assert [answer["id"] for answer in answers if "id" in answer] == ["a", "b"]


async def test_a_frame_over_16_mb_closes_with_1009(running: Running) -> None:
    """A client that sends a frame beyond the limit is closed with 1009."""
    async with running.socket() as client:
        with suppress(ConnectionClosed):  # it may be closed while we still send
            await client.send("x" * (16 * 2**20 + 1))
        await end(client)
    assert client.close_code == 1009


async def test_content_with_every_character_arrives_whole(running: Running) -> None:
    """Line separators, emoji and control characters in a prompt are text and nothing else."""
    text = "a\u2028b\x85c\r\n\x1b[31m\U0001f600 d"
    async with running.client() as client:
        ids = {"task_id": "t1", "session_id": "s1"}
        answer = await client.call("message.add", {**ids, "content": text})
    assert running.backend.texts == [text]
    assert answer["message"]["content"] == text


async def test_a_subscription_answers_first_and_then_sends_exactly_what_comes_after(running: Running) -> None:
    """The snapshot carries the number of the last event before it; the next event has the next number."""
    running.backend.say("session.message.added")
    async with running.client() as client:
        snapshot = await client.call("session.subscribe", {"session_id": "s1"})
        assert (snapshot["gap"], snapshot["seq"], snapshot["boot_id"]) == (True, 1, "boot1")
        assert snapshot["session"] == {"id": "s1"}
        running.backend.say("session.message.delta", text="one")
        running.backend.say("session.message.delta", session_id="other", text="not ours")
        running.backend.say("session.message.delta", text="two")
        await client.wait_event("session.message.delta", lambda payload: payload["text"] == "two")
    assert [event["payload"]["seq"] for event in client.events] == [2, 3]
    assert client.events[0]["payload"] == {"text": "one", "task_id": "t1", "session_id": "s1", "seq": 2}


async def test_a_cursor_of_this_boot_gets_what_it_missed(running: Running) -> None:
    """After a lost connection the answer holds the missed events, and the stream goes on behind them."""
    for number in range(5):
        running.backend.say("session.message.delta", text=str(number))
    async with running.client() as client:
        since = {"boot_id": "boot1", "seq": 3}
        answer = await client.call("session.subscribe", {"session_id": "s1", "since": since})
        running.backend.say("session.message.delta", text="live")
        live = await client.wait_event("session.message.delta")
    assert (answer["gap"], answer["seq"]) == (False, 5)
    assert [event["payload"]["seq"] for event in answer["events"]] == [4, 5]
    assert live["seq"] == 6


async def test_ui_5_a_cursor_of_another_boot_gets_a_gap_and_a_snapshot(running: Running) -> None:
    """A cursor that means nothing to this boot gives the snapshot, and says so."""
    running.backend.say("session.message.delta")
    async with running.client() as client:
        since = {"boot_id": "boot0", "seq": 1}
        answer = await client.call("session.subscribe", {"session_id": "s1", "since": since})
    assert (answer["gap"], answer["session"]["id"]) == (True, "s1")


async def test_subscribing_to_an_unknown_session_is_not_found_and_subscribes_to_nothing(running: Running) -> None:
    """NOT_FOUND, and no event of that name reaches the socket."""
    async with running.client() as client:
        with pytest.raises(CallFailed) as refused:
            await client.call("session.subscribe", {"session_id": "unknown"})
        running.backend.say("session.message.delta", session_id="unknown")
        await client.call("health.check")
    assert refused.value.code == "NOT_FOUND"
    assert client.events == []


async def test_a_client_that_does_not_read_is_closed_with_1013(running: Running) -> None:
    """A subscriber that cannot keep up loses its socket, not the server its memory."""
    async with running.socket() as client:
        await client.send('{"id": 1, "action": "session.subscribe", "payload": {"session_id": "s1"}}')
        await receive(client)
        text = "x" * 100_000
        for _ in range(2_000):  # 200 MB: more than the sockets' buffers and the outbox together
            running.backend.say("session.message.delta", text=text)
            await asyncio.sleep(0)
        await end(client)
    assert client.close_code == 1013


async def test_a_stop_closes_sockets_with_1012_and_removes_server_json(home: Home) -> None:
    """Clients are told to come back, a request that runs is answered, and nothing is left behind."""
    async with Running(home) as running:
        written = json.loads(home.server_file.read_bytes())
        assert stat.S_IMODE(os.stat(home.server_file).st_mode) == 0o600
        assert (written["pid"], written["url"], written["boot_id"]) == (os.getpid(), running.server.url, "boot1")
        async with running.client() as client:
            ids = {"task_id": "t1", "session_id": "s1"}
            resume = asyncio.create_task(client.call("task.session.resume", ids))
            await client.call("health.check")
            await running.stop()
            with pytest.raises(CallFailed) as stopping:
                await resume
            with pytest.raises(ConnectionError):
                await client.wait_event("never")
        assert (stopping.value.code, stopping.value.reason) == ("UNAVAILABLE", "stopping")
        assert client.closed_with == 1012
        assert not home.server_file.exists()


async def test_sec_1_the_token_is_needed_everywhere_but_for_health(running: Running) -> None:
    """Without a token: 200 for health, 401 for the rest, no handshake for a WebSocket."""
    assert (await running.get("/healthz"))[0] == 200
    for path in ("/", "/tasks/t/sessions/s", "/metrics", "/api/sessions/s1/export", "/nothing"):
        status, _, body = await running.get(path)
        assert (path, status, json.loads(body)["code"]) == (path, 401, "UNAUTHORIZED")
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"ws://127.0.0.1:{running.port}/ws", proxy=None)
    assert refused.value.response.status_code == 401


async def test_sec_1_origin_and_host_are_checked_on_sockets_and_requests(running: Running) -> None:
    """Another origin, another port's origin and a foreign host name are refused, also with a good token."""
    ours = f"http://127.0.0.1:{running.port}"
    async with running.socket(Origin=ours) as client:
        await client.send('{"action": "health.check"}')
        await receive(client)
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "http://127.0.0.1:1"}, {"Origin": "null"}):
        with pytest.raises(InvalidStatus) as refused:
            await running.socket(**headers)
        assert refused.value.response.status_code == 403
    assert (await running.get("/healthz", Host="evil.example"))[0] == 403
    assert (await running.get("/metrics", Host=f"localhost:{running.port}", **BEARER))[0] == 200


async def test_a_token_in_a_page_s_address_becomes_a_cookie(running: Running) -> None:
    """The browser is sent to the same page without the token, with a cookie that opens the page and the socket."""
    status, headers, _ = await running.get(f"/tasks/t1/sessions/s1?token={TOKEN}&view=log")
    assert (status, headers["location"]) == (303, "/tasks/t1/sessions/s1?view=log")
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=Strict" in headers["set-cookie"]
    cookie = headers["set-cookie"].partition(";")[0]
    status, headers, body = await running.get("/", Cookie=cookie)
    assert status == 200
    assert "script-src 'self'" in headers["content-security-policy"]
    assert b"<!doctype html>" in body
    async with connect(f"ws://127.0.0.1:{running.port}/ws", additional_headers={"Cookie": cookie}, proxy=None):
        pass
    _, headers, _ = await running.get("/?token=wrong")
    assert "set-cookie" not in headers


async def test_a_browser_without_the_token_is_asked_for_it(running: Running) -> None:
    """The places of the page answer 401 with a form that sends `?token=`; it may run no script. Programs get JSON."""
    for path in ("/", "/tasks/t1/sessions/s1"):
        status, headers, body = await running.get(path, Accept="text/html,*/*")
        assert (status, headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert b'name="token"' in body
        assert "script-src" not in headers["content-security-policy"]
        assert "form-action 'self'" in headers["content-security-policy"]
        style = body.split(b"<style>")[1].split(b"</style>")[0]
        digest = base64.b64encode(hashlib.sha256(style).digest()).decode()
        assert f"'sha256-{digest}'" in headers["content-security-policy"]
    for path, accepted in (("/metrics", "text/html"), ("/", "*/*")):
        status, _, body = await running.get(path, Accept=accepted)
        assert (status, json.loads(body)["code"]) == (401, "UNAUTHORIZED")


async def test_the_page_is_served_where_it_was_built(home: Home, tmp_path: Path) -> None:
    """Board and session have the same document; its files are under /assets; nothing else is reachable."""
    page = tmp_path / "page"
    (page / "assets").mkdir(parents=True)
    (page / "index.html").write_text("the page")
    (page / "assets" / "app.js").write_text("let x")
    (tmp_path / "secret.js").write_text("secret")
    async with Running(home, page=page) as running:
        for path in ("/", "/tasks/t1/sessions/s1"):
            assert (await running.get(path, **BEARER))[2] == b"the page"
        status, headers, body = await running.get("/assets/app.js", **BEARER)
        assert (status, body, headers["x-content-type-options"]) == (200, b"let x", "nosniff")
        assert "immutable" in headers["cache-control"]
        assert (await running.get("/", **BEARER))[1]["cache-control"] == "no-cache"
        for path in ("/assets/../../secret.js", "/assets/%2e%2e/%2e%2e/secret.js", "/assets/nothing.js"):
            assert (await running.get(path, **BEARER))[0] == 404


async def test_the_export_is_json_lines_and_unknown_paths_are_json(running: Running) -> None:
    """An export streams; an unknown session and an unknown path are 404 with a JSON body."""
    status, headers, body = await running.get("/api/sessions/s1/export", **BEARER)
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    assert [json.loads(line)["n"] for line in body.splitlines()] == [0, 1, 2]
    for path in ("/api/sessions/unknown/export", "/api/sessions/..%2fx/export", "/api/sessions/a.b/export", "/nothing"):
        status, _, body = await running.get(path, **BEARER)
        assert (path, status, json.loads(body)["code"]) == (path, 404, "NOT_FOUND")


async def test_metrics_count_what_happened(running: Running) -> None:
    """Resumes by how, prompts and open sockets are in the metrics."""
    running.backend.say("session.resume.completed", how="native")
    running.backend.say("session.turn.started")
    async with running.client():
        text = (await running.get("/metrics", **BEARER))[2].decode()
    for line in ('kandev_resumes_total{how="native"} 1.0', "kandev_prompts_total 1.0", "kandev_websocket_clients 1.0"):
        assert line in text.splitlines()


async def test_sec_3_a_token_is_never_logged(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    """A token in an address, right or wrong, is in no log record."""
    async with connect(f"ws://127.0.0.1:{running.port}/ws?token={TOKEN}", proxy=None) as client:
        await client.send('{"action": "health.check"}')
        await receive(client)
    await running.get(f"/?token={TOKEN}")
    server_records = [record for record in caplog.records if not record.name.startswith("websockets.client")]
    assert TOKEN not in "\n".join(record.getMessage() for record in server_records)


async def test_proc_5_a_port_in_use_names_its_owner(home: Home) -> None:
    """The error says who has the port and what to do."""
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(Unavailable, match=f"in use by process {os.getpid()}") as refused:
            async with serve(cast("Backend", StandIn()), home, host="127.0.0.1", port=port, token=TOKEN):
                pass
        assert port_owner(port) == (os.getpid(), Path("/proc/self/comm").read_text().strip())
    assert (refused.value.reason, refused.value.details["pid"]) == ("port_in_use", os.getpid())
    assert not home.server_file.exists()


async def test_without_a_token_the_server_stays_on_loopback(home: Home) -> None:
    """No authentication beyond loopback is refused before anything listens; on loopback it works."""
    with pytest.raises(Invalid):
        async with serve(cast("Backend", StandIn()), home, host="0.0.0.0", port=0, token=""):
            pass
    async with Running(home, token="") as running:
        assert (await running.get("/metrics"))[0] == 200
        assert (await running.get("/metrics", Origin="http://evil.example"))[0] == 403


async def test_the_listening_socket_sets_no_delay_on_its_connections() -> None:
    """The protocol number is TCP's, without which asyncio leaves Nagle on."""
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
