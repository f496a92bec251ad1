"""Clear errors with stable codes: what cannot be started, what is not there, what is asked for in a wrong way."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from backend import Backend
from conversation import Cast, Conversation
from fakes import FakeAgent
from wire_client import CallFailed, Client

UNKNOWN_ID = "0123456789abcdef0123"


def broken_agents(directory: Path) -> str:
    """Tables of agents that cannot be started, each in its own way."""
    directory.mkdir()
    (directory / "noise").write_bytes(b"\x7fNOT A PROGRAM\n")
    (directory / "script").write_text("#!/no/such/interpreter\n")
    (directory / "plain").write_text("echo\n")
    for name in ("noise", "script"):
        (directory / name).chmod(0o755)
    commands = {
        "missing": ["no-such-agent", "--acp"],
        "noise": [str(directory / "noise")],
        "script": [str(directory / "script")],
        "plain": [str(directory / "plain")],
        "directory": [str(directory)],
    }
    tables = [f"[agents.{name}]\ncommand = {json.dumps(command)}\n" for name, command in commands.items()]
    return "".join(tables)


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """The fake agents of this module."""
    return Cast(tmp_path_factory.mktemp("cast"), each=12)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory, cast: Cast) -> AsyncIterator[Backend]:
    """A shared backend that knows the broken agents too, and does not wait long."""
    directory = tmp_path_factory.mktemp("stage")
    config = cast.config + broken_agents(directory / "broken")
    environment = {"KANDEV__TIMING__RPC_INACTIVITY_S": "1", "KANDEV__LIMITS__EVENT_BUFFER_COUNT": "20"}
    async with Backend(directory, config=config, environment=environment) as backend:
        await backend.start()
        yield backend


async def failure(client: Client, action: str, payload: Mapping[str, Any]) -> CallFailed:
    """The error that a request gets."""
    with pytest.raises(CallFailed) as error:
        await client.call(action, payload)
    return error.value


# Agents that cannot be started


@pytest.mark.parametrize("name", ["missing", "noise", "script", "plain", "directory"])
async def test_tok_2_a_command_that_cannot_be_executed_is_named(client: Client, name: str) -> None:
    """FAILED with the command and the reason, the prompt kept and held; the backend and others go on."""
    created = await client.call("task.create", {"agent": name, "description": "first", "start": False})
    ids = {"task_id": created["task"]["id"], "session_id": created["session"]["id"]}
    await client.call("session.subscribe", {"session_id": ids["session_id"]})
    await client.call("task.session.start", ids)
    failed = await client.wait_event("session.resume.failed", lambda p: p["session_id"] == ids["session_id"])
    assert failed["cause"] == "start_failed"
    assert {"missing": "no-such-agent", "directory": "broken"}.get(name, f"broken/{name}") in failed["message"]
    status = await client.call("task.session.status", ids)
    assert (status["state"], status["queue_held"], status["queued"]) == ("FAILED", "send_failed", 1)
    assert status["error"] == failed["message"]
    assert "resume" in status["recover_actions"]
    found = await client.call("task.get", {"task_id": ids["task_id"]})
    assert found["task"]["state"] == "FAILED"
    (notice,) = (await client.call("message.list", ids))["messages"]
    assert (notice["type"], notice["metadata"]["kind"]) == ("error", "start_failed")
    refused = await failure(client, "message.add", {**ids, "content": "more"})
    assert (refused.code, refused.reason) == ("CONFLICT", "session_ended")


async def test_a_mended_command_is_recovered(tmp_path: Path, cast: Cast) -> None:
    """The program is there now: recover starts the session, and its prompt goes out."""
    agent = FakeAgent(tmp_path / "agent")
    program = tmp_path / "agent" / "program"
    config = f"[agents.own]\ncommand = {json.dumps([str(program)])}\nnative_session_resume = true\n"
    async with Backend(tmp_path, config=config) as backend:
        await backend.start()
        async with backend.client() as client:
            created = await client.call("task.create", {"agent": "own", "description": "first", "start": False})
            session = Conversation(client, agent, created["task"]["id"], created["session"]["id"])
            await session.follow(client)
            await session.act("task.session.start")
            await session.event("session.resume.failed")
            program.write_text(f"#!/bin/sh\nexec {' '.join(agent.command)}\n")
            program.chmod(0o755)
            assert (await session.recover("resume"))["how"] in {"fresh", "idle"}
            await session.turn_ended()
            assert agent.prompts() == ["first"]
            assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")


async def test_an_agent_that_ends_at_once_tells_its_last_words(client: Client, cast: Cast) -> None:
    """Exit code and stderr of a start that failed are in the notice."""
    session = await cast.conversation(client, start=[{"stderr": "cannot find my licence"}, {"die": 9}])
    await session.act("task.session.start")
    await session.event("session.resume.failed")
    notice = await session.notice("start_failed")
    assert notice["metadata"]["exit_code"] == 9
    assert "my licence" in notice["metadata"]["stderr"]
    assert "my licence" in (await session.call("session.logs"))["stderr"]


async def test_wire_10_an_agent_that_says_nothing_is_given_up(client: Client, cast: Cast) -> None:
    """No message within the deadline: the start ends with a reason, the prompt is kept, the next try may be good."""
    session = await cast.conversation(client, on={"initialize": {"silent": True}})
    await session.act("task.session.start")
    failed = await session.event("session.resume.failed")
    assert "initialize" in failed["message"]
    assert (await session.states())[0] in {"WAITING_FOR_INPUT", "FAILED"}
    assert (await session.queue())[0] == ["first"]
    await session.agent.until(lambda: session.agent.alive() == [])
    session.agent.update(on={})
    await session.recover("resume")
    await session.turn_ended()
    assert session.agent.prompts() == ["first"]


async def test_an_agent_of_a_later_protocol_is_refused(client: Client, cast: Cast) -> None:
    """A version that we do not speak is said in words."""
    session = await cast.conversation(client, on={"initialize": {"merge": {"protocolVersion": 99}}})
    await session.act("task.session.start")
    failed = await session.event("session.resume.failed")
    assert "version 99" in failed["message"]
    await session.agent.until(lambda: session.agent.alive() == [])


# What is not there


async def test_unknown_names_and_ids_are_not_found(client: Client) -> None:
    """An unknown agent, task, session, message, turn or request is NOT_FOUND; an unknown runtime is invalid."""
    created = await client.call("task.create", {"agent": "demo", "description": "first", "start": False})
    task, session = created["task"]["id"], created["session"]["id"]
    both = {"task_id": task, "session_id": UNKNOWN_ID}
    mine = {"task_id": task, "session_id": session}
    missing: list[tuple[str, dict[str, Any]]] = [
        ("task.create", {"agent": "nobody", "description": "first"}),
        ("agent.check", {"name": "nobody"}),
        ("task.get", {"task_id": UNKNOWN_ID}),
        ("task.update", {"task_id": UNKNOWN_ID, "title": "t"}),
        ("task.complete", {"task_id": UNKNOWN_ID}),
        ("task.delete", {"task_id": UNKNOWN_ID}),
        ("task.session.list", {"task_id": UNKNOWN_ID}),
        ("task.session.create", {"task_id": UNKNOWN_ID}),
        ("task.session.create", {"task_id": task, "from_session_id": UNKNOWN_ID}),
        ("message.get", {"message_id": UNKNOWN_ID}),
        ("turn.send_again", {**mine, "turn_id": UNKNOWN_ID}),
        ("permission.respond", {**mine, "request_id": UNKNOWN_ID, "cancelled": True}),
        ("id.resolve", {"id": "ffffffff"}),
        *((action, {**both, **more}) for action, more in OF_A_SESSION.items()),
    ]
    for action, payload in missing:
        assert (action, (await failure(client, action, payload)).code) == (action, "NOT_FOUND")
    invalid = await failure(client, "task.create", {"agent": "demo", "description": "first", "runtime": "moon"})
    assert (invalid.code, invalid.details["field"]) == ("VALIDATION_ERROR", "runtime")


OF_A_SESSION: dict[str, dict[str, Any]] = {
    "task.session.get": {},
    "task.session.start": {},
    "task.session.status": {},
    "task.session.resume": {},
    "task.session.recover": {"action": "resume"},
    "task.session.cancel": {},
    "task.session.stop": {},
    "task.session.delete": {},
    "message.add": {"content": "text"},
}
"""The actions that take a task and a session, and what else they need."""


async def test_a_session_of_another_task_is_not_found(client: Client) -> None:
    """The right session with the wrong task is nobody's."""
    tasks = [
        await client.call("task.create", {"agent": "demo", "description": "first", "start": False}) for _ in range(2)
    ]
    mixed = {"task_id": tasks[0]["task"]["id"], "session_id": tasks[1]["session"]["id"]}
    for action, more in OF_A_SESSION.items():
        assert (action, (await failure(client, action, {**mixed, **more})).code) == (action, "NOT_FOUND")
    source = {"task_id": mixed["task_id"], "from_session_id": mixed["session_id"]}
    assert (await failure(client, "task.session.create", source)).code == "NOT_FOUND"
    untouched = await client.call("task.session.get", {"session_id": mixed["session_id"]})
    assert untouched["session"]["state"] == "CREATED"


