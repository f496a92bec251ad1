"""One owner: however many ask at once, one process is started, and whoever came first wins."""

import asyncio
import time

import pytest

from backend import Backend
from conversation import Conversation, Conversations
from fakes import runs
from wire_client import CallFailed, Client

WAITS = [{"mark": "waits"}, {"gate": "go"}]


async def dormant(session: Conversation) -> None:
    """One turn, then the agent is lost."""
    await session.begin()
    await session.lose_agent()


async def starting(session: Conversation) -> int:
    """A resume whose agent has not answered initialize: the process that waits for the gate "go"."""
    await dormant(session)
    session.agent.update(start=WAITS)
    await session.act("task.session.resume")
    await session.agent.until(session.agent.marks)
    return session.agent.pids()[-1]


async def test_race_1_twenty_resumes_and_five_prompts(stage: Backend, conversation: Conversations) -> None:
    """One process, one load; every caller has the same good answer; the prompts arrive once each, in order."""
    session = await conversation()
    await dormant(session)
    words = [f"word {number}" for number in range(5)]
    async with stage.client() as other:
        ids = {"task_id": session.task_id, "session_id": session.id}
        resumes = [client.call("task.session.resume", ids) for client in [session.client, other] * 10]
        # One connection's prompts are asked for in this order; resumes come before, between and after them.
        prompts = [session.client.call("message.add", {**ids, "content": word}) for word in words]
        session.forget()
        answers = await asyncio.gather(*resumes[:8], *prompts, *resumes[8:])
        told = [answer for answer in answers if "agent_execution_id" in answer]
        assert len(told) == 20
        assert {answer["success"] for answer in told} == {True}
        assert len({answer["agent_execution_id"] for answer in told}) == 1
        await session.agent.until(lambda: len(session.agent.prompts()) == 6)
    assert session.agent.prompts() == ["first", *words]
    assert len(session.agent.pids()) == 2
    assert len(session.agent.requests("session/resume")) == 1
    await session.event("message.queue.changed", queue=[])


async def test_race_1_the_answers_of_a_resume_that_fails_are_the_same(conversation: Conversations) -> None:
    """Callers that wait for the agent all learn of the one failure, and one process was started."""
    session = await conversation(on={"session/resume": {"error": {"code": -32002, "message": "Session not found"}}})
    await dormant(session)
    calls = [session.call("task.session.resume", wait=True) for _ in range(5)]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    told = {(error.code, error.reason) for error in errors if isinstance(error, CallFailed)}
    assert told == {("CONFLICT", "unknown_session")}
    assert len({str(error) for error in errors}) == 1
    assert len(session.agent.pids()) == 2


async def test_race_2_a_live_agent_is_left_alone(conversation: Conversations) -> None:
    """A resume of a session whose agent runs is a success, and nothing happens."""
    session = await conversation()
    await session.begin()
    turn = (await session.status())["last_turn"]
    answer = await session.act("task.session.resume", wait=True)
    assert (answer["success"], answer["already_running"]) == (True, True)
    assert answer["agent_execution_id"] == turn["agent_execution_id"]
    assert session.moves() == []
    assert session.methods() == ["initialize", "session/new", "session/prompt"]


async def test_race_2_a_running_turn_is_left_alone(conversation: Conversations) -> None:
    """Also in the middle of a turn: it ends as if nobody had asked."""
    session = await conversation(on={"session/prompt": {"match": "long", "steps": [{"mark": "runs"}, {"gate": "go"}]}})
    await session.begin()
    await session.send("long")
    await session.agent.until(session.agent.marks)
    assert (await session.call("task.session.resume"))["already_running"] is True
    session.agent.open_gate("go")
    assert (await session.turn_ended())["state"] == "completed"
    assert len(session.agent.pids()) == 1


async def test_race_3_a_stop_beats_a_resume(conversation: Conversations) -> None:
    """Asked for at once, the stop wins in any order: CANCELLED, and no process is left."""
    session = await conversation()
    await dormant(session)
    session.forget()
    stop, resume = session.call("task.session.stop"), session.call("task.session.resume")
    await asyncio.gather(stop, resume, return_exceptions=True)
    assert (await session.status())["state"] == "CANCELLED"
    await session.agent.until(lambda: not session.agent.alive())


