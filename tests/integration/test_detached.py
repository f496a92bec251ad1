"""Agents that outlive their backend: it is killed, or stopped, and the next one goes on where they are (CONT-1)."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from conversation import Cast, Conversation
from fakes import FakeAgent
from kandev.agentctl.identity import Identity, read_identity
from wire_client import Client

DETACHED = {"runtime": "detached"}
CHUNKS = {"match": "^count$", "steps": [{"chunks": 30, "text": "{n},", "delay": 0.02}, {"gate": "end"}]}
HELD = {"match": "^wait$", "steps": [{"text": "before "}, {"mark": "held"}, {"gate": "go"}, {"text": "after"}]}
ASKS = {"match": "^ask$", "steps": [{"permission": "Edit?"}, {"text": " went on"}]}
HANGS = {"match": "^hang$", "steps": [{"text": "so far"}, {"mark": "hangs"}, "hang"]}
SCRIPT = {"on": {"session/prompt": [CHUNKS, HELD, ASKS, HANGS]}}


@pytest.fixture
async def backend(tmp_path: Path, cast: Cast) -> AsyncIterator[Backend]:
    """A running backend; agents that outlive its last stop are ended with the test."""
    short = {"KANDEV__TIMING__CANCEL_FORCE_S": "1"}
    async with Backend(tmp_path, config=cast.config, environment=short) as made:
        await made.start()
        yield made
        if made.server and made._process is not None:
            await end_all(made)


async def end_all(backend: Backend) -> None:
    """Stops every session, so that no agent is left for the backend's own end."""
    async with backend.client() as client:
        for task in (await client.call("task.list", {}))["tasks"]:
            await client.call("task.delete", {"task_id": task["id"], "force": True})


async def begun(cast: Cast, client: Client, *, kind: str = "native", **script: Any) -> Conversation:
    """A detached session after its first turn."""
    session = await cast.conversation(client, kind, task=DETACHED, **{**SCRIPT, **script})
    await session.begin()
    return session


async def killed(backend: Backend, session: Conversation) -> None:
    """Kills the backend; the agent lives."""
    await backend.kill9()
    assert session.agent.alive(), "the agent outlives its backend"


def identity_of(backend: Backend) -> Identity:
    """Who the one detached instance is."""
    (directory,) = (backend.home / "run/detached").iterdir()
    identity = read_identity(str(directory))
    assert identity is not None
    return identity


async def answer_of(session: Conversation, prompt: str) -> str:
    """What the agent said in the turn of a prompt."""
    messages = await session.transcript()
    (turn,) = {one["turn_id"] for one in messages if one["content"] == prompt and one["author_type"] == "user"}
    return "".join(one["content"] for one in messages if one["turn_id"] == turn and one["author_type"] == "agent")


async def test_cont_1_a_turn_goes_on_and_each_chunk_is_stored_once(backend: Backend, cast: Cast) -> None:
    """The backend is killed amid a stream; the next one attaches, and the turn ends as if nothing had been."""
    async with backend.client() as client:
        session = await begun(cast, client)
        await session.send("count")
        await session.event("session.message.delta")
        await killed(backend, session)
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        status = await session.status()
        assert (status["state"], status["is_agent_running"], status["how"]) == ("RUNNING", True, "attached")
        session.agent.open_gate("end")
        assert (await session.turn_ended())["state"] == "completed"
        assert await answer_of(session, "count") == "".join(f"{n}," for n in range(1, 31))
        assert await session.notices() == []
        assert session.agent.prompts() == ["first", "count"]
        assert len(session.agent.pids()) == 1
        assert await session.say("more")
        assert len(session.agent.pids()) == 1, "the same process takes the next prompt"


async def test_cont_1_what_an_agent_did_without_a_backend_is_there(backend: Backend, cast: Cast) -> None:
    """The turn ends while no backend runs; the next one stores its end, and sends what was queued behind it."""
    async with backend.client() as client:
        session = await begun(cast, client)
        await session.send("wait")
        await session.agent.until(session.agent.marks)
        await session.send("next")
        await killed(backend, session)
    session.agent.open_gate("go")
    await session.agent.until(lambda: b"after" in journal(backend))
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        await session.agent.until(lambda: session.agent.prompts()[-1] == "next")
        while (await session.status())["last_turn"]["state"] == "open":
            await session.turn_ended()
        assert await answer_of(session, "wait") == "before after"
        assert await answer_of(session, "next") == "heard: next | memory: 2"
        assert session.agent.prompts() == ["first", "wait", "next"]


def journal(backend: Backend) -> bytes:
    return b"".join(path.read_bytes() for path in backend.home.glob("run/detached/*/journal/*") if path.is_file())


async def test_a_stop_in_order_leaves_the_agent_its_turn(backend: Backend, cast: Cast) -> None:
    """SIGTERM ends the backend at once, not the agent; nothing is called interrupted."""
    async with backend.client() as client:
        session = await begun(cast, client)
        await session.send("wait")
        await session.agent.until(session.agent.marks)
        await session.send("queued")
        assert await backend.stop() == 0
    assert session.agent.alive()
    session.agent.open_gate("go")
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        while session.agent.prompts()[-1] != "queued" or (await session.status())["state"] != "WAITING_FOR_INPUT":
            await session.turn_ended()
        assert await answer_of(session, "wait") == "before after"
        assert session.agent.prompts() == ["first", "wait", "queued"]
        assert await session.notices() == []


