"""The composition root: builds every object, in order, on one stack, and takes them down in the opposite order."""

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from kandev.agents.registry import AgentRegistry
from kandev.config import Config
from kandev.domain.models import Event, ExecutorRunning, new_id, now
from kandev.errors import RuntimeUnreachable
from kandev.gateway.hub import Hub
from kandev.home_lock import home_lock
from kandev.lifecycle.agent_logs import AgentLogs
from kandev.lifecycle.effects import AgentExited, CompleteStreamEvent, Effect, ExecutionRef, PromptFailed
from kandev.lifecycle.execution import AgentExecution
from kandev.lifecycle.live_limit import LiveLimit
from kandev.lifecycle.manager import LifecycleManager
from kandev.lifecycle.recording import HistoryRecorder
from kandev.lifecycle.session_history import SessionHistoryManager
from kandev.orchestrator.adoption import Adoption
from kandev.orchestrator.agent_list import AgentList
from kandev.orchestrator.catalog import Catalog
from kandev.orchestrator.deletion import Deletion
from kandev.orchestrator.event_handlers import SessionEventHandlers
from kandev.orchestrator.executor import Executor
from kandev.orchestrator.hooks import WATCHED, Hooks
from kandev.orchestrator.intentions import carry_out_intentions
from kandev.orchestrator.messages import MessageService
from kandev.orchestrator.permissions import PermissionService
from kandev.orchestrator.prompt_queue import PromptQueue
from kandev.orchestrator.reconcile import Reconciler
from kandev.orchestrator.recovery import Recovery
from kandev.orchestrator.search import Search
from kandev.orchestrator.session_settings import SessionSettings
from kandev.orchestrator.snapshot import session_snapshot
from kandev.orchestrator.task_operations import TaskOperations
from kandev.orchestrator.tasks import TaskService
from kandev.orchestrator.workspaces import SessionWorkspaces
from kandev.runtimes.base import Instance, Runtime
from kandev.runtimes.detached import DetachedRuntime
from kandev.runtimes.docker import DockerRuntime
from kandev.runtimes.fork_client import ForkServer
from kandev.runtimes.remote_docker import RemoteDockerRuntime
from kandev.runtimes.sprites import SpritesRuntime
from kandev.runtimes.standalone import StandaloneRuntime
from kandev.store.database import load_statements
from kandev.store.sqlite import SqliteDatabase
from kandev.store.store import Store
from kandev.supervisor import Supervisor
from kandev.worktrees import Worktrees

log = structlog.get_logger(__name__)

STORE_DIRECTORY = Path(__file__).parent / "store"