# What is asked for in a wrong way


async def test_wrong_requests_say_what_is_wrong(client: Client, tmp_path: Path) -> None:
    """A missing field, a wrong type, an empty text, a path for an id, no repository, an unknown action."""
    plain = tmp_path / "plain"
    plain.mkdir()
    create = {"agent": "demo", "description": "first"}
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("task.create", {"agent": "demo"}, "VALIDATION_ERROR"),
        ("task.create", {**create, "description": 7}, "VALIDATION_ERROR"),
        ("task.create", {**create, "description": "  \n "}, "VALIDATION_ERROR"),
        ("task.create", {**create, "repository_path": str(plain)}, "VALIDATION_ERROR"),
        ("task.create", {**create, "repository_path": str(tmp_path / "none")}, "VALIDATION_ERROR"),
        ("task.get", {"task_id": "../../etc/passwd"}, "VALIDATION_ERROR"),
        ("session.subscribe", {"session_id": "a/b"}, "VALIDATION_ERROR"),
        ("message.list", {"session_id": UNKNOWN_ID, "limit": 100000}, "VALIDATION_ERROR"),
        ("task.session.recover", {"task_id": UNKNOWN_ID, "session_id": UNKNOWN_ID, "action": "x"}, "VALIDATION_ERROR"),
        ("task.fly", {}, "UNKNOWN_ACTION"),
    ]
    for action, payload, code in wrong:
        error = await failure(client, action, payload)
        assert (action, payload, error.code) == (action, payload, code)
        assert error.message
    assert (await client.call("health.check"))["status"] == "ok"


