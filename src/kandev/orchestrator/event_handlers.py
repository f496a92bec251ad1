"""What the agent did, carried over to session, task, turn, token and queue.

`in_commit` runs inside the transaction that stores the position in the journal, so each effect happens once.
Specification: "storeResumeToken() ... called from three event handlers".
"""

from collections.abc import Callable
from typing import Any

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.domain.constants import PARK_FAILURES, PARK_WINDOW_S
from kandev.domain.failures import FailureCause
from kandev.domain.models import (
    Event,
    ExecutorRunning,
    HoldReason,
    RowStatus,
    TaskSession,
    Turn,
    TurnState,
    now,
    seconds_since,
)
from kandev.domain.resume import FORK_OF, MESSAGE_TURN
from kandev.domain.states import SessionEvent, TaskEvent
from kandev.lifecycle.batch import message_event
from kandev.lifecycle.effects import (
    AcpSessionCreated,
    AgentExited,
    AgentIntroduced,
    CompleteStreamEvent,
    Effect,
    ExecutionRef,
    Notice,
    PromptAccepted,
    PromptFailed,
    SessionStatusEvent,
)
from kandev.orchestrator import known_agents, notices
from kandev.orchestrator.transitions import hold_queue, move_session, move_task, queue_event
from kandev.protocols.acp import error_text
from kandev.store.database import Tx
from kandev.store.rows import from_row, message_from_row, to_json
from kandev.store.store import Store

UNPLANNED = ""


class SessionEventHandlers:
    """Implements `EventHandlers`. `after` is called in the loop once an effect is committed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.after: Callable[[ExecutionRef, Effect], None] = lambda _ref, _effect: None

    def notices(self, ref: ExecutionRef, effect: Effect) -> list[Notice]:
        """Return what the transcript says of an effect."""
        match effect:
            case AgentExited():
                parked = effect.why == UNPLANNED and next_failure_parks(self._store.session(ref.session_id))
                return notices.of_exit(
                    effect,
                    unsent=self._has_unsent_turn(ref),
                    cancelled=self._turn_was_cancelled(effect.turn_id),
                    parked=parked,
                )
            case PromptFailed():
                login = known_agents.login_of(self._store, ref.session_id)
                return notices.of_prompt_failure(effect, token=self._token(ref), login=login)
            case CompleteStreamEvent():
                return notices.of_completion(effect)
        return []

    def in_commit(self, tx: Tx, ref: ExecutionRef, effect: Effect) -> list[Event]:
        """Store what follows from an effect; return what is published."""
        match effect:
            case AcpSessionCreated():
                return handle_acp_session_created(tx, ref, effect)
            case SessionStatusEvent():
                return handle_session_status_event(tx, ref, effect)
            case CompleteStreamEvent():
                return handle_complete_stream_event(tx, ref, effect)
            case AgentIntroduced() | PromptAccepted():
                return _keep(tx, ref, effect)
            case PromptFailed():
                return handle_prompt_failed(tx, ref, effect)
            case AgentExited():
                return handle_agent_exited(tx, ref, effect)

    def committed(self, ref: ExecutionRef, effect: Effect) -> None:
        """Go on in the loop."""
        if isinstance(effect, CompleteStreamEvent):
            failpoint("turn.ended")
        self.after(ref, effect)

    def _turn_was_cancelled(self, turn_id: str) -> bool:
        return bool(turn_id) and bool(self._store.turn(turn_id).cancel_requested_at)

    def _has_unsent_turn(self, ref: ExecutionRef) -> bool:
        """Tell whether a turn took a prompt and gave it no line yet. What is in flight the effect itself says."""
        turn = self._store.open_turn(ref.session_id)
        return turn is not None and not turn.line

    def _token(self, ref: ExecutionRef) -> str:
        row = self._store.executor(ref.session_id)
        return row.resume_token if row else ""


def _keep(tx: Tx, ref: ExecutionRef, effect: AgentIntroduced | PromptAccepted) -> list[Event]:
    if isinstance(effect, AgentIntroduced):
        known_agents.introduced(tx, ref.agent, effect.initialize)
    elif effect.injected == "recap":
        tx.run("session_set_recap", id=ref.session_id, recap_pending=0)
    return []


def store_resume_token(
    tx: Tx, ref: ExecutionRef, token: str, *, last_message_uuid: str = "", proven: bool | None = None
) -> None:
    """Store the agent's session id, whatever the agent's flags; an older execution changes nothing (TOK-3).

    A token that is replaced is kept as `metadata.previous_token`. `proven` True: a turn ended in it (TOK-5); None
    leaves that as it is for the same token. A write without `last_message_uuid` keeps the stored one (TOK-6).
    """
    stored = tx.one("executor_get", session_id=ref.session_id)
    if not token or stored is None:
        return
    row = from_row(ExecutorRunning, stored)
    metadata = dict(row.metadata)
    if row.resume_token != token:
        metadata = {**_set_aside(row), "token_proven": bool(proven)}
    elif proven:
        metadata["token_proven"] = True
    if proven:
        metadata.pop("cannot_restore", None)
        metadata.pop(FORK_OF, None)
        # "Try again" ends with the first turn of the new session.
        metadata.pop("previous_token", None)
        metadata.pop("previous_unproven", None)
    if row.resume_token == token and metadata == row.metadata and not last_message_uuid:
        return
    failpoint("token.in_commit")
    tx.one(
        "executor_set_token",
        session_id=ref.session_id,
        agent_execution_id=ref.execution_id,
        resume_token=token,
        last_message_uuid=last_message_uuid,
        metadata=to_json(metadata),
        now=now(),
    )


def _set_aside(row: ExecutorRunning) -> dict[str, Any]:
    """Return the metadata with the row's token as the previous one, if it has one; also whether that was proven."""
    if not row.resume_token:
        return dict(row.metadata)
    metadata = {key: value for key, value in row.metadata.items() if key != "previous_unproven"}
    unproven = {} if row.metadata.get("token_proven") else {"previous_unproven": True}
    return {**metadata, **unproven, "previous_token": row.resume_token}


