"""The steps of one start, in order: check, workspace, instance, agent, ready.

Specification: "Executor.ResumeSession", "persistResumeState", "startAgentProcessOnResume".
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.agents.base import AgentConfig
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
from kandev.domain.resume import FORK_OF, LaunchAgentRequest, build_resume_request, resume_point
from kandev.domain.states import SessionEvent, TaskEvent
from kandev.errors import Conflict, Internal, Parked, SessionEnded
from kandev.lifecycle.batch import Applied
from kandev.lifecycle.execution import AgentExecution, Wanted
from kandev.lifecycle.manager import LifecycleManager
from kandev.lifecycle.session import InitialPrompt, RestoreFailed
from kandev.orchestrator import notices
from kandev.orchestrator.instance_row import instance_columns
from kandev.orchestrator.outcomes import how_it_came_up, outcome_args, ready_notices
from kandev.orchestrator.starting import Start
from kandev.orchestrator.transitions import hold_queue, move_session, move_task, rest_task
from kandev.orchestrator.views import resume_answer
from kandev.orchestrator.workspaces import SessionWorkspaces
from kandev.store.database import Tx
from kandev.store.rows import to_json
from kandev.store.store import Store
from kandev.worktrees import Prepared, Workspace


class Services(Protocol):
    """What the executor needs of its surroundings."""

    def publish(self, events: Sequence[Event], /) -> None:
        """Publish what a commit of its own gave."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str, /) -> "asyncio.Task[None]":
        """Run work under supervision, detached from whoever asked (RACE-4)."""

    async def settle_leftover(self, row: ExecutorRunning, /) -> None:
        """Attach to an older execution that lives, or prove it dead and read its journal (RACE-10)."""

    async def prepare_history(self, session_id: str, /) -> None:
        """Bring the history file up to date."""

    async def make_room(self, session_id: str, /) -> None:
        """End an idle agent when as many run as may run."""