# Two of one


async def test_race_8_a_second_backend_on_one_home_refuses_to_start(stage: Backend) -> None:
    """It names the pid and the file, ends at once, and the first one does not notice."""
    result = await stage.cli("serve", "--port", "0")
    assert result.code not in {0, None}
    said = f"{result.answer}{result.errors}"
    assert str(stage.pid) in said
    assert str(stage.home / "lock") in said
    assert json.loads((stage.home / "server.json").read_text())["pid"] == stage.pid
    async with stage.client() as client:
        assert (await client.call("health.check"))["status"] == "ok"


async def test_proc_5_a_port_in_use_is_told_with_its_owner(backend: Backend) -> None:
    """One error that names the port and, where it can be seen, the process; no session is harmed by it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = await backend.cli("serve", "--port", str(port))
    assert result.code not in {0, None}
    said = f"{result.answer}{result.errors}"
    assert f"Port {port}" in said
    assert f"process {os.getpid()}" in said
    await backend.start("--port", str(port))
    assert backend.url.endswith(f":{port}")


async def test_a_wrong_configuration_names_key_and_file(backend: Backend) -> None:
    """An unknown key stops the start, instead of being left out."""
    (backend.home / "config.toml").write_text("[limits]\nmax_live_agent = 3\n")
    result = await backend.cli("serve", "--port", "0")
    assert result.code == 2
    said = f"{result.answer}{result.errors}"
    assert "max_live_agent" in said
    assert "config.toml" in said


# Cursors


async def test_ui_5_a_cursor_gives_exactly_what_came_after_it(stage: Backend, client: Client, cast: Cast) -> None:
    """Nothing twice, nothing left out, numbers without gaps; a cursor of now gives nothing."""
    session = await cast.conversation(client)
    await session.begin()
    seen = [event for event in client.events if event["payload"].get("session_id") == session.id]
    numbers = [event["payload"]["seq"] for event in seen]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    since = {"boot_id": (await client.call("health.check"))["boot_id"], "seq": numbers[-4]}
    async with stage.client() as other:
        answer = await other.call("session.subscribe", {"session_id": session.id, "since": since})
        assert answer["gap"] is False
        assert answer["events"] == seen[-3:]
        now = {**since, "seq": answer["seq"]}
        again = await other.call("session.subscribe", {"session_id": session.id, "since": now})
        assert (again["gap"], again["events"]) == (False, [])
        await session.say("second")
        await other.wait_event("session.turn.completed")
        assert next(event["payload"]["seq"] for event in other.events) == answer["seq"] + 1


@pytest.mark.parametrize("which", ["old", "of the future", "of another boot"])
async def test_ui_5_a_cursor_that_cannot_be_served_is_an_explicit_gap(
    stage: Backend, client: Client, cast: Cast, which: str
) -> None:
    """The buffer holds 20 events: an older cursor gets the whole snapshot, and goes on from its number."""
    session = await cast.conversation(client, on={"session/prompt": {"steps": [{"chunks": 30, "delay": 0.02}]}})
    await session.begin()
    boot = (await client.call("health.check"))["boot_id"]
    cursors = {
        "old": {"boot_id": boot, "seq": 1},
        "of the future": {"boot_id": boot, "seq": 100000},
        "of another boot": {"boot_id": "another", "seq": 1},
    }
    async with stage.client() as other:
        answer = await other.call("session.subscribe", {"session_id": session.id, "since": cursors[which]})
        assert answer["gap"] is True
        assert answer["boot_id"] == boot
        assert answer["messages"][0]["content"] == "first"
        assert answer["status"]["state"] == "WAITING_FOR_INPUT"
        waited = asyncio.create_task(other.wait_event("session.turn.completed"))
        await session.send("second")
        await waited
        assert other.events[0]["payload"]["seq"] == answer["seq"] + 1


async def test_ui_5_a_client_can_follow_a_session_across_a_kill(killable: Backend, cast: Cast) -> None:
    """The cursor of the killed backend gives a gap with everything that is stored."""
    async with killable.client() as client:
        session = await cast.conversation(client)
        await session.begin()
        boot_id = (await client.call("health.check"))["boot_id"]
        cursor = {"boot_id": boot_id, "seq": max(event["payload"].get("seq", 0) for event in client.events)}
        before = await session.transcript()
        await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        answer = await client.call("session.subscribe", {"session_id": session.id, "since": cursor})
        assert answer["gap"] is True
        assert answer["boot_id"] != cursor["boot_id"]
        assert answer["messages"] == before
