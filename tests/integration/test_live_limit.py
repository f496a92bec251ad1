"""How many agents live: idle ones end and come back by a prompt, and never more run than may run."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from backend import Backend
from conversation import Cast, Conversation
from wire_client import Client

HELD: dict[str, Any] = {"match": "long", "steps": [{"text": "so far "}, {"gate": "turn"}]}


@asynccontextmanager
async def limited(directory: Path, cast: Cast, **limits: Any) -> AsyncIterator[Client]:
    """A client of a backend with other limits."""
    environment = {f"KANDEV__LIMITS__{name.upper()}": str(value) for name, value in limits.items()}
    async with Backend(directory, config=cast.config, environment=environment) as backend:
        await backend.start()
        async with backend.client() as client:
            yield client


async def test_an_idle_agent_ends_and_comes_back(tmp_path: Path, cast: Cast) -> None:
    """It ends in order, without a word in the transcript; the next prompt resumes it with its memory."""
    async with limited(tmp_path, cast, idle_minutes=0.005) as client:
        session = await cast.conversation(client)
        await session.begin()
        await session.event("session.agent_changed", is_agent_running=False)
        status = await session.status()
        assert (status["state"], status["needs_resume"], status["interrupted"]) == ("WAITING_FOR_INPUT", True, False)
        assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
        await session.agent.until(lambda: session.agent.alive() == [])
        assert len(session.agent.events("eof")) == 1
        await session.say("second")
        assert (await session.texts("agent"))[-1] == "heard: second | memory: 1"
        assert await session.notices() == []


async def test_an_agent_that_works_or_waits_for_a_person_is_not_idle(tmp_path: Path, cast: Cast) -> None:
    """Others end meanwhile; a turn and an open permission request keep theirs alive, and its end starts the clock."""
    async with limited(tmp_path, cast, idle_minutes=0.005) as client:
        working = await cast.conversation(client, on={"session/prompt": HELD}, description="long one")
        await working.act("task.session.start")
        await working.event("session.message.delta")
        asking = await cast.conversation(client, on={"session/prompt": {"steps": [{"permission": "May I?"}]}})
        await asking.act("task.session.start")
        await asking.event("permission.requested")
        for _ in range(2):
            idle = await cast.conversation(client)
            await idle.begin()
            await idle.event("session.agent_changed", is_agent_running=False)
        assert len(working.agent.alive()) == len(asking.agent.alive()) == 1
        working.agent.open_gate("turn")
        await working.turn_ended()
        await working.event("session.agent_changed", is_agent_running=False)
        assert len(asking.agent.alive()) == 1


async def test_a_start_ends_the_agent_that_was_idle_for_longest(tmp_path: Path, cast: Cast) -> None:
    """With room for two the third start ends the first; a prompt for the first then ends the second."""
    async with limited(tmp_path, cast, max_live_agents=2) as client:
        sessions = [await cast.conversation(client) for _ in range(3)]
        for session in sessions:
            await session.begin()
        first, second, third = sessions
        assert first.agent.alive() == []
        assert len(second.agent.alive()) == len(third.agent.alive()) == 1
        await first.say("second")
        assert (await first.texts("agent"))[-1] == "heard: second | memory: 1"
        assert second.agent.alive() == []
        assert len(first.agent.alive()) == len(third.agent.alive()) == 1


async def test_a_start_waits_while_all_agents_work(tmp_path: Path, cast: Cast) -> None:
    """No agent is ended in a turn: the start waits for a turn's end, and then goes on by itself."""
    async with limited(tmp_path, cast, max_live_agents=1) as client:
        working = await cast.conversation(client, on={"session/prompt": HELD}, description="long one")
        await working.act("task.session.start")
        await working.event("session.message.delta")
        waiting = await cast.conversation(client)
        await waiting.call("message.add", content="second")
        waiting.forget()
        assert (await waiting.status())["state"] in {"CREATED", "STARTING"}
        assert waiting.agent.pids() == []
        working.agent.open_gate("turn")
        await working.turn_ended()
        await waiting.agent.until(lambda: waiting.agent.prompts() == ["first", "second"])
        assert working.agent.alive() == []


async def test_a_waiting_start_can_be_cancelled(tmp_path: Path, cast: Cast) -> None:
    """RACE-6: a start that waits for room gives up at once, and its prompt stays queued."""
    async with limited(tmp_path, cast, max_live_agents=1) as client:
        working = await cast.conversation(client, on={"session/prompt": HELD}, description="long one")
        await working.act("task.session.start")
        await working.event("session.message.delta")
        waiting = await cast.conversation(client)
        await waiting.call("message.add", content="second")
        await waiting.event("session.resume.progress")
        await waiting.call("task.session.cancel")
        assert await waiting.queue() == (["first", "second"], "cancelled")
        assert (await waiting.status())["stage"] == ""
        working.agent.open_gate("turn")
        await working.turn_ended()
        assert (await working.say("on"))["state"] == "completed"
        assert waiting.agent.pids() == []


def _has_both(session: Conversation) -> bool:
    return session.agent.prompts() == ["first", "second"]


async def test_many_sessions_share_little_room(tmp_path: Path, cast: Cast) -> None:
    """Six sessions with two prompts each and room for two agents: everything is answered, never three at once."""
    async with limited(tmp_path, cast, max_live_agents=2) as client:
        sessions: list[Conversation] = [await cast.conversation(client) for _ in range(6)]
        for session in sessions:
            await session.call("message.add", content="second")
        for session in sessions:
            await session.agent.until(partial(_has_both, session))
        assert sum(len(session.agent.alive()) for session in sessions) <= 2
        starts = [(entry["time"], 1) for session in sessions for entry in session.agent.events("start")]
        ends = [(entry["time"], -1) for session in sessions for entry in session.agent.events("eof")]
        living = most = 0
        for _, change in sorted(starts + ends):
            living += change
            most = max(most, living)
        assert most <= 2
