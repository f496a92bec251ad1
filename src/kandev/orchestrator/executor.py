"""Starts and resumes of sessions, one at a time for each.

Specification: "Executor.ResumeSession", "persistResumeState", "startAgentProcessOnResume".
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec
import structlog

from kandev.agentctl.failpoints import failpoint
from kandev.agents.base import AgentConfig
from kandev.domain.constants import Timing
from kandev.domain.failures import LoadFailure
from kandev.domain.models import (
    TERMINAL_STATES,
    Event,
    ExecutorRunning,
    HoldReason,
    RowStatus,
    SessionState,
    TaskSession,
    new_id,
    now,
)
from kandev.domain.resume import LaunchAgentRequest, build_resume_request
from kandev.domain.states import SessionEvent, TaskEvent
from kandev.errors import Conflict, Internal, KandevError, Parked, SessionEnded, Stopping, Unavailable
from kandev.lifecycle.batch import Applied
from kandev.lifecycle.execution import AgentExecution, Wanted
from kandev.lifecycle.manager import LifecycleManager
from kandev.lifecycle.session import InitialPrompt, RestoreFailed
from kandev.orchestrator import notices
from kandev.orchestrator.outcomes import how_it_came_up, outcome_args, ready_notices, record_failure
from kandev.orchestrator.starting import GivenUp, Start
from kandev.orchestrator.transitions import hold_queue, move_session, move_task, rest_task
from kandev.orchestrator.views import ResumeAnswer
from kandev.store.database import Tx
from kandev.store.rows import to_json
from kandev.store.store import Store
from kandev.worktrees import Prepared, Workspace, Worktrees

log = structlog.get_logger(__name__)


class Services(Protocol):
    """What the executor needs of its surroundings."""

    def publish(self, events: Sequence[Event], /) -> None:
        """Publish what a commit of its own gave."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str, /) -> "asyncio.Task[None]":
        """Run work under supervision, detached from whoever asked (RACE-4)."""

    async def settle_leftover(self, row: ExecutorRunning, /) -> None:
        """Prove the processes of an older execution dead and read its journal (RACE-10)."""

    async def prepare_history(self, session_id: str, /) -> None:
        """Bring the history file up to date."""

    async def make_room(self, session_id: str, /) -> None:
        """End an idle agent when as many run as may run."""


