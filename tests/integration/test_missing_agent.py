"""An agent whose program is not there: the session fails at once, keeps everything, and goes on once it is."""

import shlex
from pathlib import Path

import pytest

from backend import Backend
from fakes import FakeAgent
from wire_client import Client


@pytest.fixture
def agent(tmp_path: Path) -> FakeAgent:
    return FakeAgent(tmp_path / "agent")


@pytest.fixture
async def program(backend: Backend, agent: FakeAgent, tmp_path: Path) -> Path:
    """Where the running backend looks for the agent's program; nothing is there yet."""
    program = tmp_path / "bin" / "late-agent"
    program.parent.mkdir()
    backend.config = f'[agents.late]\ncommand = ["{program}"]\nnative_session_resume = true\n'
    await backend.start()
    return program


def install(program: Path, agent: FakeAgent) -> None:
    program.write_text(f"#!/bin/sh\nexec {shlex.join(agent.command)}\n")
    program.chmod(0o700)


async def create(client: Client) -> dict[str, str]:
    await client.call("task.subscribe")
    created = await client.call("task.create", {"agent": "late", "description": "first"})
    return {"task_id": created["task"]["id"], "session_id": created["session"]["id"]}


async def test_a_missing_program_fails_the_launch_and_loses_nothing(
    backend: Backend, program: Path, agent: FakeAgent
) -> None:
    """The launch fails with the program's name; recover starts it once it is there, and the description is sent."""
    async with backend.client() as client:
        ids = await create(client)
        failed = await client.wait_event("session.resume.failed")
        assert str(program) in failed["message"]
        status = await client.call("task.session.status", ids)
        assert (status["state"], status["queued"], status["is_resumable"]) == ("FAILED", 1, False)
        task = (await client.call("task.get", {"task_id": ids["task_id"]}))["task"]
        assert task["state"] == "FAILED"

        install(program, agent)
        await client.call("task.session.recover", {**ids, "action": "resume"})
        assert (await client.wait_event("session.turn.completed"))["state"] == "completed"
        assert agent.prompts() == ["first"]


async def test_tok_2_a_missing_program_keeps_the_token(backend: Backend, program: Path, agent: FakeAgent) -> None:
    """A resume that finds no program fails; the token is kept, and a later good resume uses it."""
    install(program, agent)
    async with backend.client() as client:
        ids = await create(client)
        await client.wait_event("session.turn.completed")
        token = (await client.call("task.session.status", ids))["acp_session_id"]
    await backend.kill9()
    program.unlink()
    await backend.start()

    async with backend.client() as client:
        await client.call("task.subscribe")
        await client.call("task.session.resume", ids)
        await client.wait_event("session.resume.failed")
        status = await client.call("task.session.status", ids)
        assert (status["state"], status["acp_session_id"]) == ("FAILED", token)

        install(program, agent)
        await client.call("task.session.recover", {**ids, "action": "resume"})
        assert (await client.wait_event("session.resume.completed"))["how"] == "native"
        assert (await client.call("task.session.status", ids))["acp_session_id"] == token
