"""The agents that run now: started in five steps, watched, ended once.

Specification: "StartAgentProcess", "RecoverInstances".
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
import structlog

from kandev.agentctl.failpoints import failpoint
from kandev.agents.base import AgentConfig, launch_environment, mcp_servers_for_launch
from kandev.domain.constants import Timing
from kandev.domain.models import Event, ExecutorRunning, Message
from kandev.domain.models import now as stamp
from kandev.domain.resume import LaunchAgentRequest
from kandev.errors import AgentctlError, AgentDied, AgentError, Conflict, KandevError, RuntimeUnreachable
from kandev.lifecycle.agent_logs import AgentLogs
from kandev.lifecycle.batch import Applied
from kandev.lifecycle.command import command_of
from kandev.lifecycle.effects import EventHandlers, ExecutionRef
from kandev.lifecycle.execution import AgentExecution, Wanted
from kandev.lifecycle.forking import fork_by_command
from kandev.lifecycle.ingest import Ingest
from kandev.lifecycle.protocol_state import ProtocolState, decode_state, new_state
from kandev.lifecycle.reader import Reader
from kandev.lifecycle.running import Running
from kandev.lifecycle.session import (
    History,
    InitialPrompt,
    Restored,
    dispatch_initial_prompt,
    initialize_agent_session,
)
from kandev.lifecycle.stream_session import open_stream_session
from kandev.protocols.acp import AgentInfo
from kandev.runtimes.agentctl_client import AgentProcess
from kandev.runtimes.base import Elsewhere, Instance, InstanceRequest, Runtime
from kandev.store.database import Tx
from kandev.store.store import Store

log = structlog.get_logger(__name__)

Stage = Callable[[str], None]


class Recorder(Protocol):
    """Takes closed messages after their commit, for the history file."""

    def __call__(self, session_id: str, messages: Sequence[Message], /) -> None:
        """Append what is not there yet."""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """What `start_agent_process` reached."""

    restored: Restored
    initial: InitialPrompt


class Survivors(msgspec.Struct, frozen=True, kw_only=True):
    """The instances that can be attached, by id, and the names of the runtimes that did not answer."""

    instances: Mapping[str, Instance]
    silent: frozenset[str]


class LifecycleManager:
    """Owns the live executions, one at most for each session."""

    def __init__(
        self,
        *,
        store: Store,
        runtimes: Mapping[str, Runtime],
        handlers: EventHandlers,
        history: History,
        record: Recorder,
        publish: Callable[[Sequence[Event]], None],
        timing: Timing,
        line_bytes: int,
        agent_logs: AgentLogs,
    ) -> None:
        self._store = store
        self._runtimes = runtimes
        self._handlers = handlers
        self._history = history
        self._record = record
        self._publish = publish
        self._timing = timing
        self._line_bytes = line_bytes
        self._running = Running(
            timing=timing,
            publish=publish,
            agent_logs=agent_logs,
            forget=self._forget,
            broken=lambda session_id: self.on_broken(session_id),  # noqa: PLW0108 - set once all is built
        )
        self._executions: dict[str, AgentExecution] = {}
        self._stops: set[asyncio.Task[None]] = set()
        self.on_broken: Callable[[str], None] = lambda _session_id: None

    def get(self, session_id: str) -> AgentExecution | None:
        """Return the session's execution while its agent is not known to have ended."""
        return self._executions.get(session_id)

    def all(self) -> list[AgentExecution]:
        """Return every execution."""
        return list(self._executions.values())

    @property
    def runtime_names(self) -> list[str]:
        """The runtimes of this backend."""
        return list(self._runtimes)

    def runtime(self, name: str) -> Runtime:
        """Return a runtime. Raises Conflict for one that this backend does not have."""
        runtime = self._runtimes.get(name)
        if runtime is None:
            raise Conflict(f"This backend has no runtime {name!r}; it has {', '.join(self._runtimes)}.")
        return runtime

    def elsewhere(self, name: str) -> Elsewhere | None:
        """Return a runtime whose places have no file system in common with us; None for every other one."""
        runtime: object = self._runtimes.get(name)
        return runtime if isinstance(runtime, Elsewhere) else None

    async def launch_agent(
        self, request: LaunchAgentRequest, config: AgentConfig, *, runtime_name: str, wanted: Wanted, stage: Stage
    ) -> AgentExecution:
        """Create the agentctl instance (LaunchAgent). The agent itself is started by `start_agent_process`."""
        runtime = self.runtime(runtime_name)
        instance = await runtime.create_instance(
            InstanceRequest(
                instance_id=request.instance_id,
                session_id=request.session_id,
                task_id=request.task_id,
                execution_id=request.execution_id,
                cwd=request.cwd,
                agent=config.name,
                credentials=config.credentials,
                told=stage,
            )
        )
        request = msgspec.structs.replace(request, cwd=instance.cwd or request.cwd)
        ref = ExecutionRef(
            session_id=request.session_id,
            task_id=request.task_id,
            execution_id=request.execution_id,
            agent=config.name,
        )
        state = new_state(config.protocol, history_enabled=config.session.history_context_injection)
        execution = AgentExecution(
            ref,
            request,
            config,
            runtime=runtime,
            instance=instance,
            client=runtime.connect(instance),
            ingest=self.ingest(ref, state, 0, config),
            wanted=wanted,
        )
        self._executions[request.session_id] = execution
        return execution

    def ingest(self, ref: ExecutionRef, state: ProtocolState, position: int, config: AgentConfig) -> Ingest:
        """Return an ingest of a journal from `position` on."""
        store = self._store
        reader = Reader(
            ref,
            state,
            position,
            handlers=self._handlers,
            next_seq=lambda: store.next_seq(ref.session_id),
            load_message=store.message,
            permissions=config.permissions,
        )
        ingest = Ingest(
            reader,
            store.database,
            timing=self._timing,
            line_bytes=self._line_bytes,
            publish=self._publish,
            record=lambda messages: self._keep_history(ref.session_id, state, messages),
        )
        reader.on_answer = ingest.answered
        return ingest

    def _keep_history(self, session_id: str, state: ProtocolState, messages: Sequence[Message]) -> None:
        if state.history_enabled:
            self._record(session_id, messages)

    async def start_agent_process(self, execution: AgentExecution, stage: Stage) -> Started:
        """Wait for agentctl, configure, start the agent, open the session, dispatch the first prompt.

        Raises AgentError and its kinds; the caller decides what becomes of the session, and ends the execution.
        """
        timing, config, request = self._timing, execution.config, execution.request
        await execution.client.wait_ready(timing.agentctl_ready_s)
        await fork_by_command(execution)
        failpoint("agent.before_configure")
        await execution.client.configure(
            command=command_of(execution),
            env=launch_environment(config, os.environ, execution.runtime.place),
            cwd=request.cwd,
            inherit=execution.runtime.place.own_environment,
        )
        failpoint("agent.after_configure")
        stage("starting_agent")
        failpoint("agent.before_start")
        process = await execution.client.start()
        failpoint("agent.after_start")
        execution.require_not_ending()
        # Not before: where no agent was started, no record ends the journal, and its reader would wait for ever.
        execution.runner = asyncio.create_task(self._running.run(execution), name=f"execution {request.session_id}")
        execution.ingest.reader.batch.add(_agent_started(execution, process))
        restored = await self._open(execution, stage)
        if restored.refused:
            execution.ingest.reader.batch.add(_refused(execution))
        execution.require_not_ending()
        initial = dispatch_initial_prompt(execution, self._history, how=restored.how)
        return Started(restored=restored, initial=initial)

    async def _open(self, execution: AgentExecution, stage: Stage) -> Restored:
        servers = mcp_servers_for_launch(execution.config, os.environ)
        if execution.config.protocol != "acp":
            return await open_stream_session(execution, timing=self._timing, mcp_servers=servers, stage=stage)
        return await initialize_agent_session(
            execution,
            timing=self._timing,
            mcp_servers=servers,
            refuses=lambda version: self._store.refuses_restore(execution.config.name, version),
            stage=stage,
        )

    def _forget(self, execution: AgentExecution) -> None:
        if self._executions.get(execution.ref.session_id) is execution:
            del self._executions[execution.ref.session_id]
        execution.ingest.end(AgentDied("The agent ended."))
        execution.ended.set()

    async def stop(self, execution: AgentExecution, *, why: str, grace_s: float) -> None:
        """End an execution: close its stdin, wait, terminate, kill the tree. Returns when it is proven dead.

        Whoever asked may be cancelled, but the end goes on: a start waits for it.
        """
        if not execution.ending:
            execution.ending = why
        stop = asyncio.create_task(self._stop(execution, grace_s), name=f"stop {execution.ref.session_id}")
        self._stops.add(stop)
        stop.add_done_callback(self._stopped)
        await asyncio.shield(stop)

    def _stopped(self, stop: "asyncio.Task[None]") -> None:
        self._stops.discard(stop)
        if not stop.cancelled():
            stop.exception()  # whoever waits gets it too

    async def _stop(self, execution: AgentExecution, grace_s: float) -> None:
        if execution.runner is None:
            try:
                await execution.runtime.stop_instance(execution.instance, grace_s=0)
                await execution.runtime.discard(execution.instance)
            finally:  # where nobody can be asked, the next start ends what is left
                await execution.client.aclose()
                self._forget(execution)
            return
        failpoint("agent.before_stop")
        try:
            if not execution.responding:
                raise AgentctlError("agentctl does not answer.", reason="no_answer")
            await execution.client.stop(grace_s=grace_s)
        except AgentError as error:
            log.info("execution.stop_by_identity", session_id=execution.ref.session_id, error=str(error))
            try:
                await execution.runtime.clear_leftovers([execution.instance])
            except RuntimeUnreachable:
                execution.leaving.set()  # it may live: who settles it leaves it unknown, or ends it (CONT-5)
                await execution.ended.wait()
                self.on_broken(execution.ref.session_id)
                raise
        await execution.ended.wait()
        failpoint("agent.after_stop")
        await execution.client.aclose()

    async def stop_all(self, executions: Iterable[AgentExecution], *, why: str) -> None:
        """End several at once, gently, each with its own grace."""
        await asyncio.gather(
            *(self.stop(e, why=why, grace_s=self._timing.stop_grace_s) for e in executions), return_exceptions=True
        )

    async def forget_session(self, runtime_name: str, session_id: str) -> None:
        """Remove what a runtime keeps for a session that is deleted; what cannot be removed now, a later start does."""
        runtime = self._runtimes.get(runtime_name)
        try:
            if runtime is not None:
                await runtime.forget_session(session_id)
        except KandevError as error:
            log.warning("runtime.not_forgotten", runtime=runtime_name, session_id=session_id, error=error.message)

    async def leave_all(self, executions: Iterable[AgentExecution]) -> None:
        """Let go of agents that outlive this backend; what they said so far is stored."""
        leaving = list(executions)
        for execution in leaving:
            execution.leaving.set()
        await asyncio.gather(*(execution.ended.wait() for execution in leaving))
        await asyncio.gather(*(execution.client.aclose() for execution in leaving), return_exceptions=True)

    async def recover_instances(self) -> Survivors:
        """Ask every runtime what survived. One that does not answer in time leaves what it holds unknown (CONT-5)."""
        asked = await asyncio.gather(*map(self._recover, self._runtimes.values()))
        instances = {one.instance_id: one for found in asked for one in found or ()}
        silent = frozenset(name for name, found in zip(self._runtimes, asked, strict=True) if found is None)
        return Survivors(instances=instances, silent=silent)

    async def _recover(self, runtime: Runtime) -> list[Instance] | None:
        try:
            async with asyncio.timeout(self._timing.recover_s):
                return await runtime.recover_instances()
        except (TimeoutError, KandevError, OSError) as error:
            log.warning("runtime.not_answering", runtime=runtime.name, error=str(error))
            return None

    def attach(
        self,
        row: ExecutorRunning,
        instance: Instance,
        config: AgentConfig,
        *,
        wanted: Wanted,
        unwritten: Iterable[tuple[int, bytes]],
    ) -> AgentExecution:
        """Go on with an agent that outlived its backend, from the last stored number of its journal on (CONT-1).

        `unwritten` are lines to it that were stored and not seen written; each reaches it once, by its number.
        """
        runtime = self.runtime(row.runtime)
        ref = ExecutionRef(
            session_id=row.session_id,
            task_id=row.task_id,
            execution_id=row.agent_execution_id,
            agent=config.name,
        )
        state = decode_state(row.protocol_state)
        request = LaunchAgentRequest(
            session_id=row.session_id,
            task_id=row.task_id,
            execution_id=row.agent_execution_id,
            instance_id=row.instance_id,
            cwd=instance.cwd or row.worktree_path,
        )
        execution = AgentExecution(
            ref,
            request,
            config,
            runtime=runtime,
            instance=instance,
            client=runtime.connect(instance),
            ingest=self.ingest(ref, state, row.last_event_seq, config),
            wanted=wanted,
        )
        execution.info = AgentInfo.from_initialize(state.initialize or {})
        execution.initialized = execution.ready = True
        execution.ingest.send_again(unwritten)
        self._executions[row.session_id] = execution
        execution.runner = asyncio.create_task(self._running.run(execution), name=f"execution {row.session_id}")
        return execution


def _refused(execution: AgentExecution) -> Callable[[Tx, Applied], None]:
    """TOK-8: kept for this version. An agent that tells none may be another one next time."""

    def change(tx: Tx, _applied: Applied) -> None:
        if execution.info.version:
            tx.run("agent_version_refuses", agent=execution.config.name, version=execution.info.version)

    return change


def _agent_started(execution: AgentExecution, process: AgentProcess) -> Callable[[Tx, Applied], None]:
    ref = execution.ref

    def change(tx: Tx, _applied: Applied) -> None:
        tx.run(
            "executor_set_agent",
            session_id=ref.session_id,
            agent_execution_id=ref.execution_id,
            agent_pid=process.pid,
            agent_start_time=process.start_time,
            process_group=process.process_group,
            now=stamp(),
        )

    return change
