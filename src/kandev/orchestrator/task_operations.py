"""What can be done with a session: look, resume, cancel, stop. How it is brought back is in `recovery`.

Specification: "GetTaskSessionStatus", "ResumeTaskSession", "ensureSessionRunning".
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import structlog

from kandev.agentctl.failpoints import failpoint
from kandev.domain.constants import Timing
from kandev.domain.models import (
    TERMINAL_STATES,
    Event,
    ExecutorRunning,
    HoldReason,
    PermissionState,
    ResumeOutcome,
    SessionState,
    TaskSession,
    fingerprint,
    now,
    seconds_since,
)
from kandev.domain.resume import evaluate_status
from kandev.domain.states import SessionEvent, TaskEvent
from kandev.errors import AgentError, ExecutionNotFoundError, RuntimeUnreachable, SessionEnded
from kandev.lifecycle.agent_logs import AgentLogs
from kandev.lifecycle.execution import AgentExecution
from kandev.lifecycle.manager import LifecycleManager
from kandev.lifecycle.permissions import close_permissions
from kandev.orchestrator.executor import Executor
from kandev.orchestrator.known_agents import login_of
from kandev.orchestrator.prompt_queue import PromptQueue
from kandev.orchestrator.recap import render_recap
from kandev.orchestrator.recovery import DECISIONS, STOP, offered_actions, recover_actions
from kandev.orchestrator.transitions import hold_queue, move_session, move_task
from kandev.orchestrator.views import ResumeAnswer, SessionStatus, SessionView, session_view
from kandev.orchestrator.workspaces import SessionWorkspaces
from kandev.store.database import Tx
from kandev.store.store import Store

log = structlog.get_logger(__name__)


class TaskOperations:
    """The orchestrator's operations on sessions."""

    def __init__(
        self,
        store: Store,
        *,
        executor: Executor,
        manager: LifecycleManager,
        queue: PromptQueue,
        workspaces: SessionWorkspaces,
        agent_logs: AgentLogs,
        timing: Timing,
        boot_time: str,
        context_chars: int,
        spawn: Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"],
        publish: Callable[[Sequence[Event]], None],
    ) -> None:
        self._store = store
        self._executor = executor
        self._manager = manager
        self._queue = queue
        self._workspaces = workspaces
        self._timing = timing
        self._agent_logs = agent_logs
        self._boot_time = boot_time
        self._context_chars = context_chars
        self._spawn = spawn
        self._publish = publish

    # ---- status

    async def get_task_session_status(self, task_id: str, session_id: str) -> SessionStatus:
        """Evaluate the four cases, and tell everything that a page shows about the session's agent."""
        return self.status(task_id, session_id)

    def status(self, task_id: str, session_id: str) -> SessionStatus:
        """The same without awaiting; a few reads by key, of one moment.

        A prompt that is being taken is in the queue or in a turn: it would seem to be in neither otherwise.
        """
        with self._store.database.moment():
            return self._status(task_id, session_id)

    def _status(self, task_id: str, session_id: str) -> SessionStatus:
        store = self._store
        session, row = store.session(session_id, task_id=task_id), store.executor(session_id)
        execution = self._executor.running(session_id)
        decision = evaluate_status(
            session, row, agent_in_memory=execution is not None, recently_seen=self._recently_seen(session, row)
        )
        turn = store.open_turn(session_id)
        start = self._executor.starting(session_id)
        resumes = store.resumes(session_id, limit=1)
        permissions = len(store.pending_permissions(session_id))
        return SessionStatus(
            session_id=session.id,
            task_id=session.task_id,
            state=session.state,
            is_agent_running=execution is not None,
            is_resumable=decision.is_resumable,
            needs_resume=decision.needs_resume,
            resume_reason=decision.reason,
            recover_actions=offered_actions(session, row),
            acp_session_id=fingerprint(row.resume_token) if row else "",
            agent=session.agent,
            runtime=session.runtime,
            worktree_path=row.worktree_path if row else "",
            worktree_branch=row.worktree_branch if row else "",
            updated_at=session.updated_at,
            interrupted=session.interrupted,
            turn=turn,
            last_turn=turn or store.last_turn(session_id),
            stalled_s=self._stalled_s(execution),
            stage=start.stage if start else "",
            queued=len(store.queue(session_id)),
            queue_held=session.queue_held,
            pending_permissions=permissions,
            needs=_needs(session, permissions),
            login=login_of(store, session_id) if session.queue_held == HoldReason.LOGIN else None,
            how=resumes[0].how if resumes else "",
            error=session.error_message,
        )

    def _stalled_s(self, execution: AgentExecution | None) -> float:
        silent = execution.silent_s if execution is not None else 0.0
        return round(silent, 1) if silent >= self._timing.stall_notice_s else 0.0

    def _recently_seen(self, session: TaskSession, row: ExecutorRunning | None) -> bool:
        """Case 2: STARTING or RUNNING, and its row was written in this boot less than 30 s ago."""
        if row is None or session.state not in {SessionState.STARTING, SessionState.RUNNING}:
            return False
        this_boot = row.last_seen_at >= self._boot_time
        return this_boot and seconds_since(row.last_seen_at) < self._timing.recently_seen_s

    # ---- start, resume

    async def resume_task_session(
        self, task_id: str, session_id: str, *, wait: bool = False, open_queue: bool = False
    ) -> ResumeAnswer:
        """Resume a session: answered once its instance is stored, or with `wait` once its agent is ready.

        `open_queue`: a person asked for it, so a queue that waited for a person goes on; opening a page does not ask.
        Raises SessionEnded for FAILED, COMPLETED and CANCELLED.
        """
        session = self._store.session(session_id, task_id=task_id)
        if session.state in TERMINAL_STATES:
            reason = "session_completed" if session.state is SessionState.COMPLETED else "session_ended"
            raise SessionEnded(
                f"The session is {session.state}. Everything in it is kept; `recover` can bring it back.",
                reason=reason,
                actions=recover_actions(session, self._store.executor(session_id)),
            )
        if open_queue and not session.parked_reason:
            failpoint("resume.before_open")
            events = await self._store.write(lambda tx: hold_queue(tx, session_id, HoldReason.OPEN))
            failpoint("resume.after_open")
            self._publish(events)
        answer = await self._executor.resume_session(session_id)
        self._queue.kick(session_id)
        if wait:
            await self._executor.ensure_running(session_id)
            answer = msgspec.structs.replace(answer, state=self._store.session(session_id).state)
        return answer

    async def start_session(self, session_id: str) -> SessionView:
        """Start a session that was created without starting it; a session that runs is left alone."""
        session = self._store.session(session_id)
        failpoint("launch.before_open")
        events = await self._store.write(lambda tx: hold_queue(tx, session_id, HoldReason.OPEN))
        failpoint("launch.after_open")
        self._publish(events)
        await self.resume_task_session(session.task_id, session_id)
        return session_view(self._store.session(session_id), self._store.executor(session_id))

    async def ensure_session_running(self, session_id: str) -> AgentExecution:
        """Return the live agent of a session, resuming it first where there is none (within 90 s)."""
        return await self._executor.ensure_running(session_id)

    # ---- cancel, stop

    async def cancel_turn(self, task_id: str, session_id: str) -> None:
        """Cancel the turn, or the resume that is under way; hold the queue. Never waits for a lock (RACE-6).

        Where nothing runs any more, only the queue is held: the turn may have ended a moment ago.
        """
        session = self._store.session(session_id, task_id=task_id)

        def job(tx: Tx) -> list[Event]:
            tx.one("turn_cancel_request", session_id=session.id, now=now())
            return hold_queue(tx, session.id, HoldReason.CANCELLED)

        failpoint("cancel.before_store")
        events = await self._store.write(job)
        failpoint("cancel.after_store")
        self._publish(events)
        if await self._executor.give_up(session_id, "cancelled"):
            return
        # A turn whose prompt was not sent yet ends without: the queue looks for the request just before it sends.
        execution = self._manager.get(session_id)
        if execution is not None and execution.in_turn:
            self._spawn(self._force_cancel(execution, execution.state.turn_id), f"cancel {session_id}")
            await self._ask_to_cancel(execution)

    async def continue_cancel(self, session_id: str) -> None:
        """Ask again where an earlier backend was asked to cancel the turn; the ten seconds start again (CRASH-12)."""
        turn, execution = self._store.open_turn(session_id), self._manager.get(session_id)
        if turn is None or execution is None or not turn.cancel_requested_at or not execution.in_turn:
            return
        self._spawn(self._force_cancel(execution, turn.id), f"cancel {session_id}")
        self._spawn(self._ask_to_cancel(execution), f"ask to cancel {session_id}")

    async def _ask_to_cancel(self, execution: AgentExecution) -> None:
        """Answer every pending permission "cancelled", then ask to cancel (WIRE-14); else end the agent."""
        reader = execution.ingest.reader
        for key in list(execution.state.permissions):
            reader.queue_line(execution.dialect.answer_permission(msgspec.json.decode(key), None, {}))
        execution.state.permissions = {}
        reader.batch.add(close_permissions(execution.ref, PermissionState.CANCELLED))
        failpoint("cancel.before_send")
        line = execution.dialect.cancel(execution.agent_session_id)
        if not line:
            await self._manager.stop(execution, why="cancel_by_end", grace_s=0)
            return
        with contextlib.suppress(ExecutionNotFoundError):  # the agent ended meanwhile, and the turn with it
            await execution.ingest.transmit(line)
        failpoint("cancel.after_send")

    async def _force_cancel(self, execution: AgentExecution, turn_id: str) -> None:
        """After ten seconds without an end of the turn, end the agent (STATE-11)."""
        try:
            async with asyncio.timeout(self._timing.cancel_force_s):
                await execution.ended.wait()
        except TimeoutError:
            if execution.in_turn and execution.state.turn_id == turn_id:
                await self._manager.stop(execution, why="cancel_forced", grace_s=0)

    async def stop_session(self, task_id: str, session_id: str) -> SessionView:
        """Stop a session for good: its agent ends, CANCELLED, task in review; `recover` brings it back (CRASH-13)."""
        session = self._store.session(session_id, task_id=task_id)
        if session.state is SessionState.COMPLETED:
            raise SessionEnded("The session is COMPLETED already.", reason="session_completed")
        failpoint("stop.before_intent")
        await self._store.write(lambda tx: tx.run("session_set_intent", id=session_id, intent=STOP, now=now()))
        failpoint("stop.after_intent")
        await self.end_for_good(session_id)
        await self.finish_stop(session_id)
        return session_view(self._store.session(session_id), self._store.executor(session_id))

    async def end_agent(self, session_id: str, *, why: str) -> None:
        """End whatever runs for a session: a start without grace, an agent gently.

        One that cannot be asked now is left, and ended by the next start of the session or the backend (CONT-5).
        """
        await self._executor.give_up(session_id, why)
        execution = self._manager.get(session_id)
        if execution is not None:
            grace = self._timing.stop_grace_s if execution.ready else 0
            try:
                await self._manager.stop(execution, why=why, grace_s=grace)
            except RuntimeUnreachable as error:
                log.warning("agent.left", session_id=session_id, error=error.message)

    async def end_for_good(self, session_id: str) -> None:
        """End whatever runs for a session that is being ended, also what an earlier backend left out of reach."""
        await self.end_agent(session_id, why="stopped")
        await self._executor.settle_unknown(session_id)

    async def finish_stop(self, session_id: str) -> None:
        """Store that a stop is carried out; start-up calls this for stops that a crash cut short."""
        session = self._store.session(session_id)

        def job(tx: Tx) -> list[Event]:
            row = tx.one("session_get", id=session_id)
            if row is None or row["intent"] != STOP:
                return []  # somebody recovered the session meanwhile, and that was the later wish
            events = move_session(tx, session_id, SessionEvent.STOP)
            events += hold_queue(tx, session_id, HoldReason.STOPPED)
            events += move_task(tx, session.task_id, TaskEvent.SESSION_STOPPED, session_id=session_id)
            tx.run("session_set_intent", id=session_id, intent="", now=now())
            return events

        failpoint("stop.before_finish")
        events = await self._store.write_patiently(job)
        failpoint("stop.after_finish")
        self._publish(events)

    # ---- looking

    async def logs(self, session_id: str, limit: int) -> dict[str, Any]:
        """Return the end of the agent's stderr, and the stages of the resumes."""
        session = self._store.session(session_id)
        stderr = await self._stderr(session.id, limit)
        outcomes: list[ResumeOutcome] = self._store.resumes(session_id)
        return {"stderr": stderr, "stages": [msgspec.to_builtins(outcome) for outcome in outcomes]}

    async def _stderr(self, session_id: str, limit: int) -> str:
        execution = self._manager.get(session_id)
        if execution is not None:
            with contextlib.suppress(AgentError):  # it is ending just now
                return await execution.client.stderr_tail(limit)
        return self._agent_logs.tail(session_id, limit)

    async def recap_preview(self, session_id: str) -> dict[str, Any]:
        """Return the recap as an agent would be told it."""
        session = self._store.session(session_id)
        source = self._store.recap_source(session.id)
        rendered = render_recap(self._store, source, "(your next message)", limit=self._context_chars)
        return {"text": rendered.text, "messages_used": rendered.used, "messages_total": rendered.total}

    async def rebuild_workspace(self, session_id: str) -> dict[str, Any]:
        """Validate the session's directory, and make it again where that is possible."""
        prepared = await self._workspaces.validate(self._store.session(session_id))
        return {"how": prepared.how, "path": prepared.workspace.path, "note": prepared.note}


def _needs(session: TaskSession, permissions: int) -> str:
    """Return what the session needs of a person: permission, login, decision, or none."""
    if permissions:
        return "permission"
    if session.queue_held == HoldReason.LOGIN:
        return "login"
    waits = session.queue_held in DECISIONS or session.queue_held == HoldReason.INTERRUPTED
    return "decision" if waits or session.state is SessionState.FAILED else "none"