class Executor:
    """One start at most for each session; whoever comes later joins it."""

    def __init__(
        self, store: Store, manager: LifecycleManager, worktrees: Worktrees, services: Services, *, timing: Timing
    ) -> None:
        self._store = store
        self._manager = manager
        self._worktrees = worktrees
        self._services = services
        self._timing = timing
        self._starts: dict[str, Start] = {}
        self._held_back: dict[str, asyncio.Event] = {}
        self.stopping = False
        self.on_ready: Callable[[str], None] = lambda _session_id: None

    def starting(self, session_id: str) -> Start | None:
        """Return the session's start that is under way."""
        return self._starts.get(session_id)

    def running(self, session_id: str) -> AgentExecution | None:
        """Return the session's agent if a prompt could reach it now."""
        execution = self._manager.get(session_id)
        return execution if execution is not None and execution.live else None

    async def resume_session(self, session_id: str) -> ResumeAnswer:
        """Start the session's agent, or join the start under way; answer once the instance is stored.

        An agent that lives is left alone (RACE-2). Raises what `record_failure` stored.
        """
        execution = self.running(session_id)
        if execution is not None:
            return self._answer(self._store.session(session_id), execution.ref.execution_id, already_running=True)
        return await asyncio.shield(self._join(session_id).accepted)

    async def ensure_running(self, session_id: str) -> AgentExecution:
        """Return the session's live agent, resuming it if needed; by events, within 90 s."""
        execution = self.running(session_id)
        if execution is not None:
            return execution
        start = self._join(session_id)
        try:
            await asyncio.wait_for(asyncio.shield(start.ready), self._timing.ensure_running_s)
        except TimeoutError:
            raise Unavailable(
                f"The agent was not ready within {self._timing.ensure_running_s:g} s; it goes on starting.",
                reason="not_ready",
            ) from None
        execution = self.running(session_id)
        if execution is None:
            raise Unavailable("The agent ended right after its start.", reason="not_ready")
        return execution

    def _join(self, session_id: str) -> Start:
        if self.stopping:
            raise Stopping
        start = self._starts.get(session_id)
        if start is None:
            session = self._store.session(session_id)
            start = Start(session_id, session.task_id, self._services.publish)
            self._starts[session_id] = start
            self._services.spawn(self._run(start), f"start {session_id}")
        return start

    async def _run(self, start: Start) -> None:
        try:
            await self._resume(start)
        except (SessionEnded, Parked) as refusal:
            start.fail(refusal)  # nothing began, so nothing is stored
        except KandevError as error:
            await self._failed(start, error)
        except Exception as error:
            log.exception("start.broken", session_id=start.session_id)
            await self._failed(start, Internal(f"The start failed inside Kandev: {error!r}. The log has the details."))
        finally:
            self._starts.pop(start.session_id, None)
            start.fail(GivenUp("stopping"))
            self.on_ready(start.session_id)

    async def _failed(self, start: Start, error: KandevError) -> None:
        execution = start.execution
        if execution is not None:
            await self._manager.stop(execution, why=start.given_up or "start_failed", grace_s=0)
        try:
            start.fail(await record_failure(self._store, start, error, publish=self._services.publish))
        finally:
            start.fail(error)

    async def _resume(self, start: Start) -> None:
        start.enter("checking")
        session, row = await self._validate_and_lock(start)
        start.enter("workspace")
        prepared = await start.unless_given_up(self._workspace(session))
        await start.unless_given_up(self._services.make_room(session.id))
        try:
            await self._attempt(start, session, row, prepared)
        except RestoreFailed as failure:
            if failure.kind is not LoadFailure.CANNOT_RESTORE or not await self._may_try_again(session.id):
                raise
            # TOK-16: nothing definite was said, so once more in a fresh process.
            assert start.execution is not None
            await self._manager.stop(start.execution, why="start_failed", grace_s=0)
            start.execution = None
            await self._attempt(start, session, self._row(session.id), prepared)

    async def _validate_and_lock(self, start: Start) -> tuple[TaskSession, ExecutorRunning]:
        """Read again what counts, now that this start is the only one (RACE-3)."""
        while (released := self._held_back.get(start.session_id)) is not None:
            await start.unless_given_up(released.wait())
        old = self._manager.get(start.session_id)
        if old is not None and not old.responding:
            await self._manager.stop(old, why="not_responding", grace_s=0)
        elif old is not None:
            await old.ended.wait()
        session = self._store.session(start.session_id)
        if session.state in TERMINAL_STATES or session.intent:
            reason = "session_completed" if session.state is SessionState.COMPLETED else "session_ended"
            raise SessionEnded(f"The session is {session.state}; `recover` can bring it back.", reason=reason)
        if session.parked_reason:
            raise Parked(f"The session is parked: {session.parked_reason} `recover` tries again.")
        row = self._row(session.id)
        if row.status not in {RowStatus.STOPPED, RowStatus.FAILED} and row.agent_execution_id:
            await self._services.settle_leftover(row)
            session, row = self._store.session(session.id), self._row(session.id)
        start.previous_state = session.state
        start.launch = session.state is SessionState.CREATED
        return session, row

    def _row(self, session_id: str) -> ExecutorRunning:
        row = self._store.executor(session_id)
        if row is None:
            raise Internal(f"The session {session_id} has no row in executors_running.")
        return row

    async def _workspace(self, session: TaskSession) -> Prepared:
        """Validate the worktree; a rebuilt one is said in the transcript (WORK-1)."""
        settings = self._store.settings(session.id)
        workspace = msgspec.json.decode(settings.workspace, type=Workspace)
        prepared = await self._worktrees.validate(workspace)
        if prepared.workspace != workspace or prepared.note:
            await self._store_workspace(session, prepared)
        return prepared

    async def rebuild_workspace(self, session_id: str) -> Prepared:
        """Validate a session's directory on request, rebuilding it where it is lost."""
        return await self._workspace(self._store.session(session_id))

    async def _store_workspace(self, session: TaskSession, prepared: Prepared) -> None:
        notice = notices.status("workspace", prepared.note, output=prepared.setup_output[-2000:])
        message = notices.placed_notice(self._store, session.id, notice) if prepared.note else None

        def job(tx: Tx) -> list[Event]:
            tx.run("session_set_workspace", id=session.id, workspace=to_json(prepared.workspace), now=now())
            return [notices.write_notice(tx, message, session.task_id)] if message else []

        failpoint("start.before_workspace")
        events = await self._store.write(job)
        failpoint("start.after_workspace")
        self._services.publish(events)

    async def _attempt(self, start: Start, session: TaskSession, row: ExecutorRunning, prepared: Prepared) -> None:
        start.enter("launching")
        config = msgspec.json.decode(self._store.settings(session.id).agent_config, type=AgentConfig)
        if not config.launchable:
            raise Conflict(config.not_launchable_reason, reason="protocol_not_built")
        request = self._request(session, row, prepared.workspace, previous_state=start.previous_state)
        await self._begin(start, row, request)
        start.execution_id = request.execution_id
        start.execution = execution = await self._manager.launch_agent(
            request, config, runtime_name=session.runtime, wanted=_wanted(session, config)
        )
        await self._persist_resume_state(execution, prepared.workspace)
        start.require_wanted()
        answer = self._answer(self._store.session(session.id), request.execution_id)
        if not start.accepted.done():
            start.accepted.set_result(answer)
        await self._start_agent_process_on_resume(start, execution, session)

    def _request(
        self, session: TaskSession, row: ExecutorRunning, workspace: Workspace, *, previous_state: SessionState
    ) -> LaunchAgentRequest:
        head = self._store.queue_head(session.id)
        request = LaunchAgentRequest(
            session_id=session.id,
            task_id=session.task_id,
            execution_id=new_id(),
            instance_id=new_id(),
            cwd=workspace.path,
            task_description=head.content if head else "",
        )
        any_turn = self._store.any_turn(session.id)
        return build_resume_request(request, running=row, previous_state=previous_state, any_turn=any_turn)

    async def _begin(self, start: Start, row: ExecutorRunning, request: LaunchAgentRequest) -> None:
        """Store STARTING and the new ids in one commit, before anything starts (STATE-2, CRASH-3)."""

        def job(tx: Tx) -> list[Event]:
            begun = tx.one(
                "executor_begin",
                session_id=request.session_id,
                agent_execution_id=request.execution_id,
                instance_id=request.instance_id,
                observed_execution=row.agent_execution_id,
                now=now(),
            )
            if begun is None:
                raise Conflict("Another start of this session was first.")
            event = SessionEvent.LAUNCH if start.launch else SessionEvent.RESUME
            events = move_session(tx, request.session_id, event)
            current = tx.one("session_get", id=request.session_id)
            if current is None or current["state"] != SessionState.STARTING:
                raise SessionEnded("The session ended meanwhile.", reason="session_ended")
            if start.launch:
                events += move_task(tx, request.task_id, TaskEvent.LAUNCHED, session_id=request.session_id)
            return events

        failpoint("start.before_begin")
        row_events = await self._store.write(job)
        failpoint("start.after_begin")
        self._services.publish(row_events)

    async def _persist_resume_state(self, execution: AgentExecution, workspace: Workspace) -> None:
        """Complete the row with the instance that was made (specification, "persistResumeState")."""
        instance, ref = execution.instance, execution.ref
        _, _, port = instance.agentctl_url.rpartition(":")

        def job(tx: Tx) -> None:
            tx.one(
                "executor_persist",
                session_id=ref.session_id,
                agent_execution_id=ref.execution_id,
                instance=to_json(instance),
                agentctl_url=instance.agentctl_url,
                agentctl_port=int(port) if port.isdecimal() else 0,
                agentctl_pid=instance.agentctl_pid,
                agentctl_start_time=instance.agentctl_start_time,
                container_id=instance.container_id,
                boot_id=instance.boot_id,
                worktree_id=workspace.id,
                worktree_path=workspace.path,
                worktree_branch=workspace.branch,
                now=now(),
            )

        failpoint("start.after_instance")
        await self._store.write(job)
        failpoint("start.after_persist")

    async def _start_agent_process_on_resume(
        self, start: Start, execution: AgentExecution, session: TaskSession
    ) -> None:
        """Start the agent; then WAITING_FOR_INPUT, and the task in review. The caller was answered before.

        `start.previous_state` was captured before STARTING was stored, so that a failure can go back to it.
        """
        await self._services.prepare_history(session.id)
        started = await self._manager.start_agent_process(execution, start.enter)
        start.enter("ready")
        execution.ready = True
        outcome = start.outcome(
            how=how_it_came_up(started, session, launch=start.launch),
            reason=started.restored.reason,
            lost=started.restored.lost,
        )
        said = [
            notices.placed_notice(self._store, session.id, notice)
            for notice in ready_notices(started, outcome.how, execution)
        ]

        def change(tx: Tx, applied: Applied) -> None:
            tx.one(
                "executor_set_status",
                session_id=session.id,
                agent_execution_id=execution.ref.execution_id,
                status=RowStatus.READY,
                now=now(),
            )
            applied.events.extend(notices.write_notice(tx, message, session.task_id) for message in said)
            applied.events.extend(move_session(tx, session.id, SessionEvent.READY))
            if started.restored.mode_failed:
                applied.events.extend(hold_queue(tx, session.id, HoldReason.MODE))
            if started.initial is not InitialPrompt.SEND:
                applied.events.extend(move_task(tx, session.task_id, TaskEvent.SESSION_WAITING, session_id=session.id))
            applied.events.extend(rest_task(tx, session.id))
            tx.run("resume_insert", **outcome_args(outcome))

        failpoint("start.before_ready")
        await execution.ingest.flush(change)
        failpoint("start.after_ready")
        payload = {"how": outcome.how, "reason": outcome.reason, "lost": outcome.lost, "stages": outcome.stages}
        running = start.event("session.agent_changed", {"is_agent_running": True})
        self._services.publish([running, start.event("session.resume.completed", payload)])
        if not start.ready.done():
            start.ready.set_result(outcome)

    def _answer(self, session: TaskSession, execution_id: str, *, already_running: bool = False) -> ResumeAnswer:
        row = self._store.executor(session.id)
        return ResumeAnswer(
            success=True,
            task_id=session.task_id,
            session_id=session.id,
            agent_execution_id=execution_id,
            state=session.state,
            worktree_path=row.worktree_path if row else "",
            worktree_branch=row.worktree_branch if row else "",
            already_running=already_running,
        )

    async def _may_try_again(self, session_id: str) -> bool:
        """Count, in the store, that the agent could not restore; the first time allows one more try."""
        row = self._row(session_id)
        if row.metadata.get("cannot_restore"):
            return False
        metadata = {**row.metadata, "cannot_restore": 1}
        failpoint("start.before_second_try")
        await self._store.write(
            lambda tx: tx.run("executor_set_metadata", session_id=session_id, metadata=to_json(metadata), now=now())
        )
        failpoint("start.after_second_try")
        return True

    @contextlib.asynccontextmanager
    async def starts_held_back(self, session_id: str) -> AsyncIterator[None]:
        """Until the block ends, a start of the session that begins waits before it reads anything (TOK-10)."""
        while (other := self._held_back.get(session_id)) is not None:
            await other.wait()
        self._held_back[session_id] = released = asyncio.Event()
        try:
            yield
        finally:
            del self._held_back[session_id]
            released.set()

    async def give_up(self, session_id: str, why: str) -> bool:
        """Give up the start under way, without grace and without its lock (RACE-6); False where there is none."""
        start = self._starts.get(session_id)
        if start is None or start.ready.done():
            return False
        start.give_up(why)
        if start.execution is not None:
            await self._manager.stop(start.execution, why=why, grace_s=0)
        await asyncio.wait([start.ready])
        return True


def _wanted(session: TaskSession, config: AgentConfig) -> Wanted:
    return Wanted(mode=session.mode or config.mode, model=session.model or config.model, options=session.config_options)
