"""How a start went. Of a failed one: state, token, queue, outcome and notice, in one commit (design, section 4)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.domain.failures import (
    FailureCause,
    Outcome,
    PromptFailure,
    TokenFate,
    classify_failure,
    classify_prompt_failure,
)
from kandev.domain.known_agents import LoginView
from kandev.domain.models import (
    Event,
    ExecutorRunning,
    HoldReason,
    ResumeOutcome,
    RowStatus,
    SessionState,
    TaskSession,
    TaskState,
    now,
)
from kandev.domain.states import SessionEvent, TaskEvent
from kandev.errors import AgentError, Conflict, KandevError, RequestFailed, Unavailable, WorkspaceMissing
from kandev.lifecycle.effects import Notice
from kandev.lifecycle.execution import AgentExecution
from kandev.lifecycle.manager import Started
from kandev.lifecycle.session import InitialPrompt
from kandev.orchestrator import known_agents, notices
from kandev.orchestrator.event_handlers import count_failure, next_failure_parks, set_token_aside
from kandev.orchestrator.starting import GivenUp, Start, cause_of
from kandev.orchestrator.transitions import LIVES, hold_queue, move_session, move_task
from kandev.protocols.acp import error_text
from kandev.store.database import Tx
from kandev.store.rows import to_json
from kandev.store.store import Store

QUIET = frozenset({FailureCause.USER_CANCELLED, FailureCause.BACKEND_STOPPING})
COUNTED = frozenset({FailureCause.START_FAILED, FailureCause.AGENT_DIED})
TRY_LATER = frozenset(
    {FailureCause.AGENT_DIED, FailureCause.INACTIVE, FailureCause.UNREACHABLE, FailureCause.BACKEND_STOPPING}
)
EVENTS = {
    FailureCause.UNKNOWN_SESSION: SessionEvent.TOKEN_REJECTED,
    FailureCause.CANNOT_RESTORE: SessionEvent.TOKEN_REJECTED,
    FailureCause.AGENT_DIED: SessionEvent.AGENT_LOST,
    FailureCause.START_FAILED: SessionEvent.START_FAILED,
}


def outcome_args(outcome: ResumeOutcome) -> Mapping[str, Any]:
    """Return the arguments of `resume_insert`."""
    args = msgspec.structs.asdict(outcome)
    return {**args, "stages": to_json(outcome.stages), "replayed": to_json(outcome.replayed)}


async def record_failure(
    store: Store, start: Start, error: KandevError, *, publish: Callable[[Sequence[Event]], None]
) -> KandevError:
    """Store what became of a session whose agent could not be started, and publish it.

    Returns the error for whoever waits for the start.
    """
    session = store.session(start.session_id)
    login = known_agents.login_of(store, session.id)
    words = _in_its_words(error, store.executor(session.id))
    cause = cause_of(error, start, login=_asks_for_login(error))
    notice = _notice(cause, error, login=login, words=words)
    said = [notices.placed_or_counted(store, session.id, notice)] if notice else []
    if cause in COUNTED and next_failure_parks(session):
        said.append(notices.placed_notice(store, session.id, notices.parked_notice(_said_last(error, words))))
    stored = start.outcome(error=error.message, reason=str(cause))

    def job(tx: Tx) -> list[Event]:
        if tx.one("session_get", id=session.id) is None:
            return []  # deleted meanwhile
        # Inside: another session of the task may fail in the same moment, and one of the two is the last (STATE-8).
        others = tx.all("session_states_of_task", task_id=session.task_id, except_id=session.id)
        lives = any(SessionState(other["state"]) in LIVES for other in others)
        outcome = classify_failure(cause, turn_open=False, other_session_lives=lives)
        events = _settle(tx, session, cause, outcome, error.message)
        if cause is FailureCause.LOGIN_NEEDED:
            known_agents.login_needed(tx, session.agent, words)
        if start.execution_id:
            tx.one(
                "executor_set_status",
                session_id=session.id,
                agent_execution_id=start.execution_id,
                status=RowStatus.FAILED,
                now=now(),
            )
        events += [notices.write_notice(tx, message, session.task_id) for message in said]
        tx.run("resume_insert", **outcome_args(stored))
        return events

    failpoint("start.before_failure")
    events = await store.write_patiently(job)
    failpoint("start.after_failure")
    told = _for_callers(error, cause, command=login.command)
    code = {"code": told.code, "reason": told.reason or str(cause), "cause": str(cause), "message": told.message}
    publish([*events, start.event("session.resume.failed", code)])
    return told


def _for_callers(error: KandevError, cause: FailureCause, *, command: str) -> KandevError:
    """Return the error that goes over the wire: not the agent's own, but its cause, and what goes with it."""
    if not isinstance(error, AgentError | GivenUp):
        return error
    details = _died_details(error)
    if cause is FailureCause.LOGIN_NEEDED:
        details["command"] = command
    if owner := error.details.get("owner"):
        details["owner"] = owner
    kind = Unavailable if cause in TRY_LATER else Conflict
    return kind(error.message, reason=str(cause), **details)