class Backend:
    """One backend on one home. The services are what the gateway and the library call.

    `runtimes` stand in the place of the ones that the configuration gives: a test may have agents of its own kind.
    """

    def __init__(self, config: Config, database: SqliteDatabase, *, runtimes: Sequence[Runtime] = ()) -> None:
        self.config = config
        self.home = config.home
        self.boot_id = new_id()
        self.hub = Hub(
            self.boot_id,
            ring_events=config.limits.event_buffer_count,
            ring_bytes=config.limits.event_buffer_bytes,
        )
        self.store = Store(database)
        self.watch_commits = database.watch_commits
        self._supervisor = Supervisor()
        self._registry = AgentRegistry(config.agents)
        self._history = SessionHistoryManager(self.home.sessions, limit=config.limits.context_chars)
        self._recorder = HistoryRecorder(self._history, self.store)
        self._agent_logs = AgentLogs(self.home.logs / "agents")
        self._worktrees = Worktrees(
            self.home.worktrees,
            environ=os.environ,
            setup=config.worktrees.setup,
            copy=config.worktrees.copy,
            timing=config.timing,
        )
        self._runtimes = {runtime.name: runtime for runtime in runtimes or self._configured_runtimes()}
        self._handlers = SessionEventHandlers(self.store)
        self.manager = LifecycleManager(
            store=self.store,
            runtimes=self._runtimes,
            handlers=self._handlers,
            history=self._history,
            record=self._recorder.record,
            publish=self.hub.publish,
            timing=config.timing,
            line_bytes=config.limits.line_bytes,
            agent_logs=self._agent_logs,
        )
        self._adoption = Adoption(
            self.store, self.manager, complete_history=self._recorder.complete_history, publish=self.hub.publish
        )
        self._reconciler = Reconciler(
            self.store,
            self._handlers,
            self._runtimes,
            self._adoption,
            publish=self.hub.publish,
            record=self._recorder.record,
            line_bytes=config.limits.line_bytes,
            agent_logs=self._agent_logs,
        )
        self._workspaces = SessionWorkspaces(
            self.store, self._worktrees, timing=config.timing, publish=self.hub.publish
        )
        self.executor = Executor(self.store, self.manager, self._workspaces, self, timing=config.timing)
        self.queue = PromptQueue(
            self.store,
            self.executor,
            self.manager,
            self._history,
            self._recorder,
            timing=config.timing,
            parallel=config.limits.restart_parallel,
            context_chars=config.limits.context_chars,
            spawn=self.spawn,
            publish=self.hub.publish,
        )
        self.live = LiveLimit(
            self.manager,
            most=config.limits.max_live_agents,
            idle_minutes=config.limits.idle_minutes,
            busy=self.queue.has_work,
        )
        self._build_services()
        self._watch_hooks()

    def _configured_runtimes(self) -> Sequence[Runtime]:
        fork_server, cap_bytes = ForkServer(), self.config.limits.journal_cap_bytes
        detached = self.config.runtimes.detached
        return [
            StandaloneRuntime(str(self.home.run), cap_bytes=cap_bytes, fork_server=fork_server),
            DetachedRuntime(
                str(self.home.run / DetachedRuntime.name),
                cap_bytes=cap_bytes,
                idle_s=detached.idle_minutes * 60,
                fork_server=fork_server,
            ),
            DockerRuntime(
                self.home.run / DockerRuntime.name,
                self.config.runtimes.docker,
                home_id=self.home.identity,
                environ=os.environ,
                cap_bytes=cap_bytes,
            ),
            RemoteDockerRuntime(
                self.home.run / RemoteDockerRuntime.name,
                self.config.runtimes.remote_docker,
                home_id=self.home.identity,
                environ=os.environ,
                cap_bytes=cap_bytes,
                reach_s=self.config.timing.reach_s,
            ),
            SpritesRuntime(
                self.home.run / SpritesRuntime.name,
                self.config.runtimes.sprites,
                home_id=self.home.identity,
                environ=os.environ,
                cap_bytes=cap_bytes,
                reach_s=self.config.timing.reach_s,
            ),
        ]

    def _build_services(self) -> None:
        self.operations = TaskOperations(
            self.store,
            executor=self.executor,
            manager=self.manager,
            queue=self.queue,
            workspaces=self._workspaces,
            agent_logs=self._agent_logs,
            timing=self.config.timing,
            boot_time=now(),
            context_chars=self.config.limits.context_chars,
            spawn=self.spawn,
            publish=self.hub.publish,
        )
        self.recovery = Recovery(
            self.store,
            executor=self.executor,
            manager=self.manager,
            queue=self.queue,
            history=self._history,
            settle=self.settle_leftover,
            timing=self.config.timing,
            publish=self.hub.publish,
        )
        self.settings = SessionSettings(
            self.store, settled=self.executor.settled, timing=self.config.timing, publish=self.hub.publish
        )
        self.agents = AgentList(self.store, self._registry)
        self.catalog = Catalog(
            self.store.database,
            manager=self.manager,
            default_runtime=self.config.runtimes.default,
        )
        self.messages = MessageService(self.store, kick=self.queue.kick, publish=self.hub.publish)
        self.search = Search(self.store.database)
        self.permissions = PermissionService(self.store, running=self.executor.running, publish=self.hub.publish)
        self.deletion = Deletion(
            self.store,
            self.operations,
            self._worktrees,
            self._history,
            agent_logs=self._agent_logs,
            forget=self._forget_session,
            publish=self.hub.publish,
        )
        self.tasks = TaskService(
            self.store,
            self.operations,
            self._worktrees,
            self._registry,
            directory=self.home.worktrees,
            runtimes=self.manager.runtime_names,
            default_runtime=self.config.runtimes.default,
            kick=self.queue.kick,
            publish=self.hub.publish,
        )

    async def _forget_session(self, runtime: str, session_id: str) -> None:
        if self.manager.elsewhere(runtime) is not None:
            await self._workspaces.forget(session_id)
        await self.manager.forget_session(runtime, session_id)

    def _watch_hooks(self) -> None:
        self.hub.watch("session.turn.completed", lambda _event: self.search.wake())
        hooks = self.config.hooks
        if not hooks.on:
            return
        watcher = Hooks(hooks.on, hooks.command, directory=str(self.home.path), spawn=self.spawn)
        for action in WATCHED:
            self.hub.watch(action, watcher.tell)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, config: Config) -> AsyncIterator["Backend"]:
        """Lock the home, migrate, settle what an older backend left, and work until the block ends.

        Raises HomeInUse, Invalid, and what opening the database raises.
        """
        config.home.prepare()
        with home_lock(config.home.lock):
            statements = load_statements(STORE_DIRECTORY / "queries.sql")
            async with SqliteDatabase.open(config.home.database, statements, STORE_DIRECTORY / "migrations") as db:
                backend = cls(config, db)
                try:
                    await backend._start()
                    yield backend
                finally:
                    await asyncio.shield(backend._stop())

    async def _start(self) -> None:
        recording = self._supervisor.spawn(self._recorder.run(), "history")
        recording.set_name("history")
        for runtime in self._runtimes.values():
            if isinstance(runtime, StandaloneRuntime):
                self._supervisor.spawn(runtime.warm_up(), "fork server")
        gc.disable()  # what a settled session allocates is freed by its counts alone
        try:
            going_on = await self._reconciler.run()
        finally:
            gc.enable()
        self._handlers.after = self._after
        self.executor.on_ready = self._start_ended
        self.manager.on_broken = self._broken
        for row, instance in going_on:
            await self._attach(row, instance)
        self._supervisor.spawn(self.search.run(), "search index")
        await carry_out_intentions(self.store, self.operations, self.tasks, self.deletion)
        self._supervisor.spawn(self.live.run(), "idle agents")
        self.queue.kick_all_open()

    async def _attach(self, row: ExecutorRunning, instance: Instance) -> None:
        """Go on with an agent that outlived the last backend. One that cannot be attached now, a resume may attach."""
        try:
            await self._adoption.attach(row, instance)
            await self.operations.continue_cancel(row.session_id)
        except Exception:
            log.exception("attach.failed", session_id=row.session_id)

    async def _stop(self) -> None:
        """SIGTERM: no new work, agents end in order, everything is stored (design, section 5, Stop).

        Agents of a lasting runtime go on.
        """
        self.executor.stopping = True
        starts = [self.executor.give_up(e.ref.session_id, "stopping") for e in self.manager.all() if not e.ready]
        try:
            async with asyncio.timeout(self.config.timing.backend_stop_s):
                await asyncio.gather(*starts, return_exceptions=True)
                lasting = [execution for execution in self.manager.all() if execution.stays]
                ends = [execution for execution in self.manager.all() if not execution.stays]
                await asyncio.gather(self.manager.leave_all(lasting), self.manager.stop_all(ends, why="stopping"))
                await self._recorder.settle()
        except TimeoutError:
            log.warning("stop.late", seconds=self.config.timing.backend_stop_s)
        await asyncio.gather(*(runtime.aclose() for runtime in self._runtimes.values()))
        await self._supervisor.finish(0)
        await self._history.aclose()

    # ---- what the executor needs of its surroundings

    def publish(self, events: Sequence[Event]) -> None:
        """Publish what a commit gave."""
        self.hub.publish(events)

    def spawn(self, work: Any, name: str) -> "asyncio.Task[None]":
        """Run work under supervision."""
        return self._supervisor.spawn(work, name)

    async def settle_leftover(self, row: ExecutorRunning) -> None:
        """Attach to an older execution that lives, or prove it dead and read its journal."""
        await self._reconciler.settle(row)
        if self.manager.get(row.session_id) is not None:
            await self.operations.continue_cancel(row.session_id)

    def _broken(self, session_id: str) -> None:
        self.spawn(self._settle_broken(session_id), f"settle {session_id}")

    async def _settle_broken(self, session_id: str) -> None:
        """Its ingest failed by an error of ours, or its agent is out of reach: the session must not be stuck."""
        row = self.store.executor(session_id)
        if row is not None:
            with contextlib.suppress(RuntimeUnreachable):  # stored as unknown; a resume asks again
                await self.settle_leftover(row)

    async def prepare_history(self, session_id: str) -> None:
        """Bring the history file of an agent that is told it up to date."""
        execution = self.manager.get(session_id)
        if execution is not None and execution.history_enabled:
            await self._recorder.complete_history(session_id)

    async def make_room(self, session_id: str) -> None:
        """Wait until one more agent may live."""
        await self.live.make_room(session_id)

    def _start_ended(self, session_id: str) -> None:
        self.live.release(session_id)
        self.queue.kick(session_id)

    def _after(self, ref: ExecutionRef, effect: Effect) -> None:
        """Go on when a turn or an agent ended."""
        if not isinstance(effect, CompleteStreamEvent | PromptFailed | AgentExited):
            return
        execution = self.manager.get(ref.session_id)
        if execution is not None:
            execution.active_at = asyncio.get_running_loop().time()
        if execution is not None and not isinstance(effect, AgentExited):
            self._bring_home(execution)
        if isinstance(effect, PromptFailed) and execution is not None:
            self._after_failed_prompt(ref)
        self.live.changed()
        self.queue.kick(ref.session_id)

    def _bring_home(self, execution: AgentExecution) -> None:
        """A turn ended: where the agent works elsewhere, what it did comes onto the session's branch."""
        if self.manager.elsewhere(execution.runtime.name) is not None:
            self.spawn(self._workspaces.bring_home(execution), f"work of {execution.ref.session_id}")

    def _after_failed_prompt(self, ref: ExecutionRef) -> None:
        """An agent that lost its session is of no use any more: the next start makes a new one (TOK-1)."""
        row = self.store.executor(ref.session_id)
        execution = self.manager.get(ref.session_id)
        if row is not None and not row.resume_token and execution is not None:
            self.spawn(self.manager.stop(execution, why="token_rejected", grace_s=0), f"end {ref.session_id}")

    # ---- what clients see at once

    def snapshot(self, session_id: str) -> Mapping[str, Any]:
        """Return all that a subscriber must know of a session now (contract, `session.subscribe`)."""
        return session_snapshot(self.store, session_id, status=self.operations.status)

    def sessions_by_state(self) -> Mapping[str, int]:
        """Return how many sessions are in each state, for the metrics."""
        return {row["state"]: row["n"] for row in self.store.database.all("sessions_by_state_count")}


class Settling(Backend):
    """A backend that settles what an older one left, as every start does, but starts no agent and sends nothing."""

    def __init__(self, config: Config, database: SqliteDatabase) -> None:
        super().__init__(config, database)
        self.executor.stopping = True