def set_token_aside(tx: Tx, session_id: str) -> None:
    """Empty the token; the old one goes to `metadata.previous_token`, for "try again" (TOK-1, TOK-10)."""
    stored = tx.one("executor_get", session_id=session_id)
    if stored is None:
        return
    row = from_row(ExecutorRunning, stored)
    metadata = {key: value for key, value in _set_aside(row).items() if key not in {"token_proven", "cannot_restore"}}
    failpoint("token.set_aside")
    tx.one(
        "executor_swap_token",
        session_id=session_id,
        observed_token=row.resume_token,
        resume_token="",
        metadata=to_json(metadata),
        now=now(),
    )


def handle_acp_session_created(tx: Tx, ref: ExecutionRef, effect: AcpSessionCreated) -> list[Event]:
    """First caller of `store_resume_token`: the agent made a session."""
    known_agents.session_opened(tx, ref.agent)
    store_resume_token(tx, ref, effect.token)
    return []


def handle_session_status_event(tx: Tx, ref: ExecutionRef, effect: SessionStatusEvent) -> list[Event]:
    """Second caller: the agent told of the session it is in. It may be late, of a session that was set aside."""
    if effect.opened:
        known_agents.session_opened(tx, ref.agent)
    row = tx.one("executor_get", session_id=ref.session_id)
    if row is not None and from_row(ExecutorRunning, row).metadata.get("previous_token") == effect.token:
        return []
    store_resume_token(tx, ref, effect.token, last_message_uuid=effect.last_message_uuid)
    return []


def handle_complete_stream_event(tx: Tx, ref: ExecutionRef, effect: CompleteStreamEvent) -> list[Event]:
    """Third caller: a turn ended, which proves the token. Session waits, task is in review."""
    proven = True if effect.proves else None
    store_resume_token(tx, ref, effect.token, proven=proven, last_message_uuid=effect.last_message_uuid)
    known_agents.turn_ended(tx, ref.agent)
    state = TurnState.CANCELLED if effect.stop_reason == "cancelled" else TurnState.COMPLETED
    if effect.last_message_uuid and state is TurnState.COMPLETED:
        _note_turn_of_message(tx, ref, effect.turn_id)
    events = end_turn(tx, ref, effect.turn_id, state, stop_reason=effect.stop_reason, usage=dict(effect.usage))
    events += move_session(tx, ref.session_id, SessionEvent.TURN_ENDED)
    return events + move_task(tx, ref.task_id, TaskEvent.SESSION_WAITING, session_id=ref.session_id)


def _note_turn_of_message(tx: Tx, ref: ExecutionRef, turn_id: str) -> None:
    """Keep which turn `last_message_uuid` ends: a resume from there would lose whatever came after it."""
    stored = tx.one("executor_get", session_id=ref.session_id)
    if stored is not None:
        metadata = {**from_row(ExecutorRunning, stored).metadata, MESSAGE_TURN: turn_id}
        tx.run("executor_set_metadata", session_id=ref.session_id, metadata=to_json(metadata), now=now())


def handle_prompt_failed(tx: Tx, ref: ExecutionRef, effect: PromptFailed) -> list[Event]:
    """End the turn as failed; a session that the agent does not know loses its token (TOK-1), a login holds."""
    row = tx.one("executor_get", session_id=ref.session_id)
    token = row["resume_token"] if row else ""
    cause = notices.prompt_cause(effect, token=token)
    error = error_text({"message": effect.error.get("message", "error")}, hide=token)[:500]
    turn = tx.one("turn_get", id=effect.turn_id)
    cancelled = turn is not None and bool(turn["cancel_requested_at"])
    state = TurnState.CANCELLED if cancelled else TurnState.FAILED
    events = end_turn(tx, ref, effect.turn_id, state, stop_reason="error", error=error)
    if cause is FailureCause.UNKNOWN_SESSION:
        set_token_aside(tx, ref.session_id)
        events += move_session(tx, ref.session_id, SessionEvent.TOKEN_REJECTED)
        events += hold_queue(tx, ref.session_id, HoldReason.TOKEN_REJECTED)
    else:
        events += move_session(tx, ref.session_id, SessionEvent.TURN_ENDED, error=error)
    if cause is FailureCause.LOGIN_NEEDED:
        known_agents.login_needed(tx, ref.agent, error_text(effect.error, hide=token))
        events += hold_queue(tx, ref.session_id, HoldReason.LOGIN)
    return events + move_task(tx, ref.task_id, TaskEvent.SESSION_WAITING, session_id=ref.session_id)