def _settle(tx: Tx, session: TaskSession, cause: FailureCause, outcome: Outcome, error: str) -> list[Event]:
    session_id, task_id = session.id, session.task_id
    event = EVENTS.get(cause, SessionEvent.START_UNDONE)
    row = tx.one("session_get", id=session_id)
    if event is SessionEvent.START_UNDONE and row is not None and row["state"] == SessionState.CREATED:
        return []
    events = move_session(tx, session_id, event, error="" if cause in QUIET else error)
    if outcome.token is TokenFate.SET_ASIDE:
        set_token_aside(tx, session_id)
    # A launch has put the task in progress; without this it would stay so although none of its sessions runs.
    if outcome.task_state is TaskState.FAILED:
        events += move_task(tx, task_id, TaskEvent.SESSION_FAILED, session_id=session_id)
    elif not _runs(tx, session_id):
        events += move_task(tx, task_id, TaskEvent.SESSION_WAITING, session_id=session_id)
    if outcome.hold is not HoldReason.OPEN:
        events += hold_queue(tx, session_id, outcome.hold)
    if cause in COUNTED:
        events += count_failure(tx, session_id)
    return events


def _runs(tx: Tx, session_id: str) -> bool:
    """Tell whether a turn is open: its agent is being ended, and its end moves session and task."""
    row = tx.one("session_get", id=session_id)
    return row is not None and row["state"] == SessionState.RUNNING


def _asks_for_login(error: KandevError) -> bool:
    if not isinstance(error, RequestFailed) or not isinstance(error.error, Mapping):
        return False
    return classify_prompt_failure(error.error, session_id="") is PromptFailure.LOGIN


def _notice(cause: FailureCause, error: KandevError, *, login: LoginView, words: str) -> Notice | None:
    """UI-4: what happened, what was kept, and which action goes on."""
    if cause in QUIET:
        return None
    if cause is FailureCause.LOGIN_NEEDED:
        return notices.login_notice(words, login)
    if cause is FailureCause.UNKNOWN_SESSION:
        return notices.rejected_notice(error.message)
    if cause is FailureCause.CANNOT_RESTORE:
        return notices.not_restored_notice(error.message)
    kept = "The session, its transcript and its queue are kept."
    texts = {
        FailureCause.IN_USE: f"The agent's session is open elsewhere{_owner(error)}. Close it there, then resume.",
        FailureCause.INACTIVE: f"{_what_it_did(error)}: {error.message} Resume to try again.",
        FailureCause.UNREACHABLE: f"The agent cannot be reached: {error.message} Resume to try again.",
        FailureCause.AGENT_DIED: f"The agent ended while it was restoring: {error.message} Resume to try again.",
        FailureCause.START_FAILED: f"The agent could not be started: {error.message}",
    }
    text = f"{texts.get(cause, error.message)} {kept}"
    actions = classify_failure(cause, turn_open=False, other_session_lives=False).actions
    return Notice(
        type="error" if cause is FailureCause.START_FAILED else "status",
        content=text,
        metadata={"kind": str(cause), "actions": list(actions), **_details(error)},
    )


def _in_its_words(error: KandevError, row: ExecutorRunning | None) -> str:
    """Return what the agent said, without the token (TOK-9)."""
    raw = error.error if isinstance(error, RequestFailed) else None
    return error_text(raw, hide=row.resume_token if row else "") if raw else error.message


def _said_last(error: KandevError, words: str) -> str:
    """Return what the agent itself said before its start failed, '' where only we have something to say."""
    return str(error.details.get("stderr") or (words if isinstance(error, RequestFailed) else ""))


def _what_it_did(error: KandevError) -> str:
    return "The agent refused" if isinstance(error, RequestFailed) else "The agent did not answer"


def _owner(error: KandevError) -> str:
    owner = error.details.get("owner")
    return f" ({owner})" if owner else ""


def _died_details(error: KandevError) -> dict[str, Any]:
    return {key: error.details[key] for key in ("exit_code", "stderr") if error.details.get(key)}


def _details(error: KandevError) -> dict[str, Any]:
    gone = {"reason": error.reason} if isinstance(error, WorkspaceMissing) else {}
    return {**_died_details(error), **gone}


def how_it_came_up(started: Started, session: TaskSession, *, launch: bool) -> str:
    """Return the outcome's `how`: native, recap, injection, fresh or idle."""
    if started.restored.how == "native":
        return "native"
    if session.recap_pending:
        return "recap"
    if started.initial is InitialPrompt.INJECT:
        return "injection"
    return "fresh" if launch or started.restored.reason else "idle"


def ready_notices(started: Started, how: str, execution: AgentExecution) -> list[Notice]:
    """Return what the transcript says of an agent that came up: what was lost, and what it did not take back."""
    said = []
    restored = started.restored
    if restored.lost:
        said.append(
            notices.status(
                "cannot_restore",
                f"A new agent session was started: {restored.reason}. The transcript is kept; {restored.lost} is not "
                "available. You can continue with a summary.",
                "recap",
            )
        )
    elif how == "idle" and execution.request.acp_session_id:
        said.append(
            notices.status(
                "resumed",
                f"{execution.config.display_name} was started again and does not remember this conversation. "
                "The transcript is kept. You can continue with a summary.",
                "recap",
            )
        )
    if restored.mode_failed:
        said.append(
            notices.status(
                "mode_not_restored",
                f"The agent did not take back what was set ({restored.mode_failed}). No prompt is sent until you "
                "agree: send a message, or resume the queue.",
                "queue_resume",
            )
        )
    return said
