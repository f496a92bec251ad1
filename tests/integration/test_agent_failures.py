"""Agents and backends that die, and agents that misbehave: nothing is stuck, nothing is lost, nothing said twice."""

from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from conversation import Cast, Conversation, Conversations
from wire_client import CallFailed

CUT_TURN: dict[str, Any] = {
    "match": "long",
    "steps": [{"text": "so far "}, {"tool": "build", "id": "call-1", "end": False}, {"gate": "turn"}, {"text": "more"}],
    "after": [{"mark": "ended"}],
}
"""A turn that has said something and runs a tool, and goes on when the gate is open."""


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """One agent for each test here, and some more."""
    return Cast(tmp_path_factory.mktemp("cast"), each=24)


async def tools(session: Conversation) -> list[str]:
    """The states of the session's tool calls."""
    return [one["metadata"]["status"] for one in await session.transcript() if one["type"] == "tool_call"]


# The backend is killed in a turn


async def test_state_1_a_turn_cut_by_a_kill_is_interrupted(killable: Backend, cast: Cast) -> None:
    """Once the port answers: turn interrupted, tool call unknown, session waits, task in review, all marked."""
    async with killable.client() as client:
        session = await cast.conversation(client, on={"session/prompt": [CUT_TURN]}, description="long one")
        await session.act("task.session.start")
        await session.event("session.message.added", message=_tool_message(session))
        await session.call("message.add", content="second")
        await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        status = await session.status()
        assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
        assert (status["interrupted"], status["is_agent_running"], status["turn"]) == (True, False, None)
        assert (status["last_turn"]["state"], status["needs"]) == ("interrupted", "decision")
        assert (status["needs_resume"], status["resume_reason"]) == (True, "agent_not_running")
        assert await session.texts("agent") == ["so far ", "build"]
        assert await tools(session) == ["unknown"]
        assert "send_again" in (await session.notice("interrupted"))["metadata"]["actions"]
        assert await session.queue() == (["second"], "interrupted")
        await session.act("message.queue.resume")
        await session.turn_ended()
        assert session.agent.prompts() == ["long one", "second"]


def _tool_message(session: Conversation) -> Any:
    class Tool:
        """Equal to any message about a tool call that runs."""

        def __eq__(self, other: object) -> bool:
            return isinstance(other, dict) and other["type"] == "tool_call" and other["session_id"] == session.id

        __hash__ = None  # type: ignore[assignment]  # compared, never kept

    return Tool()


async def test_state_1_a_turn_that_ended_without_the_backend_is_completed(killable: Backend, cast: Cast) -> None:
    """The agent goes on for two seconds after its backend was killed; what it said until its turn's end is there."""
    async with killable.client() as client:
        session = await cast.conversation(
            client, on={"session/prompt": [CUT_TURN]}, description="long one", exit_delay=1
        )
        await session.act("task.session.start")
        await session.event("session.message.delta")
        await killable.kill9()
    session.agent.open_gate("turn")
    await session.agent.until(lambda: session.agent.marks() == ["ended"])
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        status = await session.status()
        assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
        assert (status["interrupted"], status["last_turn"]["state"]) == (False, "completed")
        assert await session.texts("agent") == ["so far ", "build", "more"]
        assert await session.notices() == []


async def test_state_1_a_session_that_was_starting_is_not_left_starting(killable: Backend, cast: Cast) -> None:
    """CRASH-4: killed before the agent answered initialize; after the start it waits, and then starts by its queue."""
    async with killable.client() as client:
        session = await cast.conversation(client, start=[{"mark": "up"}, {"gate": "start"}])
        await session.act("task.session.start")
        await session.agent.until(lambda: session.agent.marks() == ["up"])
        await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        snapshot = await session.follow(client)
        await session.agent.until(lambda: session.agent.marks() == ["up", "up"])
        assert snapshot["session"]["state"] in {"WAITING_FOR_INPUT", "STARTING"}
        assert snapshot["messages"] == []
        session.agent.open_gate("start")
        await session.turn_ended()
        assert session.agent.prompts() == ["first"]


