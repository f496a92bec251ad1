"""CRASH-16: an agentctl that was stopped is said not to respond, and a resume ends it and brings the agent back."""

import os
import signal
import sqlite3
from pathlib import Path

from backend import Backend
from fakes import FakeAgent


def _agentctl_pid(home: Path) -> int:
    with sqlite3.connect(f"file:{home / 'kandev.db'}?mode=ro", uri=True) as database:
        return int(database.execute("SELECT agentctl_pid FROM executors_running").fetchone()[0])


async def test_crash_16_a_stopped_agentctl_is_told_and_a_resume_kills_it_by_identity(
    backend: Backend, tmp_path: Path
) -> None:
    """The turn is interrupted with what was said, nothing of the old run is left, and the next prompt is answered."""
    fake = FakeAgent(
        tmp_path / "fake", on={"session/prompt": {"match": "wait", "steps": [{"text": "so far"}, {"gate": "g"}]}}
    )
    backend.config = f"[agents.fake]\ncommand = {fake.command!r}\nnative_session_resume = true\n"
    backend.environment["KANDEV__TIMING__AGENTCTL_SILENT_S"] = "0.5"
    await backend.start()
    async with backend.client() as client:
        created = await client.call("task.create", {"description": "hello", "agent": "fake"})
        ids = {"task_id": created["task"]["id"], "session_id": created["session"]["id"]}
        await client.call("session.subscribe", {"session_id": ids["session_id"]})
        await fake.until(lambda: fake.prompts() == ["hello"])
        await client.call("message.add", {**ids, "content": "wait"})
        await client.wait_event("session.message.delta", lambda payload: payload.get("text") == "so far")
        pid = _agentctl_pid(backend.home)
        os.kill(pid, signal.SIGSTOP)
        stalled = await client.wait_event("session.turn.stalled", lambda payload: payload["responding"] is False)
        assert stalled["silent_s"] >= 0.5
        status = await client.call("task.session.status", ids)
        assert (status["is_agent_running"], status["state"]) == (False, "RUNNING")
        await client.call("task.session.resume", {**ids, "wait": True, "open_queue": True})
        assert not Path(f"/proc/{pid}").exists()
        await client.call("message.add", {**ids, "content": "again"})
        await fake.until(lambda: fake.prompts() == ["hello", "wait", "again"])
        listed = await client.call("message.list", {"session_id": ids["session_id"]})
    texts = [message["content"] for message in listed["messages"]]
    assert texts.count("so far") == 1
    assert any("did not answer any more" in text for text in texts)
    assert len(fake.pids()) == 2
