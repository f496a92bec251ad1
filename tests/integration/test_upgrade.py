"""A newer version of the backend finds an agent of the one before it, in the middle of a turn (CONT-1)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from conversation import Cast
from kandev.agentctl import API_VERSION
from other_version import write_version

HELD = {"match": "^wait$", "steps": [{"text": "before "}, {"mark": "held"}, {"gate": "go"}, {"text": "after"}]}
SCRIPT: dict[str, Any] = {"on": {"session/prompt": [HELD]}}


@pytest.fixture
async def backend(tmp_path: Path, cast: Cast) -> AsyncIterator[Backend]:
    """A backend that is not started yet; its agents are ended with the test."""
    async with Backend(tmp_path, config=cast.config) as made:
        yield made
        async with made.client() as client:
            for task in (await client.call("task.list", {}))["tasks"]:
                await client.call("task.delete", {"task_id": task["id"], "force": True})


@pytest.mark.parametrize("step", [1, 2, -1])
async def test_cont_1_an_agent_over_an_upgrade(backend: Backend, cast: Cast, tmp_path: Path, step: int) -> None:
    """The next version of agentctl's interface attaches. One further on, or back, ends the agent and resumes it."""
    await backend.start()
    async with backend.client() as client:
        session = await cast.conversation(client, task={"runtime": "detached"}, **SCRIPT)
        await session.begin()
        await session.send("wait")
        await session.agent.until(session.agent.marks)
        await backend.stop()
    backend.environment["PYTHONPATH"] = write_version(tmp_path / "other", API_VERSION + step)
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        assert bool(session.agent.alive()) == (step == 1)
        session.agent.open_gate("go")
        if step == 1:
            await session.turn_ended()
        turn = (await session.status())["last_turn"]
        assert turn["state"] == ("completed" if step == 1 else "interrupted")
        said = "".join(one["content"] for one in await session.transcript() if one["author_type"] == "agent")
        assert said.endswith("before after" if step == 1 else "before ")
        assert await session.say("more")
        assert (await session.status())["how"] == ("attached" if step == 1 else "native")
        assert len(session.agent.pids()) == (1 if step == 1 else 2)