def handle_agent_exited(tx: Tx, ref: ExecutionRef, effect: AgentExited) -> list[Event]:
    """Close what the process leaves: its row, an open turn, the queue, and the count of such ends (STATE-5)."""
    tx.one(
        "executor_set_status",
        session_id=ref.session_id,
        agent_execution_id=ref.execution_id,
        status=RowStatus.STOPPED,
        now=now(),
    )
    tx.run("outbox_clear", session_id=ref.session_id)
    events = [
        Event(
            action="session.agent_changed",
            session_id=ref.session_id,
            task_id=ref.task_id,
            payload={"is_agent_running": False, "exit_code": effect.exit_code, "signal": effect.signal},
        )
    ]
    row = tx.one("turn_open", session_id=ref.session_id)
    if row is not None and row["agent_execution_id"] == ref.execution_id:
        turn = from_row(Turn, row)
        undelivered = not effect.delivered or not turn.line
        events += put_back(tx, ref, turn) if undelivered else _interrupt(tx, ref, turn, effect)
        error = "" if effect.why else f"The agent ended (exit code {effect.exit_code}, signal {effect.signal})."
        events += move_session(tx, ref.session_id, SessionEvent.AGENT_LOST, error=error)
        events += move_task(tx, ref.task_id, TaskEvent.SESSION_WAITING, session_id=ref.session_id)
    if effect.why == UNPLANNED:
        events += count_failure(tx, ref.session_id)
    return events


def _interrupt(tx: Tx, ref: ExecutionRef, turn: Turn, effect: AgentExited) -> list[Event]:
    if turn.cancel_requested_at:
        return end_turn(tx, ref, turn.id, TurnState.CANCELLED, stop_reason="cancelled")
    tx.run("session_set_interrupted", id=ref.session_id, interrupted=1)
    error = effect.stderr[-500:]
    events = end_turn(tx, ref, turn.id, TurnState.INTERRUPTED, error=error)
    return events + hold_queue(tx, ref.session_id, HoldReason.INTERRUPTED)


def put_back(tx: Tx, ref: ExecutionRef, turn: Turn) -> list[Event]:
    """Undo a turn whose prompt certainly reached nobody: it is first in the queue again (PROMPT-4)."""
    if not tx.run("turn_delete", id=turn.id):
        return []
    left = tx.one("message_leave_place", id=turn.message_id, now=now())
    tx.run("queue_insert_first", message_id=turn.message_id, session_id=ref.session_id, created_at=now())
    events = [queue_event(tx, ref.session_id, ref.task_id)]
    if left is not None:
        events.append(message_event("session.message.updated", message_from_row(left), ref.task_id))
    if turn.cancel_requested_at:
        events += hold_queue(tx, ref.session_id, HoldReason.CANCELLED)
    return events


def end_turn(
    tx: Tx,
    ref: ExecutionRef,
    turn_id: str,
    state: TurnState,
    *,
    stop_reason: str = "",
    error: str = "",
    usage: dict[str, Any] | None = None,
) -> list[Event]:
    """End a turn that is open or unknown; ended ones stay as they are."""
    ended = tx.one(
        "turn_end",
        id=turn_id,
        state=state,
        stop_reason=stop_reason,
        error=error,
        usage=to_json(usage or {}),
        now=now(),
    )
    if ended is None:
        return []
    turn = from_row(Turn, ended)
    payload = {"turn": msgspec.to_builtins(turn), "state": turn.state, "stop_reason": stop_reason, "usage": turn.usage}
    return [Event(action="session.turn.completed", session_id=ref.session_id, task_id=ref.task_id, payload=payload)]


def recent_failures(stamps: list[str]) -> list[str]:
    """Return the times that still count."""
    return [stamp for stamp in stamps if seconds_since(stamp) <= PARK_WINDOW_S]


def next_failure_parks(session: TaskSession) -> bool:
    """Tell whether one more end of the agent parks the session."""
    return not session.parked_reason and len(recent_failures(session.failures)) + 1 >= PARK_FAILURES


def count_failure(tx: Tx, session_id: str) -> list[Event]:
    """Count an end of the agent that nobody asked for; the fifth in a minute parks the session (STATE-5)."""
    row = tx.one("session_get", id=session_id)
    if row is None:
        return []
    failures = [*recent_failures(msgspec.json.decode(row["failures"])), now()]
    parked = row["parked_reason"]
    events: list[Event] = []
    if len(failures) >= PARK_FAILURES and not parked:
        parked = f"The agent ended {len(failures)} times within {PARK_WINDOW_S:g} s."
        events = hold_queue(tx, session_id, HoldReason.PARKED)
    tx.run("session_set_failures", id=session_id, failures=to_json(failures), parked_reason=parked)
    return events
