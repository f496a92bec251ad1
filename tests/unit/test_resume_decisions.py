"""Does a session need a resume, what is then asked of the agent, and what a person can choose."""

from itertools import product
from typing import Any

import msgspec
import pytest

from kandev.domain.models import (
    ExecutorRunning,
    HoldReason,
    RowStatus,
    SessionId,
    SessionState,
    TaskId,
    TaskSession,
)
from kandev.domain.resume import (
    LaunchAgentRequest,
    ResumeReason,
    ResumeStatus,
    build_resume_request,
    evaluate_status,
)
from kandev.orchestrator.recovery import offered_actions, recover_actions

S = SessionState
R = ResumeReason
ACTIVE = ("WAITING_FOR_INPUT", "STARTING", "RUNNING")


def session(state: SessionState, **fields: Any) -> TaskSession:
    return TaskSession(
        id=SessionId("s"),
        task_id=TaskId("t"),
        agent="fake",
        runtime="standalone",
        state=state,
        created_at="",
        updated_at="",
        **fields,
    )


def row(token: str = "", **fields: Any) -> ExecutorRunning:
    return ExecutorRunning(
        session_id=SessionId("s"),
        task_id=TaskId("t"),
        runtime="standalone",
        status=RowStatus.STOPPED,
        resume_token=token,
        **fields,
    )


def status(
    state: SessionState,
    executor: ExecutorRunning | None,
    *,
    memory: bool = False,
    seen: bool = False,
    parked: str = "",
) -> ResumeStatus:
    return evaluate_status(session(state, parked_reason=parked), executor, agent_in_memory=memory, recently_seen=seen)


# ---- the four cases of task.session.status


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("token", ["", "token"])
@pytest.mark.parametrize("seen", [False, True])
def test_case_1_an_agent_in_memory_needs_no_resume(state: SessionState, token: str, seen: bool) -> None:  # noqa: FBT001 - a row of the table
    """Whatever else is true."""
    answer = status(state, row(token), memory=True, seen=seen, parked="five times")
    assert (answer.needs_resume, answer.reason) == (False, R.ALREADY_RUNNING)


@pytest.mark.parametrize("state", ACTIVE)
@pytest.mark.parametrize("token", ["", "token"])
def test_case_2_one_that_was_seen_lately_is_left_alone(state: str, token: str) -> None:
    """Its start or its turn is under way somewhere; a second process would lose turns."""
    answer = status(S(state), row(token), seen=True)
    assert (answer.needs_resume, answer.reason) == (False, R.STALE_EXECUTION)


@pytest.mark.parametrize("state", ACTIVE)
def test_case_3_a_token_and_an_active_state_need_a_resume(state: str) -> None:
    """The agent restores the session itself."""
    assert status(S(state), row("token")) == ResumeStatus(
        needs_resume=True, is_resumable=True, reason=R.AGENT_NOT_RUNNING
    )


@pytest.mark.parametrize("state", ACTIVE)
def test_case_4_a_row_without_a_token_needs_a_fresh_start(state: str) -> None:
    """The session goes on with a new agent session."""
    assert status(S(state), row()) == ResumeStatus(
        needs_resume=True, is_resumable=True, reason=R.AGENT_NOT_RUNNING_FRESH_START
    )


def restated(state: str, token: str | None, *, memory: bool, seen: bool, parked: bool) -> tuple[bool, bool, str]:
    """(needs_resume, is_resumable, reason), told by exclusion and not in the order of the cases. None: no row."""
    active = state in ACTIVE
    resumable = active and token is not None
    needs = resumable and not memory and not seen and not parked
    if needs:
        return True, True, "agent_not_running" if token else "agent_not_running_fresh_start"
    if memory:
        reason = "already_running"
    elif not active:
        reason = "never_started" if state == "CREATED" else "session_ended"
    elif seen:
        reason = "stale_execution"
    else:
        reason = "parked" if parked else "never_started"
    return False, resumable, reason


def test_every_combination_has_the_answer_of_the_restatement() -> None:
    """All 168 of them; nothing but these five things decides."""
    both = (False, True)
    for state, token, memory, seen, parked in product(S, (None, "", "token"), both, both, both):
        executor = None if token is None else row(token)
        answer = status(state, executor, memory=memory, seen=seen, parked="why" if parked else "")
        expected = restated(state, token, memory=memory, seen=seen, parked=parked)
        given = (answer.needs_resume, answer.is_resumable, str(answer.reason))
        assert given == expected, (state, token, memory, seen, parked)


@pytest.mark.parametrize("state", [S.FAILED, S.COMPLETED, S.CANCELLED])
def test_terminal_states_block_a_resume(state: SessionState) -> None:
    """Even with a token: only a person brings such a session back."""
    assert status(state, row("token")) == ResumeStatus(needs_resume=False, is_resumable=False, reason=R.SESSION_ENDED)


def test_state_5_a_parked_session_waits_for_a_person() -> None:
    """It is resumable, but nothing resumes it by itself."""
    assert status(S.WAITING_FOR_INPUT, row("token"), parked="It ended five times.") == ResumeStatus(
        needs_resume=False, is_resumable=True, reason=R.PARKED
    )


# ---- buildResumeRequest: A, B, C

