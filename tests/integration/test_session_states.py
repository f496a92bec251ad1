"""The states of session and task on every path, and what `task.session.status` makes of them."""

from typing import Any

import pytest

from conversation import Conversations
from fakes import PATIENCE_S

RESUME = ["session STARTING", "session WAITING_FOR_INPUT"]
TURN = ["session RUNNING", "task IN_PROGRESS", "session WAITING_FOR_INPUT", "task REVIEW"]


async def test_a_launch_goes_through_starting_and_running_to_review(conversation: Conversations) -> None:
    """STARTING with the task in progress, ready, RUNNING, and at the turn's end WAITING_FOR_INPUT with REVIEW."""
    session = await conversation()
    assert await session.states() == ("CREATED", "CREATED")
    await session.begin()
    await session.event("task.state_changed", new_state="REVIEW")
    assert session.moves() == [
        "session STARTING",
        "task IN_PROGRESS",
        "session WAITING_FOR_INPUT",
        "session RUNNING",
        "session WAITING_FOR_INPUT",
        "task REVIEW",
    ]


@pytest.mark.parametrize("kind", ["native", "history", "plain", "flagged"])
async def test_a_resume_goes_through_starting_and_leaves_the_task_in_review(
    conversation: Conversations, kind: str
) -> None:
    """Whatever the agent can restore: STARTING, WAITING_FOR_INPUT, and a turn afterwards as any other."""
    session = await conversation(kind)
    await session.begin()
    await session.lose_agent()
    assert session.moves() == []
    await session.resume()
    assert session.moves() == RESUME
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
    await session.say("second")
    await session.event("task.state_changed", new_state="REVIEW")
    assert session.moves() == TURN


async def test_state_6_a_silent_resume_leaves_the_task_as_it_was(conversation: Conversations) -> None:
    """Opening a session changes neither the task's state nor the time of its last change."""
    session = await conversation()
    await session.begin()
    await session.event("task.state_changed", new_state="REVIEW")
    await session.lose_agent()
    before = (await session.client.call("task.get", {"task_id": session.task_id}))["task"]
    await session.resume()
    assert (await session.client.call("task.get", {"task_id": session.task_id}))["task"] == before


async def test_an_agent_that_dies_in_a_turn_leaves_the_session_waiting(conversation: Conversations) -> None:
    """STATE-4: the turn is interrupted, the session waits, the task is in review, and a resume brings it back."""
    session = await conversation(on={"session/prompt": {"match": "die", "steps": [{"text": "partly"}, {"die": 7}]}})
    await session.begin()
    turn = await session.say("die")
    await session.event("task.state_changed", new_state="REVIEW")
    assert turn["state"] == "interrupted"
    assert session.moves() == TURN
    status = await session.status()
    assert (status["interrupted"], status["queue_held"], status["needs"]) == (True, "interrupted", "decision")
    assert (await session.notice("interrupted"))["metadata"]["exit_code"] == 7
    assert (await session.texts("agent"))[-1] == "partly"
    assert (await session.resume())["how"] == "native"
    assert len(session.agent.prompts()) == 2


async def test_a_launch_that_fails_before_initialize_fails_session_and_task(conversation: Conversations) -> None:
    """STATE-2: not left STARTING; the exit code and the last words are said."""
    session = await conversation(start=[{"stderr": "no licence"}, {"die": 4}])
    await session.act("task.session.start")
    await session.event("session.resume.failed")
    assert session.moves() == ["session STARTING", "task IN_PROGRESS", "session FAILED", "task FAILED"]
    said = await session.notice("start_failed")
    assert said["metadata"]["exit_code"] == 4
    assert "no licence" in said["metadata"]["stderr"]


async def test_state_8_a_failed_second_session_does_not_fail_the_task(conversation: Conversations) -> None:
    """Another session of the task lives, so the task stays in review."""
    session = await conversation()
    await session.begin()
    broken = await conversation(start=[{"die": 1}])
    name = (await broken.status())["agent"]
    created = await session.client.call("task.session.create", {"task_id": session.task_id, "agent": name})
    second = {"task_id": session.task_id, "session_id": created["session"]["id"]}
    session.forget()
    await session.client.call("task.session.start", second)
    await session.client.wait_event(
        "session.state_changed", lambda p: p["session_id"] == second["session_id"] and p["new_state"] == "FAILED"
    )
    await session.event("task.state_changed", new_state="REVIEW")
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")