async def test_perm_a_question_outlives_the_backend(backend: Backend, cast: Cast) -> None:
    """A permission that was asked before the kill is answered after it, by a person, and reaches the same process."""
    async with backend.client() as client:
        session = await begun(cast, client)
        await session.send("ask")
        request = (await session.event("permission.requested"))["request"]
        await killed(backend, session)
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        (pending,) = (await session.call("permission.list"))["permissions"]
        assert pending["id"] == request["id"]
        option = request["options"][0]["option_id"]
        await session.act("permission.respond", request_id=request["id"], option_id=option)
        assert (await session.turn_ended())["state"] == "completed"
        assert (await answer_of(session, "ask")).endswith(f"permission: {option} went on")
        assert len(session.agent.pids()) == 1


async def test_crash_12_a_cancel_is_asked_again(backend: Backend, cast: Cast) -> None:
    """A turn whose cancel was stored ends after the restart, by force where the agent does not listen."""
    async with backend.client() as client:
        session = await begun(cast, client, ignore_cancel=True)
        await session.send("hang")
        await session.agent.until(session.agent.marks)
        await session.act("task.session.cancel")
        await killed(backend, session)
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        if (await session.status())["turn"] is not None:
            await session.turn_ended()
        assert (await session.status())["last_turn"]["state"] == "cancelled"
        assert (await session.queue())[1] == "cancelled"


async def test_crash_4_an_agent_that_was_not_ready_is_ended(backend: Backend, cast: Cast) -> None:
    """Its start is not gone on with: it is killed, the token kept, and a resume starts it again."""
    async with backend.client() as client:
        session = await begun(cast, client)
        await session.lose_agent()
        session.agent.update(start=[{"mark": "starts"}, {"gate": "never"}])
        await session.act("task.session.resume")
        await session.agent.until(session.agent.marks)
        await killed(backend, session)
    session.agent.update(start=[])
    await backend.start()
    assert session.agent.alive() == []
    async with backend.client() as client:
        await session.follow(client)
        assert (await session.status())["needs_resume"]
        assert (await session.resume())["how"] == "native"


async def test_an_agent_that_ended_without_a_backend_is_told_of(backend: Backend, cast: Cast) -> None:
    """It died in its turn while nobody looked: the turn is interrupted, with the text that is in the journal."""
    async with backend.client() as client:
        session = await begun(cast, client)
        await session.send("wait")
        await session.agent.until(session.agent.marks)
        await killed(backend, session)
    os.kill(session.agent.pids()[-1], signal.SIGKILL)
    await session.agent.until(lambda: b'"ev":"exit"' in journal(backend))
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
        assert await answer_of(session, "wait") == "before "
        assert "signal 9" in (await session.notice("interrupted"))["content"]
        assert (await session.resume())["how"] == "native"


async def test_crash_16_an_agentctl_that_hangs_is_not_attached(backend: Backend, cast: Cast) -> None:
    """It is proven by identity and killed with its agent; the turn is interrupted, the session resumes."""
    async with backend.client() as client:
        session = await begun(cast, client)
        await session.send("wait")
        await session.agent.until(session.agent.marks)
        identity = identity_of(backend)
        await killed(backend, session)
    os.kill(identity.pid, signal.SIGSTOP)
    await backend.start()
    assert session.agent.alive() == []
    async with backend.client() as client:
        await session.follow(client)
        assert (await session.status())["last_turn"]["state"] == "interrupted"
        assert (await session.resume())["how"] == "native"


async def test_an_agent_that_nobody_comes_back_for_ends_by_itself(tmp_path: Path, cast: Cast) -> None:
    """Without a backend and without output it ends after the configured time; its session resumes."""
    unattended = {"KANDEV__RUNTIMES__DETACHED__IDLE_MINUTES": "0.02"}
    async with Backend(tmp_path, config=cast.config, environment=unattended) as backend:
        await backend.start()
        async with backend.client() as client:
            session = await begun(cast, client)
            identity = identity_of(backend)
            await killed(backend, session)
        await session.agent.until(lambda: not session.agent.alive())
        await session.agent.until(lambda: not Path(f"/proc/{identity.pid}/environ").exists() or not live(identity.pid))
        await backend.start()
        async with backend.client() as client:
            await session.follow(client)
            assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
            assert (await session.resume())["how"] == "native"
        await end_all(backend)


def live(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_runtime_is_chosen_by_request_agent_or_config(tmp_path: Path) -> None:
    """What a task asks for counts first, then its agent's own, then the default."""
    agent = FakeAgent(tmp_path / "agent")
    tables = (
        f'[runtimes]\ndefault = "detached"\n[agents.plain]\ncommand = {agent.command!r}\n'
        f'[agents.own]\ncommand = {agent.command!r}\nruntime = "standalone"\n'
    )
    async with Backend(tmp_path, config=tables) as backend:
        await backend.start()
        async with backend.client() as client:

            async def runtime(name: str, **more: str) -> str:
                created = await client.call("task.create", {"agent": name, "description": "x", "start": False, **more})
                return str(created["session"]["runtime"])

            assert await runtime("plain") == "detached"
            assert await runtime("own") == "standalone"
            assert await runtime("own", runtime="detached") == "detached"
            listed = {one["name"]: one for one in (await client.call("runtime.list", {}))["runtimes"]}
            assert listed["detached"]["default"]
            assert listed["detached"]["available"]
            assert listed["detached"]["survives"] == ["backend_restart"]
            assert listed["standalone"]["survives"] == []


async def test_live_agents_are_listed_with_their_runtime(backend: Backend, cast: Cast) -> None:
    """`kandev runtimes` shows which agents live there."""
    async with backend.client() as client:
        session = await begun(cast, client)
        listed = {one["name"]: one for one in (await client.call("runtime.list", {}))["runtimes"]}
        (agent,) = listed["detached"]["agents"]
        assert (agent["session_id"], agent["in_turn"]) == (session.id, False)
        assert (await backend.cli("runtimes")).answer["runtimes"]