async def test_state_1_a_second_kill_changes_nothing(killable: Backend, cast: Cast) -> None:
    """What was settled after the first kill is not settled again: one mark, one text."""
    async with killable.client() as client:
        session = await cast.conversation(client, on={"session/prompt": [CUT_TURN]}, description="long one")
        await session.act("task.session.start")
        await session.event("session.message.delta")
        await killable.kill9()
    for _ in range(2):
        await killable.start()
        await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        assert await session.notices() == ["interrupted"]
        assert (await session.texts("agent"))[0] == "so far "
        assert (await session.texts("agent")).count("so far ") == 1


# The agent dies


async def test_state_4_an_agent_that_dies_in_a_turn_is_told_and_comes_back(conversation: Conversations) -> None:
    """Exit code and stderr are told at once, the partial text is kept once, and the next prompt resumes natively."""
    dying = {"match": "deadly", "steps": [{"text": "so far "}, {"stderr": "out of memory"}, {"die": 3}]}
    session = await conversation(on={"session/prompt": dying})
    await session.begin()
    await session.send("deadly")
    ended = await session.event("session.agent_changed", is_agent_running=False)
    assert ended["exit_code"] == 3
    turn = await session.turn_ended()
    assert (turn["state"], "out of memory" in turn["error"]) == ("interrupted", True)
    notice = await session.notice("interrupted")
    assert (notice["metadata"]["exit_code"], notice["metadata"]["turn_id"]) == (3, turn["id"])
    assert "out of memory" in notice["metadata"]["stderr"]
    assert "exit code 3" in notice["content"]
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
    assert (await session.texts("agent"))[1:] == ["so far "]
    assert "out of memory" in (await session.call("session.logs"))["stderr"]
    assert (await session.say("third"))["state"] == "completed"
    assert session.methods() == ["initialize", "session/resume", "session/prompt"]
    assert (await session.texts("agent"))[-1] == "heard: third | memory: 2"


async def test_state_4_an_agent_that_is_killed_in_a_turn_tells_its_signal(conversation: Conversations) -> None:
    """A signal is no exit code."""
    session = await conversation(on={"session/prompt": {"match": "deadly", "steps": [{"signal": 9}]}})
    await session.begin()
    await session.send("deadly")
    ended = await session.event("session.agent_changed", is_agent_running=False)
    assert (ended["exit_code"], ended["signal"]) == (None, 9)
    assert (await session.turn_ended())["state"] == "interrupted"
    assert "signal 9" in (await session.notice("interrupted"))["content"]


async def test_state_4_an_agent_that_dies_idle_is_no_fault_of_the_session(conversation: Conversations) -> None:
    """An idle agent's end leaves no notice and no mark; the next prompt resumes."""
    session = await conversation()
    await session.begin()
    await session.lose_agent()
    status = await session.status()
    assert (status["interrupted"], status["queue_held"], status["needs_resume"]) == (False, "", True)
    assert await session.notices() == []
    assert (await session.say("second"))["state"] == "completed"


async def test_state_5_an_agent_that_ends_at_once_is_parked(conversation: Conversations) -> None:
    """Five ends within a minute park the session with the reason; recover resets the count, and the queue goes on."""
    session = await conversation()
    await session.begin()
    await session.lose_agent()
    session.agent.update(on={"session/resume": {"steps": [{"die": 7}]}, "session/load": {"steps": [{"die": 7}]}})
    await session.send("second")
    await session.event("message.queue.changed", held="parked")
    status = await session.status()
    assert (status["needs_resume"], status["resume_reason"], status["needs"]) == (False, "parked", "decision")
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
    starts = len(session.agent.pids())
    assert starts <= 6
    assert (await session.notices())[-1] == "parked"
    with pytest.raises(CallFailed) as refused:
        await session.call("task.session.resume")
    assert (refused.value.code, refused.value.reason) == ("CONFLICT", "parked")
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
    await session.call("message.add", content="third")
    assert await session.queue() == (["second", "third"], "parked")
    assert len(session.agent.pids()) == starts
    session.agent.update(on={})
    assert (await session.recover("resume"))["how"] == "native"
    await session.agent.until(lambda: session.agent.prompts() == ["first", "second", "third"])