# task.session.status: the four cases, and what lies outside of them


def case(status: Any) -> tuple[bool, bool, str]:
    """The decision in a status."""
    return status["needs_resume"], status["is_resumable"], status["resume_reason"]


async def test_status_case_1_the_agent_runs(conversation: Conversations) -> None:
    """An agent in memory needs no resume."""
    session = await conversation()
    await session.begin()
    status = await session.status()
    assert case(status) == (False, True, "already_running")
    assert status["is_agent_running"] is True


async def test_status_case_2_the_execution_was_seen_a_moment_ago(conversation: Conversations) -> None:
    """A start under way is no reason to start another one."""
    session = await conversation()
    await session.begin()
    await session.lose_agent()
    session.agent.update(start=[{"mark": "waits"}, {"gate": "go"}])
    await session.act("task.session.resume")
    await session.agent.until(lambda: "waits" in session.agent.marks(), PATIENCE_S)
    status = await session.status()
    assert case(status) == (False, True, "stale_execution")
    assert (status["state"], status["stage"]) == ("STARTING", "starting_agent")
    session.agent.open_gate("go")
    await session.event("session.resume.completed")


async def test_status_case_3_a_token_and_no_agent(conversation: Conversations) -> None:
    """A token is there, so a resume is worth it; the token itself is not shown (TOK-9)."""
    session = await conversation()
    await session.begin()
    await session.lose_agent()
    status = await session.status()
    assert case(status) == (True, True, "agent_not_running")
    assert len(status["acp_session_id"]) == 8


async def test_status_case_4_a_row_without_a_token(conversation: Conversations) -> None:
    """Without a token a resume starts the agent afresh."""
    session = await conversation(on={"session/resume": {"error": {"code": -32002, "message": "Session not found"}}})
    await session.begin()
    await session.lose_agent()
    await session.fail_to_resume()
    status = await session.status()
    assert case(status) == (True, True, "agent_not_running_fresh_start")
    assert status["acp_session_id"] == ""


async def test_status_of_a_session_that_never_started(conversation: Conversations) -> None:
    """A created session is started, not resumed."""
    session = await conversation()
    assert case(await session.status()) == (False, False, "never_started")


async def test_status_of_a_stopped_session(conversation: Conversations) -> None:
    """CANCELLED blocks the resume, and says which ways lead back."""
    session = await conversation()
    await session.begin()
    await session.act("task.session.stop")
    status = await session.status()
    assert case(status) == (False, False, "session_ended")
    assert status["recover_actions"] == ["resume", "fresh_start", "recap"]
    assert await session.states() == ("CANCELLED", "REVIEW")


async def test_status_of_a_failed_session(conversation: Conversations) -> None:
    """FAILED blocks the resume, says why, and which ways lead back."""
    session = await conversation(start=[{"die": 1}])
    await session.act("task.session.start")
    await session.event("session.state_changed", new_state="FAILED")
    status = await session.status()
    assert case(status) == (False, False, "session_ended")
    assert "exit code 1" in status["error"]
    assert "resume" in status["recover_actions"]


async def test_status_of_a_completed_session(conversation: Conversations) -> None:
    """COMPLETED is final: nothing leads back."""
    session = await conversation()
    await session.begin()
    await session.call("task.complete")
    status = await session.status()
    assert case(status) == (False, False, "session_ended")
    assert status["recover_actions"] == []
    assert await session.states() == ("COMPLETED", "COMPLETED")


async def test_state_5_status_of_a_parked_session(conversation: Conversations) -> None:
    """Five ends of the agent within a minute park the session: no resume by itself, and a person can try again."""
    session = await conversation()
    await session.begin()
    await session.lose_agent()
    session.agent.update(on={"session/resume": {"steps": [{"die": 3}]}})
    for _ in range(4):
        await session.fail_to_resume()
    status = await session.status()
    assert case(status) == (False, True, "parked")
    assert (status["state"], status["queue_held"]) == ("WAITING_FOR_INPUT", "parked")
    refused = await session.refused("task.session.resume")
    assert (refused.code, refused.reason) == ("CONFLICT", "parked")
    assert (await session.status())["state"] == "WAITING_FOR_INPUT"
    assert len(session.agent.pids()) == 5
    session.agent.update(on={})
    assert (await session.recover("resume"))["how"] == "native"
    assert case(await session.status()) == (False, True, "already_running")
