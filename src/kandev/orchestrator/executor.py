"""Starts and resumes of sessions, one at a time for each: who starts, who joins, who waits, who gives up.

Specification: "Executor.ResumeSession". What a start does, in order, is in `start_steps`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from kandev.domain.constants import Timing
from kandev.domain.models import RowStatus
from kandev.errors import (
    Internal,
    KandevError,
    NotFound,
    Parked,
    RuntimeUnreachable,
    SessionEnded,
    Stopping,
    Unavailable,
)
from kandev.lifecycle.execution import AgentExecution
from kandev.lifecycle.manager import LifecycleManager
from kandev.orchestrator.outcomes import record_failure
from kandev.orchestrator.start_steps import Services, StartSteps
from kandev.orchestrator.starting import GivenUp, Start
from kandev.orchestrator.views import ResumeAnswer, resume_answer
from kandev.orchestrator.workspaces import SessionWorkspaces
from kandev.store.store import Store

log = structlog.get_logger(__name__)


class Executor:
    """One start at most for each session; whoever comes later joins it."""

    def __init__(
        self,
        store: Store,
        manager: LifecycleManager,
        workspaces: SessionWorkspaces,
        services: Services,
        *,
        timing: Timing,
    ) -> None:
        self._store = store
        self._manager = manager
        self._services = services
        self._steps = StartSteps(store, manager, workspaces, services)
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

    async def settled(self, session_id: str) -> AgentExecution | None:
        """Wait for the end of a start that is under way, however it ends; return the session's live agent, if any."""
        while (start := self._starts.get(session_id)) is not None and not start.ready.done():
            await asyncio.wait([start.ready])
        return self.running(session_id)

    async def resume_session(self, session_id: str) -> ResumeAnswer:
        """Start the session's agent, or join the start under way; answer once the instance is stored.

        An agent that lives is left alone (RACE-2). Raises what `record_failure` stored.
        """
        execution = self.running(session_id)
        if execution is not None:
            session, row = self._store.session(session_id), self._store.executor(session_id)
            return resume_answer(session, row, execution.ref.execution_id, already_running=True)
        return await asyncio.shield(self._join(session_id).accepted)

    async def ensure_running(self, session_id: str) -> AgentExecution:
        """Return the session's live agent, resuming it if needed; by events, within 90 s."""
        execution = self.running(session_id)
        if execution is not None:
            return execution
        start = self._join(session_id)
        try:
            async with asyncio.timeout(self._timing.ensure_running_s):
                await asyncio.shield(start.ready)
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
            last = self._store.last_seq(session_id)
            start = Start(session_id, session.task_id, self._services.publish, after_seq=last)
            self._starts[session_id] = start
            self._services.spawn(self._run(start), f"start {session_id}")
        return start

    async def _run(self, start: Start) -> None:
        try:
            start.enter("checking")
            await self._released(start)
            await self._steps.carry_out(start)
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
            with contextlib.suppress(RuntimeUnreachable):  # the next start ends what is left
                await self._manager.stop(execution, why=start.given_up or "start_failed", grace_s=0)
        try:
            start.fail(await record_failure(self._store, start, error, publish=self._services.publish))
        except NotFound:
            log.info("start.session_deleted", session_id=start.session_id)
        finally:
            start.fail(error)

    async def _released(self, start: Start) -> None:
        """Wait while somebody holds back starts of this session."""
        while (released := self._held_back.get(start.session_id)) is not None:
            await start.unless_given_up(released.wait())

    async def settle_unknown(self, session_id: str) -> None:
        """Ask again about an agent of which nothing is known, for a session that is being ended: that ends it, too.

        Where nobody answers it stays unknown, and whatever starts the session again asks again (CONT-5).
        """
        row = self._store.executor(session_id)
        if row is None or not row.agent_execution_id or row.status in {RowStatus.STOPPED, RowStatus.FAILED}:
            return
        if session_id in self._starts or self._manager.get(session_id) is not None:
            return
        try:
            await self._services.settle_leftover(row)
        except RuntimeUnreachable as error:
            log.warning("agent.left", session_id=session_id, runtime=row.runtime, error=error.message)

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
            with contextlib.suppress(RuntimeUnreachable):  # as in `_failed`, which comes next
                await self._manager.stop(start.execution, why=why, grace_s=0)
        await asyncio.wait([start.ready])
        return True