async def test_race_4_a_resume_outlives_its_client(stage: Backend, conversation: Conversations) -> None:
    """The socket that asked is gone before the agent is ready; the resume ends well for everybody else."""
    session = await conversation()
    await dormant(session)
    session.agent.update(start=WAITS)
    session.forget()
    ids = {"task_id": session.task_id, "session_id": session.id, "wait": True}

    async def ask(client: Client) -> None:
        with pytest.raises(ConnectionError):
            await client.call("task.session.resume", ids)

    async with stage.client() as other:
        asked = asyncio.create_task(ask(other))
        await session.agent.until(session.agent.marks)
    await asked
    session.agent.open_gate("go")
    assert (await session.event("session.resume.completed"))["how"] == "native"
    await session.say("second")
    assert len(session.agent.pids()) == 2


async def test_race_6_a_cancel_ends_a_resume_and_keeps_its_prompts(conversation: Conversations) -> None:
    """The process is gone at once, the session waits, and what was queued is queued still, and held."""
    session = await conversation(ignore_eof=True, ignore_sigterm=True)
    pid = await starting(session)
    await session.call("message.add", content="second")
    asked = time.monotonic()
    await session.act("task.session.cancel")
    took = time.monotonic() - asked
    assert not runs(pid)
    # The rule says a second; this bound only tells it from the grace of a gentle stop, which is 8 s.
    assert took < 5
    status = await session.status()
    assert (status["state"], status["is_agent_running"]) == ("WAITING_FOR_INPUT", False)
    assert await session.queue() == (["second"], "cancelled")
    session.agent.update(start=[])
    await session.resume()
    assert await session.queue() == (["second"], "cancelled")
    await session.act("task.session.recover", action="resume")
    await session.turn_ended()
    assert session.agent.prompts() == ["first", "second"]


async def test_race_6_who_waited_for_the_resume_is_told(conversation: Conversations) -> None:
    """A call that waits for the agent ends with the cancel, and says that it was one."""
    session = await conversation()
    await starting(session)
    waiting = asyncio.create_task(session.refused("task.session.resume", wait=True))
    await asyncio.sleep(0)
    await session.status()  # requests of one socket begin in order, so the other one waits by now
    await session.call("task.session.cancel")
    refused = await waiting
    assert (refused.code, refused.reason) == ("CONFLICT", "cancelled")


async def test_race_6_a_cancel_of_a_load(conversation: Conversations) -> None:
    """In the middle of a load too; the token is kept."""
    session = await conversation(resume=False)
    await dormant(session)
    before = (await session.status())["acp_session_id"]
    session.agent.update(on={"session/load": {"steps": [{"mark": "loading"}, "hang"]}})
    await session.act("task.session.resume")
    await session.agent.until(session.agent.marks)
    await session.call("task.session.cancel")
    assert session.agent.alive() == []
    assert (await session.status())["acp_session_id"] == before
    session.agent.update(on={})
    assert (await session.resume())["how"] == "native"


@pytest.mark.parametrize("launch", [True, False], ids=["launch", "resume"])
async def test_race_7_a_stop_while_the_agent_starts(conversation: Conversations, *, launch: bool) -> None:
    """The session is CANCELLED and has no process, however stubborn that is."""
    script = {"ignore_eof": True, "ignore_sigterm": True}
    if launch:
        session = await conversation(start=WAITS, **script)
        await session.act("task.session.start")
        await session.agent.until(session.agent.marks)
    else:
        session = await conversation(**script)
        await starting(session)
    await session.act("task.session.stop")
    assert await session.states() == ("CANCELLED", "REVIEW")
    assert session.agent.alive() == []


async def test_race_7_a_delete_while_the_agent_starts(conversation: Conversations) -> None:
    """The session is gone, and its process with it."""
    session = await conversation()
    await starting(session)
    await session.act("task.delete", force=True)
    assert session.agent.alive() == []
    assert (await session.refused("task.session.status")).code == "NOT_FOUND"


async def test_race_10_the_old_tree_is_dead_before_the_session_is_loaded(conversation: Conversations) -> None:
    """An agent that dies and leaves a child behind: the child is gone when the next process loads the session."""
    steps = [{"spawn": 600, "hold_stdout": True, "ignore_sigterm": True, "setsid": True}, {"text": "spawned"}]
    session = await conversation(on={"session/prompt": {"match": "first", "steps": steps}})
    await session.begin()
    (child,) = session.agent.spawned()
    assert runs(child)
    await session.lose_agent()
    await session.resume()
    assert not runs(child)
    assert (await session.say("second"))["state"] == "completed"
