"""A session brought back in the way that a person chose: `task.session.recover`."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.domain.constants import Timing
from kandev.domain.models import (
    TERMINAL_STATES,
    Event,
    ExecutorRunning,
    HoldReason,
    RowStatus,
    SessionState,
    TaskSession,
    now,
)
from kandev.domain.states import SessionEvent, TaskEvent
from kandev.errors import Conflict, RuntimeUnreachable, SessionEnded, Unavailable
from kandev.lifecycle.manager import LifecycleManager
from kandev.lifecycle.session_history import SessionHistoryManager
from kandev.orchestrator.event_handlers import set_token_aside
from kandev.orchestrator.executor import Executor
from kandev.orchestrator.prompt_queue import PromptQueue
from kandev.orchestrator.transitions import hold_queue, move_session, move_task
from kandev.orchestrator.views import ResumeAnswer
from kandev.store.database import Tx
from kandev.store.rows import to_json
from kandev.store.store import Store

DECISIONS = frozenset({HoldReason.TOKEN_REJECTED, HoldReason.PARKED, HoldReason.MODE})
STOP = "stop"  # the intent of a session that is being stopped
ANOTHER_AGENT_SESSION = frozenset({"fresh_start", "retry_token"})  # actions that need a new process


class Recovery:
    """Brings sessions back: also those that are FAILED, CANCELLED or parked."""

    def __init__(
        self,
        store: Store,
        *,
        executor: Executor,
        manager: LifecycleManager,
        queue: PromptQueue,
        history: SessionHistoryManager,
        settle: Callable[[ExecutorRunning], Awaitable[None]],
        timing: Timing,
        publish: Callable[[Sequence[Event]], None],
    ) -> None:
        self._store = store
        self._executor = executor
        self._manager = manager
        self._queue = queue
        self._history = history
        self._settle = settle
        self._timing = timing
        self._publish = publish

    async def recover(self, task_id: str, session_id: str, action: str) -> ResumeAnswer:
        """Bring a session back in the way a person chose; FAILED, CANCELLED and parked ones too. COMPLETED is final."""
        session = self._store.session(session_id, task_id=task_id)
        if session.state is SessionState.COMPLETED:
            raise SessionEnded("The session is COMPLETED, which is final.", reason="session_completed")
        if session.intent not in {"", STOP}:
            raise Conflict("The session is being completed or deleted.", reason="not_possible")
        if action not in recover_actions(session, self._store.executor(session_id)):
            raise Conflict(f"{action!r} is not possible for this session now.", reason="not_possible")
        async with self._executor.starts_held_back(session_id):
            await self._prepare_recovery(session, action)
        answer = await self._executor.resume_session(session_id)
        self._queue.kick(session_id)
        return answer

    async def _prepare_recovery(self, session: TaskSession, action: str) -> None:
        """End what is in another agent session than is wanted now, and store what the next start is to do."""
        if action in ANOTHER_AGENT_SESSION:
            await self._end_for_recovery(session.id)
        failpoint("recover.before_store")
        if action == "fresh_start":
            # First, because it may find no room, and because what is stored starts an agent by itself (TOK-10).
            await self._history.boundary(session.id)
            failpoint("recover.after_boundary")
        events = await self._store.write(lambda tx: _recover_job(tx, session, action))
        failpoint("recover.after_store")
        self._publish(events)

    async def _end_for_recovery(self, session_id: str) -> None:
        """End the agent that runs, or the start under way: it is in another agent session than is wanted now."""
        if await self._executor.give_up(session_id, "cancelled"):
            return
        await self._ask_whether_it_lives(session_id)
        execution = self._manager.get(session_id)
        if execution is None:
            return
        if execution.in_turn:
            raise Conflict("A turn is running. Cancel it first.", reason="turn_running")
        await self._manager.stop(execution, why="recover", grace_s=self._timing.stop_grace_s)

    async def _ask_whether_it_lives(self, session_id: str) -> None:
        """Attach to an agent of which nothing is known, or prove it dead: the next start would attach (CONT-5)."""
        row = self._store.executor(session_id)
        if row is None or row.status is not RowStatus.UNKNOWN:
            return
        try:
            await self._settle(row)
        except RuntimeUnreachable as error:
            raise Unavailable(error.message, reason="unreachable") from error


def recover_actions(session: TaskSession, row: ExecutorRunning | None) -> list[str]:
    """Return the actions of `task.session.recover` that are possible now."""
    if row is None or session.state in {SessionState.COMPLETED, SessionState.CREATED}:
        return []
    actions = ["resume", "fresh_start", "recap"]
    if row.metadata.get("previous_token"):
        actions.append("retry_token")
    return actions


def offered_actions(session: TaskSession, row: ExecutorRunning | None) -> list[str]:
    """Return those that a person is offered: none where the session goes on with a message."""
    stuck = session.state in TERMINAL_STATES or session.parked_reason or session.queue_held in DECISIONS
    return recover_actions(session, row) if stuck else []


def _recover_job(tx: Tx, session: TaskSession, action: str) -> list[Event]:
    """Reset what stands in the way, and set what the action asks for, in one transaction (TOK-10, CRASH-11)."""
    row = tx.one("session_get", id=session.id)
    if row is not None and row["intent"] != session.intent:
        raise Conflict("The session was stopped meanwhile.", reason="not_possible")
    events = move_session(tx, session.id, SessionEvent.RECOVER)
    if events:  # the task was failed with it
        events += move_task(tx, session.task_id, TaskEvent.SESSION_WAITING, session_id=session.id)
    tx.run("session_set_failures", id=session.id, failures="[]", parked_reason="")
    tx.run("session_set_intent", id=session.id, intent="", now=now())
    if action == "fresh_start":
        set_token_aside(tx, session.id)
    if action == "recap":
        tx.run("session_set_recap", id=session.id, recap_pending=1)
    if action == "retry_token":
        _put_token_back(tx, session.id)
    return events + hold_queue(tx, session.id, HoldReason.OPEN)


def _put_token_back(tx: Tx, session_id: str) -> None:
    row = tx.one("executor_get", session_id=session_id)
    metadata = msgspec.json.decode(row["metadata"]) if row is not None else {}
    token = metadata.pop("previous_token", "")
    if row is None or not token:
        raise Conflict("There is no earlier session to try again.", reason="not_possible")
    metadata["token_proven"] = not metadata.pop("previous_unproven", False)
    tx.one(
        "executor_swap_token",
        session_id=session_id,
        observed_token=row["resume_token"],
        resume_token=token,
        metadata=to_json(metadata),
        now=now(),
    )
