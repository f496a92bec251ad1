"""Serves the queues: the head of an open queue becomes a turn, once the agent runs and no turn is open.

Specification: "ensureSessionRunning", "handlePromptWithResume". A prompt is stored before this module hears of it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from kandev.agentctl.failpoints import failpoint
from kandev.domain.constants import Timing
from kandev.domain.models import (
    TERMINAL_STATES,
    Event,
    HoldReason,
    QueuedPrompt,
    Turn,
    TurnId,
    TurnState,
    new_id,
    now,
)
from kandev.domain.states import SessionEvent, TaskEvent
from kandev.errors import Conflict, ExecutionNotFoundError, KandevError, StorageFull, StorageLocked
from kandev.lifecycle.batch import message_event
from kandev.lifecycle.effects import ExecutionRef
from kandev.lifecycle.execution import AgentExecution
from kandev.lifecycle.manager import LifecycleManager
from kandev.lifecycle.recording import HistoryRecorder
from kandev.lifecycle.session import History, build_effective_prompt, replay_quiet, send_prompt
from kandev.orchestrator import notices
from kandev.orchestrator.event_handlers import end_turn, put_back
from kandev.orchestrator.executor import Executor
from kandev.orchestrator.recap import recap_prompt
from kandev.orchestrator.transitions import hold_queue, move_session, move_task, queue_event
from kandev.store.database import Tx
from kandev.store.rows import from_row, message_from_row
from kandev.store.store import STORAGE_RETRY_S, Store

log = structlog.get_logger(__name__)

SEND_TRIES = 2


class NotTaken(KandevError):
    """Raised when the head of the queue was withdrawn, or the session moved on, before a turn could take it."""


class PromptQueue:
    """One worker for each session that has something to send; it ends when there is nothing to do."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        manager: LifecycleManager,
        history: History,
        recorder: HistoryRecorder,
        *,
        timing: Timing,
        parallel: int,
        context_chars: int,
        spawn: Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"],
        publish: Callable[[Sequence[Event]], None],
    ) -> None:
        self._store = store
        self._executor = executor
        self._manager = manager
        self._history = history
        self._recorder = recorder
        self._timing = timing
        self._context_chars = context_chars
        self._spawn = spawn
        self._publish = publish
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._waking = asyncio.Semaphore(parallel)

    def kick(self, session_id: str) -> None:
        """Look at a session's queue; cheap when there is nothing to do."""
        if self._executor.stopping:
            return
        if session_id in self._workers:
            self._again.add(session_id)
            return
        if self._next(session_id) is not None:
            worker = self._spawn(self._serve(session_id), f"queue {session_id}")
            self._workers[session_id] = worker

    def kick_all_open(self) -> None:
        """After a restart: serve every open queue, a few sessions at a time."""
        for row in self._store.database.all("queues_open"):
            self.kick(row["session_id"])

    def has_work(self, session_id: str) -> bool:
        """Tell whether a session has something that may be sent now."""
        return session_id in self._workers or self._next(session_id) is not None

    def _next(self, session_id: str) -> QueuedPrompt | None:
        """Return the prompt that may be sent now."""
        head = self._store.queue_head(session_id)
        if head is None or self._store.open_turn(session_id) is not None:
            return None
        session = self._store.session(session_id)  # a queue entry has its session
        blocked = session.queue_held or session.intent or session.state in TERMINAL_STATES
        return None if blocked else head

    async def _serve(self, session_id: str) -> None:
        failures = 0
        try:
            while (head := self._next(session_id)) is not None:
                self._again.discard(session_id)
                try:
                    execution = await self._woken(session_id)
                    await self._send(execution, head)
                except NotTaken:
                    continue
                except (StorageFull, StorageLocked):
                    await asyncio.sleep(STORAGE_RETRY_S)  # the prompt is stored; it is sent when there is room
                except ExecutionNotFoundError as error:
                    failures += 1
                    if failures >= SEND_TRIES:
                        await self._give_up(session_id, error)
                except KandevError as error:
                    # The failed start has stored its reason, and holds the queue where that is right.
                    log.info("queue.waits", session_id=session_id, error=error.message)
                    return
        finally:
            self._workers.pop(session_id, None)
            if session_id in self._again:
                self._again.discard(session_id)
                self.kick(session_id)

    async def _woken(self, session_id: str) -> AgentExecution:
        execution = self._executor.running(session_id)
        if execution is not None:
            return execution
        async with self._waking:
            return await self._executor.ensure_running(session_id)

    async def _give_up(self, session_id: str, error: KandevError) -> None:
        """The second failure keeps the entry and holds the queue."""
        text = f"The prompt could not be given to the agent: {error.message} It is kept, first in the queue."
        notice = notices.status("send_failed", text, "queue_resume")
        session = self._store.session(session_id)
        message = notices.placed_notice(self._store, session_id, notice)

        def job(tx: Tx) -> list[Event]:
            said = notices.write_notice(tx, message, session.task_id)
            return [said, *hold_queue(tx, session_id, HoldReason.SEND_FAILED)]

        failpoint("prompt.before_give_up")
        events = await self._store.write(job)
        failpoint("prompt.after_give_up")
        self._publish(events)

    async def _send(self, execution: AgentExecution, head: QueuedPrompt) -> None:
        turn = await self._claim(execution.ref, head)
        execution.active_at = asyncio.get_running_loop().time()
        try:
            text, injected = await self._effective(execution, head)
            await replay_quiet(execution, self._timing)
            if self._store.turn(turn.id).cancel_requested_at:
                await self._end_unsent(execution.ref, turn)
                return
            failpoint("prompt.before_send")
            await send_prompt(execution, turn, text, injected=injected)
            failpoint("prompt.after_send")
        except KandevError as error:
            await self._undo(execution, turn)
            raise ExecutionNotFoundError(error.message) from error
        if execution.history_enabled:
            self._recorder.record(head.session_id, [self._store.message(head.message_id)])

    async def _effective(self, execution: AgentExecution, head: QueuedPrompt) -> tuple[str, str]:
        if self._store.session(head.session_id).recap_pending:
            return recap_prompt(self._store, head, limit=self._context_chars), "recap"
        return await build_effective_prompt(execution, head, self._history)

    async def _claim(self, ref: ExecutionRef, head: QueuedPrompt) -> Turn:
        """Make the turn: the prompt leaves the queue and gets its place, the session runs; one transaction."""
        turn_id, seq = TurnId(new_id()), self._store.next_seq(head.session_id)

        def job(tx: Tx) -> tuple[Turn, list[Event]]:
            taken = tx.one("queue_take", message_id=head.message_id, session_id=head.session_id)
            session = tx.one("session_get", id=head.session_id)
            if taken is None or session is None or session["queue_held"] or session["intent"]:
                raise NotTaken("The prompt was withdrawn.")
            row = tx.one("executor_get", session_id=head.session_id)
            if row is None or row["agent_execution_id"] != ref.execution_id:
                raise NotTaken("Another execution owns the session.")
            moved = move_session(tx, head.session_id, SessionEvent.PROMPT_SENT)
            if not moved:
                raise NotTaken("The session cannot take a prompt now.")
            tx.run(
                "turn_insert",
                id=turn_id,
                session_id=head.session_id,
                agent_execution_id=ref.execution_id,
                message_id=head.message_id,
                started_at=now(),
            )
            message = tx.one("message_take_place", id=head.message_id, seq=seq, turn_id=turn_id, now=now())
            tx.run("session_set_interrupted", id=head.session_id, interrupted=0)
            task = move_task(tx, ref.task_id, TaskEvent.TURN_STARTED, session_id=head.session_id)
            turn = from_row(Turn, _required(tx.one("turn_get", id=turn_id)))
            added = message_event("session.message.added", message_from_row(_required(message)), ref.task_id)
            started = Event(
                action="session.turn.started",
                session_id=head.session_id,
                task_id=ref.task_id,
                payload={"turn": turn},
            )
            return turn, [queue_event(tx, head.session_id, ref.task_id), added, started, *moved, *task]

        failpoint("prompt.before_claim")
        turn, events = await self._store.write(job)
        failpoint("prompt.after_claim")
        self._publish(events)
        return turn

    async def _end_unsent(self, ref: ExecutionRef, turn: Turn) -> None:
        """A cancel came between the claim and the sending: the cancel wins (PROMPT-7)."""

        def job(tx: Tx) -> list[Event]:
            events = end_turn(tx, ref, turn.id, TurnState.CANCELLED, stop_reason="cancelled")
            events += move_session(tx, ref.session_id, SessionEvent.TURN_ENDED)
            return events + move_task(tx, ref.task_id, TaskEvent.SESSION_WAITING, session_id=ref.session_id)

        failpoint("prompt.before_unsent")
        events = await self._store.write(job)
        failpoint("prompt.after_unsent")
        self._publish(events)

    async def _undo(self, execution: AgentExecution, turn: Turn) -> None:
        """The prompt could not be sent: end what is left of the agent, and let the journal say whether it was begun.

        The agent's end puts the prompt back if it was certainly not delivered; here only a turn that never got a line.
        """
        if not execution.ended.is_set():
            await self._manager.stop(execution, why="send_failed", grace_s=0)
        ref = execution.ref

        def job(tx: Tx) -> list[Event]:
            row = tx.one("turn_get", id=turn.id)
            if row is None or row["state"] != TurnState.OPEN or row["line"]:
                return []
            events = put_back(tx, ref, from_row(Turn, row))
            events += move_session(tx, ref.session_id, SessionEvent.AGENT_LOST)
            return events + move_task(tx, ref.task_id, TaskEvent.SESSION_WAITING, session_id=ref.session_id)

        failpoint("prompt.before_undo")
        events = await self._store.write(job)
        failpoint("prompt.after_undo")
        self._publish(events)


def _required(row: Any) -> Any:
    if row is None:
        raise Conflict("A row was deleted meanwhile.")
    return row