REQUEST = LaunchAgentRequest(
    session_id="s",
    task_id="t",
    execution_id="e",
    instance_id="i",
    cwd="/work",
    task_description="Mend the roof.",
)


def build(
    executor: ExecutorRunning, state: SessionState, *, any_turn: bool = False, start_agent: bool = True
) -> LaunchAgentRequest:
    return build_resume_request(
        REQUEST, running=executor, previous_state=state, any_turn=any_turn, start_agent=start_agent
    )


@pytest.mark.parametrize("state", ACTIVE)
@pytest.mark.parametrize("any_turn", [False, True])
def test_a_with_a_token_the_session_is_loaded_and_not_prompted(state: str, any_turn: bool) -> None:  # noqa: FBT001 - a row of the table
    """The token goes to the agent, and the task's description does not."""
    request = build(row("token", last_message_uuid="uuid"), S(state), any_turn=any_turn)
    assert (request.acp_session_id, request.task_description) == ("token", "")
    assert request.last_message_uuid == "uuid"


@pytest.mark.parametrize(
    ("metadata", "proven"), [({}, False), ({"token_proven": False}, False), ({"token_proven": True}, True)]
)
def test_tok_5_a_request_says_whether_a_turn_ended_in_the_token(metadata: dict[str, Any], proven: bool) -> None:  # noqa: FBT001 - a row of the table
    """So that the resume flag of a command line is used with a proven token only."""
    request = build(row("token", metadata=metadata), S.WAITING_FOR_INPUT)
    assert request.token_proven is proven


@pytest.mark.parametrize("any_turn", [False, True])
def test_b_without_a_token_a_session_that_waited_boots_idle(any_turn: bool) -> None:  # noqa: FBT001 - a row of the table
    """Nobody is prompted by a resume."""
    request = build(row(), S.WAITING_FOR_INPUT, any_turn=any_turn)
    assert (request.acp_session_id, request.task_description) == ("", "")


@pytest.mark.parametrize("state", [S.CREATED, S.STARTING, S.RUNNING])
def test_c_a_first_launch_keeps_the_description(state: SessionState) -> None:
    """The agent is prompted with it, as it was meant when the task was made."""
    assert build(row(), state) == REQUEST


@pytest.mark.parametrize("state", S)
def test_prompt_5_a_description_that_a_turn_took_is_never_sent_again(state: SessionState) -> None:
    """Whatever the state: a turn had it, so the history or a person decides."""
    assert build(row(), state, any_turn=True).task_description == ""


@pytest.mark.parametrize("state", ACTIVE)
def test_without_a_start_of_the_agent_the_request_stays(state: str) -> None:
    """A and B are about an agent that is started now."""
    assert build(row("token"), S(state), start_agent=False) == REQUEST


@pytest.mark.parametrize("token", ["", "token"])
@pytest.mark.parametrize("state", S)
def test_what_identifies_the_start_is_never_touched(state: SessionState, token: str) -> None:
    """Ids and directory go through as they came."""
    request = build(row(token), state)
    kept = {"session_id": "s", "task_id": "t", "execution_id": "e", "instance_id": "i", "cwd": "/work"}
    assert {name: getattr(request, name) for name in kept} == kept


# ---- what a person can choose

CHOICES = {
    S.CREATED: [],
    S.STARTING: ["resume", "fresh_start", "recap"],
    S.RUNNING: ["resume", "fresh_start", "recap"],
    S.WAITING_FOR_INPUT: ["resume", "fresh_start", "recap"],
    S.COMPLETED: [],
    S.FAILED: ["resume", "fresh_start", "recap"],
    S.CANCELLED: ["resume", "fresh_start", "recap"],
}


@pytest.mark.parametrize("state", S)
def test_recover_is_possible_unless_a_session_is_new_or_completed(state: SessionState) -> None:
    """COMPLETED is final; a session that never started is started, not recovered."""
    assert recover_actions(session(state), row()) == CHOICES[state]
    assert recover_actions(session(state), None) == []


def test_tok_1_trying_again_is_possible_while_the_old_token_is_there() -> None:
    """A token that was set aside can be put back."""
    aside = row(metadata={"previous_token": "old"})
    assert recover_actions(session(S.WAITING_FOR_INPUT), aside)[-1] == "retry_token"
    assert recover_actions(session(S.COMPLETED), aside) == []


STUCK = {HoldReason.TOKEN_REJECTED, HoldReason.PARKED, HoldReason.MODE}


@pytest.mark.parametrize("held", HoldReason)
def test_actions_are_offered_where_a_person_has_to_decide(held: HoldReason) -> None:
    """A queue that the next message opens offers nothing; one that waits for a decision does."""
    offered = offered_actions(session(S.WAITING_FOR_INPUT, queue_held=held), row())
    assert bool(offered) is (held in STUCK)


@pytest.mark.parametrize("fields", [{"state": S.FAILED}, {"state": S.CANCELLED}, {"parked_reason": "five times"}])
def test_actions_are_offered_for_ended_and_parked_sessions(fields: dict[str, Any]) -> None:
    """They go on only if a person says how."""
    stuck = msgspec.structs.replace(session(S.WAITING_FOR_INPUT), **fields)
    assert offered_actions(stuck, row()) == ["resume", "fresh_start", "recap"]