class StartSteps:
    """Carries out starts. That there is one at a time for a session is the executor's care."""

    def __init__(
        self, store: Store, manager: LifecycleManager, workspaces: SessionWorkspaces, services: Services
    ) -> None:
        self._store = store
        self._manager = manager
        self._workspaces = workspaces
        self._services = services

    async def carry_out(self, start: Start) -> None:
        """Bring the session's agent up; `start` tells its callers how far it is.

        Raises SessionEnded and Parked before anything began, GivenUp, and what the steps raise.
        """
        session, row = await self._validate_and_lock(start)
        attached = self._manager.get(session.id)
        if attached is not None:
            answer = resume_answer(session, row, attached.ref.execution_id, already_running=True)
            start.attached(answer)
            return
        start.enter("workspace")
        prepared = await start.unless_given_up(self._workspaces.validate(session))
        await start.unless_given_up(self._services.make_room(session.id))
        try:
            await self._attempt(start, session, row, prepared)
        except RestoreFailed as failure:
            token = await self._second_token(session.id, row, failure)
            if token is None:
                raise
            assert start.execution is not None
            await self._manager.stop(start.execution, why="start_failed", grace_s=0)
            start.execution = None
            row = self._row(session.id)
            metadata = row.metadata if token else {k: v for k, v in row.metadata.items() if k != FORK_OF}
            again = msgspec.structs.replace(row, resume_token=token, metadata=metadata)
            await self._attempt(start, session, again, prepared)

    async def _second_token(self, session_id: str, row: ExecutorRunning, failure: RestoreFailed) -> str | None:
        """Return the token of a second try in a fresh process, None where there is none.

        TOK-16: nothing definite was said, so once more the same. TOK-5: an agent that took the token on its command
        line does not know it, and no turn had ended in it: nothing was lost, so a new session.
        """
        if failure.kind is LoadFailure.CANNOT_RESTORE and await self._may_try_again(session_id):
            return row.resume_token
        unproven = failure.kind is LoadFailure.UNKNOWN_SESSION and not row.metadata.get("token_proven")
        return "" if unproven else None

    async def _validate_and_lock(self, start: Start) -> tuple[TaskSession, ExecutorRunning]:
        """Read again what counts, now that this start is the only one (RACE-3)."""
        old = self._manager.get(start.session_id)
        if old is not None and old.responding:
            await old.ended.wait()
        elif old is not None and not await self._is_reached_again(old):
            await self._manager.stop(old, why="not_responding", grace_s=0)
        session = self._store.session(start.session_id)
        if session.state in TERMINAL_STATES or session.intent:
            reason = "session_completed" if session.state is SessionState.COMPLETED else "session_ended"
            raise SessionEnded(f"The session is {session.state}; `recover` can bring it back.", reason=reason)
        if session.parked_reason:
            raise Parked(f"The session is parked: {session.parked_reason} `recover` tries again.")
        row = self._row(session.id)
        settled = row.status in {RowStatus.STOPPED, RowStatus.FAILED} or self._manager.get(session.id) is not None
        if not settled and row.agent_execution_id:
            await self._services.settle_leftover(row)
            session, row = self._store.session(session.id), self._row(session.id)
        start.previous_state = session.state
        start.launch = session.state is SessionState.CREATED
        return session, row

    async def _is_reached_again(self, old: AgentExecution) -> bool:
        """Tell whether an agent elsewhere that did not answer does now, and is to be left alone.

        Raises RuntimeUnreachable where nobody can say: it is unknown, not dead (CONT-5).
        """
        elsewhere = self._manager.elsewhere(old.runtime.name)
        if elsewhere is None or not old.stays or await elsewhere.reconnect(old.instance) is None:
            return False
        old.responding = True
        return True

    def _row(self, session_id: str) -> ExecutorRunning:
        row = self._store.executor(session_id)
        if row is None:
            raise Internal(f"The session {session_id} has no row in executors_running.")
        return row

    async def _attempt(self, start: Start, session: TaskSession, row: ExecutorRunning, prepared: Prepared) -> None:
        start.enter("launching")
        config = msgspec.json.decode(self._store.settings(session.id).agent_config, type=AgentConfig)
        if not config.launchable:
            raise Conflict(config.not_launchable_reason, reason="protocol_not_built")
        request = self._request(session, row, prepared.workspace, previous_state=start.previous_state)
        await self._begin(start, row, request)
        start.execution_id = request.execution_id
        # Read behind that commit: what is set from here on waits for this start (see `SessionSettings`).
        wanted = _wanted(self._store.session(session.id), config)
        launching = self._manager.launch_agent(
            request, config, runtime_name=session.runtime, wanted=wanted, stage=start.enter
        )
        # A sandbox may take minutes, and what a start that was given up has made of it, the next one uses.
        elsewhere = self._manager.elsewhere(session.runtime) is not None
        start.execution = execution = await (start.unless_given_up(launching) if elsewhere else launching)
        await self._persist_resume_state(execution, prepared.workspace)
        start.require_wanted()
        answer = resume_answer(self._store.session(session.id), self._row(session.id), request.execution_id)
        if not start.accepted.done():
            start.accepted.set_result(answer)
        if elsewhere:
            start.enter("carrying")
            await start.unless_given_up(self._workspaces.carry_in(execution, prepared.workspace))
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
            opened_at=next((outcome.ended_at for outcome in self._store.resumes(session.id, limit=1)), ""),
            task_description=head.content if head else "",
        )
        last_turn = self._store.last_turn(session.id)
        running = msgspec.structs.replace(row, last_message_uuid=resume_point(row, last_turn))
        return build_resume_request(
            request, running=running, previous_state=previous_state, any_turn=last_turn is not None
        )

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

        def job(tx: Tx) -> None:
            tx.one(
                "executor_persist",
                session_id=ref.session_id,
                agent_execution_id=ref.execution_id,
                **instance_columns(instance),
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
            if execution.request.fork_of:  # the copy remembers, so it needs no recap
                tx.run("session_set_recap", id=session.id, recap_pending=0)
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


def _wanted(session: TaskSession, config: AgentConfig) -> Wanted:
    return Wanted(mode=session.mode or config.mode, model=session.model or config.model, options=session.config_options)
