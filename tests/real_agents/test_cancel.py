"""A model that hangs: the turn of a real agent is cancelled, and the session goes on in the same process."""

import pytest

from backend import Backend
from real_agents.conftest import RealAgents

pytestmark = pytest.mark.real_agent

NAMES = ("codex", "claude-code", "claude-acp", "copilot", "opencode", "gemini")


@pytest.mark.parametrize("name", NAMES)
async def test_a_turn_whose_model_hangs_is_cancelled(real_agent: RealAgents, backend: Backend, name: str) -> None:
    """The agent ends the turn when asked, it is not killed for it, and answers the next prompt."""
    agent = real_agent(name)
    backend.config = agent.config()
    await backend.start()
    async with backend.client() as client:
        await client.call("task.subscribe")
        created = await client.call("task.create", {"agent": name, "description": "Say hello to MARK-first"})
        ids = {"task_id": created["task"]["id"], "session_id": created["session"]["id"]}
        await client.call("session.subscribe", {"session_id": ids["session_id"]})
        assert (await client.wait_event("session.turn.completed"))["state"] == "completed"
        before = (await client.call("task.session.get", {"session_id": ids["session_id"]}))["resumes"]

        seen = len(client.events)
        await client.call("message.add", {**ids, "content": "hang: 1"})
        await client.wait_event("session.message.delta", lambda delta: "I begin" in delta["text"], after=seen)
        await client.call("task.session.cancel", ids)
        assert (await client.wait_event("session.turn.completed", after=seen))["state"] == "cancelled"

        seen = len(client.events)
        await client.call("message.add", {**ids, "content": "Are you there, MARK-second?"})
        assert (await client.wait_event("session.turn.completed", after=seen))["state"] == "completed"
        after = (await client.call("task.session.get", {"session_id": ids["session_id"]}))["resumes"]
    assert after == before
    assert agent.model.request_with("MARK-second")["marks"] == ["MARK-first", "MARK-second"]