async def test_state_5_a_parked_session_stays_parked_after_a_kill(killable: Backend, cast: Cast) -> None:
    """The count and the reason are stored; the next backend starts nothing by itself."""
    async with killable.client() as client:
        session = await cast.conversation(client)
        await session.begin()
        await session.lose_agent()
        session.agent.update(on={"session/resume": {"steps": [{"die": 7}]}})
        await session.send("second")
        await session.event("message.queue.changed", held="parked")
        await killable.kill9()
    starts = len(session.agent.pids())
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        assert (await session.status())["resume_reason"] == "parked"
        assert len(session.agent.pids()) == starts


async def test_state_8_a_failed_secondary_session_does_not_fail_the_task(
    conversation: Conversations, cast: Cast
) -> None:
    """Another session of the task that cannot start is FAILED; the task goes on with the one that lives."""
    session = await conversation()
    await session.begin()
    name, broken = cast.take("plain", start=[{"die": 1}])
    made = await session.call("task.session.create", agent=name)
    other = Conversation(session.client, broken, session.task_id, made["session"]["id"])
    await other.follow(session.client)
    await other.act("task.session.start")
    await other.event("session.resume.failed")
    assert (await other.states())[0] == "FAILED"
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
    assert (await session.say("second"))["state"] == "completed"


# The agent misbehaves


async def test_state_7_an_unknown_stop_reason_ends_the_turn(conversation: Conversations) -> None:
    """WIRE-3: the turn ends once, what was said is kept, and the reason is shown as it came."""
    session = await conversation(on={"session/prompt": {"match": "odd", "steps": ["heard"], "stop_reason": "tired"}})
    await session.begin()
    turn = await session.say("odd")
    assert (turn["state"], turn["stop_reason"]) == ("completed", "tired")
    assert "tired" in (await session.notice("stop_reason"))["content"]


async def test_state_7_a_late_tail_is_kept(conversation: Conversations) -> None:
    """Text behind the answer of a turn is in the transcript; the turn ended once."""
    late = {"match": "late", "steps": [{"text": "in time "}], "after": [{"delay": 0.2}, {"text": "too late"}]}
    session = await conversation(on={"session/prompt": late})
    await session.begin()
    await session.say("late")
    await session.event("session.message.delta", text="too late")
    await session.say("third")
    assert (await session.texts("agent"))[1:] == ["in time ", "too late", "heard: third | memory: 2"]
    assert len(await session.notices()) == 0


NOISE: list[Any] = [
    {"line": "123"}, {"line": "null"}, {"line": "[]"}, {"line": "\x1b[1mBanner\x1b[0m"}, {"line": ""},
    {"hex": "fffe80410a"}, {"line": '{"jsonrpc": '}, {"send": {"method": 7}}, {"send": {"id": 99999, "result": {}}},
]  # fmt: skip


async def test_wire_1_noise_on_stdout_is_skipped(conversation: Conversations) -> None:
    """Banners, half JSON and bad UTF-8 change nothing, neither at the start nor in the middle of a turn."""
    noisy = {"match": "noisy", "steps": [{"text": "be"}, *NOISE, {"text": "fore"}]}
    session = await conversation(start=NOISE, on={"session/prompt": noisy})
    await session.begin()
    assert (await session.say("noisy"))["state"] == "completed"
    assert (await session.texts("agent"))[1:] == ["before"]


async def test_wire_2_a_line_of_5_mb_is_fine(conversation: Conversations) -> None:
    """One chunk of 5 MB arrives whole."""
    session = await conversation(on={"session/prompt": {"match": "huge", "steps": [{"huge": 5_000_000}]}})
    await session.begin()
    assert (await session.say("huge"))["state"] == "completed"
    (message,) = [one for one in await session.transcript() if len(one["content"]) > 1000]
    assert message["content"] == "x" * 5_000_000


