"""A real agent runs a tool: it asks where that is its way, a person allows it, and the transcript tells it once."""

from pathlib import Path

import pytest

from backend import Backend
from real_agents.conftest import RealAgents
from wire_client import Client

pytestmark = pytest.mark.real_agent

ASKING = {"codex": False, "claude-acp": False, "copilot": True, "opencode": False, "gemini": True}
"""Whether the agent asks before it runs a command, as it comes from its makers."""


async def allow(client: Client, request: dict[str, object]) -> None:
    """Answers a request as a person who agrees once."""
    options = request["options"]
    assert isinstance(options, list)
    option = next(one["option_id"] for one in options if one["kind"] == "allow_once")
    await client.call(
        "permission.respond",
        {"session_id": request["session_id"], "request_id": request["id"], "option_id": option},
    )


@pytest.mark.parametrize("name", ASKING)
async def test_an_agent_runs_a_tool(real_agent: RealAgents, backend: Backend, repository: Path, name: str) -> None:
    """The model calls the agent's shell, the agent asks if it does, and what the command made is in the worktree."""
    backend.config = real_agent(name).config()
    await backend.start()
    async with backend.client() as client:
        await client.call("task.subscribe")
        request = {
            "agent": name,
            "description": "tool: echo hello > made.txt",
            "repository_path": str(repository),
            "start": False,
        }
        created = await client.call("task.create", request)
        ids = {"task_id": created["task"]["id"], "session_id": created["session"]["id"]}
        await client.call("session.subscribe", {"session_id": ids["session_id"]})
        await client.call("task.session.start", ids)
        if ASKING[name]:
            asked = await client.wait_event("permission.requested")
            await allow(client, asked["request"])
        done = await client.wait_event("session.turn.completed")
        assert done["state"] == "completed"
        assert ASKING[name] == bool(client.seen("permission.requested"))

        status = await client.call("task.session.status", ids)
        assert (Path(status["worktree_path"]) / "made.txt").read_text() == "hello\n"
        messages = (await client.call("message.list", {"session_id": ids["session_id"], "limit": 200}))["messages"]
    calls = [message for message in messages if message["type"] == "tool_call"]
    assert [call["metadata"]["status"] for call in calls] == ["completed"]
    answers = [message["content"] for message in messages if message["author_type"] == "agent"]
    assert "HEARD" in answers[-1]
