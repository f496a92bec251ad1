"""The two decisions of a resume, both pure: does a session need one, and what is then asked of the agent.

Sources: specification, "GetTaskSessionStatus" (four cases) and "buildResumeRequest" (cases A, B, C).
"""

from enum import StrEnum

import msgspec

from kandev.domain.models import (
    ACTIVE_STATES,
    ExecutorRunning,
    SessionState,
    TaskSession,
    Turn,
)

MESSAGE_TURN = "message_turn"
"""Where the row's metadata keep which turn `last_message_uuid` ended."""
FORK_OF = "fork_of"
"""Where they keep the token of the session that this one begins as a copy of, until a turn has ended in the copy."""


class ResumeReason(StrEnum):
    """Why a session needs a resume, or why not."""

    ALREADY_RUNNING = "already_running"
    STALE_EXECUTION = "stale_execution"
    AGENT_NOT_RUNNING = "agent_not_running"
    AGENT_NOT_RUNNING_FRESH_START = "agent_not_running_fresh_start"
    SESSION_ENDED = "session_ended"
    PARKED = "parked"
    NEVER_STARTED = "never_started"


class ResumeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `evaluate_status`."""

    needs_resume: bool
    is_resumable: bool
    reason: ResumeReason


def evaluate_status(
    session: TaskSession, row: ExecutorRunning | None, *, agent_in_memory: bool, recently_seen: bool
) -> ResumeStatus:
    """Evaluate the four cases of the specification, in its order, and what lies outside of them.

    `recently_seen` is: not in memory, STARTING or RUNNING, seen less than 30 s ago in this boot (design, section 5).
    """
    resumable = session.state in ACTIVE_STATES and row is not None
    needs, reason = _cases(session, row, agent_in_memory=agent_in_memory, recently_seen=recently_seen)
    return ResumeStatus(needs_resume=needs, is_resumable=resumable, reason=reason)


def _cases(  # noqa: PLR0911 - one return for each case, in the order of the table
    session: TaskSession, row: ExecutorRunning | None, *, agent_in_memory: bool, recently_seen: bool
) -> tuple[bool, ResumeReason]:
    if agent_in_memory:
        return False, ResumeReason.ALREADY_RUNNING
    if session.state not in ACTIVE_STATES:
        started = session.state is not SessionState.CREATED
        return False, ResumeReason.SESSION_ENDED if started else ResumeReason.NEVER_STARTED
    if recently_seen:
        return False, ResumeReason.STALE_EXECUTION
    if session.parked_reason:
        return False, ResumeReason.PARKED
    if row is None:
        return False, ResumeReason.NEVER_STARTED
    if row.resume_token:
        return True, ResumeReason.AGENT_NOT_RUNNING
    return True, ResumeReason.AGENT_NOT_RUNNING_FRESH_START


class LaunchAgentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the lifecycle manager is asked to start.

    `acp_session_id` non-empty asks for session/load (or resume); `task_description` non-empty makes
    `dispatch_initial_prompt` send the first prompt, empty lets the agent boot idle. `opened_at` is when an agent last
    opened the session, or was about to; '' if never. `fork_of` is the token of another session, of which the agent is
    to make a copy.
    """

    session_id: str
    task_id: str
    execution_id: str
    instance_id: str
    cwd: str
    acp_session_id: str = ""
    token_proven: bool = False
    last_message_uuid: str = ""
    opened_at: str = ""
    fork_of: str = ""
    task_description: str = ""


def resume_point(running: ExecutorRunning, last_turn: Turn | None) -> str:
    """Return the message behind which the agent is to go on (`--resume-session-at`), '' for the end of its own record.

    An agent that is resumed at a message forgets what it recorded behind it. So it is used only where the session's
    last turn ended with that message: then both records agree. A turn that was interrupted, cancelled or failed stays
    in the agent's memory as far as it came. Nor in a second try (TOK-16): the agent may not have stored the message.
    """
    known = last_turn is not None and running.metadata.get(MESSAGE_TURN) == last_turn.id
    return running.last_message_uuid if known and not running.metadata.get("cannot_restore") else ""


def build_resume_request(
    request: LaunchAgentRequest,
    *,
    running: ExecutorRunning,
    previous_state: SessionState,
    any_turn: bool,
    start_agent: bool = True,
) -> LaunchAgentRequest:
    """Decide whether the agent is prompted by itself; `request` comes with the task's description.

    A: a token is there, so load it and do not prompt. B: no token and the session waited for input, so boot idle.
    C: the description stays, as at a first launch; but only while no turn has taken it (PROMPT-5).
    """
    if running.resume_token and start_agent:
        return msgspec.structs.replace(
            request,
            acp_session_id=running.resume_token,
            token_proven=bool(running.metadata.get("token_proven")),
            last_message_uuid=running.last_message_uuid,
            task_description="",
        )
    request = msgspec.structs.replace(request, fork_of=str(running.metadata.get(FORK_OF, "")))
    if any_turn or (start_agent and previous_state is SessionState.WAITING_FOR_INPUT):
        return msgspec.structs.replace(request, task_description="")
    return request