async def test_wire_2_a_line_over_the_limit_is_an_error_of_this_line(tmp_path: Path, cast: Cast) -> None:
    """The line is skipped and named in the transcript; what comes before and behind it is there."""
    limit = {"KANDEV__LIMITS__LINE_BYTES": "200000"}
    async with Backend(tmp_path, config=cast.config, environment=limit) as backend:
        await backend.start()
        huge = {"match": "huge", "steps": [{"text": "before"}, {"huge": 1_000_000}, {"text": " behind"}]}
        async with backend.client() as client:
            session = await cast.conversation(client, on={"session/prompt": huge})
            await session.begin()
            assert (await session.say("huge"))["state"] == "completed"
            assert (await session.texts("agent"))[1:] == ["before", " behind"]
            assert "1.0 MiB" in (await session.notice("line_too_long"))["content"]
            assert (await session.say("third"))["state"] == "completed"


async def test_wire_3_unknown_updates_are_shown_as_unknown(conversation: Conversations) -> None:
    """An update of a kind that nobody knows is kept raw, in its place, and so is unknown content of a known kind."""
    strange = {"sessionUpdate": "telepathy", "strength": 9}
    image = {
        "sessionUpdate": "agent_message_chunk",
        "content": {"type": "image", "data": "AAAA", "mimeType": "image/png"},
    }
    steps = [{"text": "one"}, {"update": strange}, {"text": "two"}, {"update": image}, {"update": {}}]
    session = await conversation(on={"session/prompt": {"match": "odd", "steps": steps}})
    await session.begin()
    assert (await session.say("odd"))["state"] == "completed"
    said = [(one["type"], one["content"]) for one in await session.transcript() if one["author_type"] == "agent"][1:]
    assert said[:3] == [("message", "one"), ("unknown", "telepathy"), ("message", "two")]
    (unknown,) = [one for one in await session.transcript() if one["content"] == "telepathy"]
    assert unknown["metadata"]["raw"]["strength"] == 9


async def test_wire_5_unknown_requests_of_the_agent_are_answered(conversation: Conversations) -> None:
    """A request that we do not have gets -32601, so that the agent does not wait for ever; the turn goes on."""
    asks = {"match": "ask", "steps": [{"request": "terminal/create", "params": {}}, {"request": "x/y", "id": 7}]}
    session = await conversation(on={"session/prompt": asks})
    await session.begin()
    assert (await session.say("ask"))["state"] == "completed"
    assert (await session.texts("agent"))[-1].count("-32601") == 2


async def test_wire_8_a_grandchild_that_holds_stdout_does_not_hang_the_turn(conversation: Conversations) -> None:
    """The agent's end is seen by its exit, and what it left running is killed."""
    dying = {"match": "deadly", "steps": [{"spawn": 300, "hold_stdout": True, "ignore_sigterm": True}, {"die": 4}]}
    session = await conversation(on={"session/prompt": dying})
    await session.begin()
    await session.send("deadly")
    assert (await session.turn_ended())["state"] == "interrupted"
    await session.agent.until(lambda: not session.agent.alive())
    assert len(session.agent.spawned()) == 1


async def test_state_11_an_error_answer_ends_the_turn(conversation: Conversations) -> None:
    """A model that fails with an error answer: the turn failed, the text says why, the next prompt goes on."""
    failing = {"match": "fail", "error": {"code": -32603, "message": "Internal error", "data": {"details": "quota"}}}
    session = await conversation(on={"session/prompt": failing})
    await session.begin()
    turn = await session.say("fail")
    assert turn["state"] == "failed"
    assert "quota" in (await session.notice("turn_failed"))["content"]
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
    assert (await session.say("third"))["state"] == "completed"
    assert len(session.agent.pids()) == 1
