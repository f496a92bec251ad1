"""What a killed backend left behind: its processes are ended, its journals read in, its sessions settled (STATE-1).

Agents that outlived it are left alone, to be attached. It runs before the port opens, and again for one session when a
resume finds a row that nobody settled (RACE-10).
"""

import asyncio
import os
from collections.abc import Callable, Container, Mapping, Sequence

import msgspec
import structlog

from kandev.agentctl.failpoints import failpoint
from kandev.agentctl.segments import journal_bounds, journal_in, read_journal
from kandev.agents.base import AgentConfig
from kandev.domain.models import Event, ExecutorRunning, Message, SessionState
from kandev.domain.states import SessionEvent, TaskEvent
from kandev.errors import AgentError, KandevError, RuntimeUnreachable
from kandev.lifecycle.agent_logs import AgentLogs
from kandev.lifecycle.batch import Applied, Batch
from kandev.lifecycle.effects import EventHandlers, ExecutionRef
from kandev.lifecycle.line_splitter import LineSplitter
from kandev.lifecycle.protocol_state import decode_state
from kandev.lifecycle.reader import Reader
from kandev.orchestrator.adoption import Adoption
from kandev.orchestrator.transitions import move_session, move_task
from kandev.runtimes.base import Instance, Named, Runtime
from kandev.store.database import Tx
from kandev.store.store import Store

log = structlog.get_logger(__name__)

READ_PARALLEL = 8
COMMIT_BYTES = 2 << 20
SETTLE_TOGETHER = 500
STDERR_BYTES = 4096
WHY = "backend_killed"
LOST = "agent_lost"
BY_ITSELF = ""


class Reconciler:
    """Settles executions of which this process has no memory. `record` takes closed messages for the history."""

    def __init__(
        self,
        store: Store,
        handlers: EventHandlers,
        runtimes: Mapping[str, Runtime],
        adoption: Adoption,
        *,
        publish: Callable[[Sequence[Event]], None],
        record: Callable[[str, Sequence[Message]], None],
        line_bytes: int,
        agent_logs: AgentLogs,
    ) -> None:
        self._store = store
        self._handlers = handlers
        self._runtimes = runtimes
        self._adoption = adoption
        self._publish = publish
        self._record = record
        self._line_bytes = line_bytes
        self._agent_logs = agent_logs

    async def run(self) -> Sequence[tuple[ExecutorRunning, Instance]]:
        """Settle everything that older boots left; return what goes on, to be attached.

        Events are published to nobody: the port is closed.
        """
        rows = self._store.executors_not_ended()
        found = await self._adoption.sort(rows)
        unknown = [*found.unknown, *await self._kill(found.over)]
        await self._remove_strays(rows)
        await self._adoption.doubt(unknown)
        kept = {row.session_id for row in (*unknown, *(row for row, _ in found.going_on))}
        over = [row for row in found.over if row.session_id not in kept]
        with_journal = [row for row in over if self._has_journal(row)]
        to_read = {row.session_id for row in with_journal}
        rest = [row for row in over if row.session_id not in to_read]
        slots = asyncio.Semaphore(READ_PARALLEL)
        # Together, because reading keeps the loop busy, and settling the writer.
        await asyncio.gather(self._settle_together(rest), *(self._read_one(row, slots) for row in with_journal))
        await self._settle_stuck(kept)
        log.info("reconcile.done", executions=len(rows), journals=len(with_journal), going_on=len(found.going_on))
        return found.going_on

    async def settle(self, row: ExecutorRunning) -> None:
        """Attach to one older execution that lives; else prove it dead, then read what its journal still has.

        A journal that cannot be applied is left where it is, and the session is settled without it: nothing is stuck.
        Raises RuntimeUnreachable where nobody can say whether it lives; then nothing is changed (CONT-5).
        """
        found = await self._adoption.ask(row)
        for going_on, instance in found.going_on:
            await self._adoption.attach(going_on, instance)
            return
        if found.unknown or await self._kill([row]):
            await self._adoption.doubt([row])
            text = f"The runtime {row.runtime} does not answer. {found.why}".strip()
            raise RuntimeUnreachable(text, reason="unreachable")
        try:
            await self._read_one(row, asyncio.Semaphore(1))
        except Exception:
            log.exception("reconcile.journal_not_applied", session_id=row.session_id)
            current = self._store.executor(row.session_id)
            if current is not None:
                await self._commit([self._ended(self._reader(current), current)])

    async def _kill(self, rows: Sequence[ExecutorRunning]) -> list[ExecutorRunning]:
        """End what is left of executions; return those whose runtime does not answer."""
        unknown: list[ExecutorRunning] = []
        for name, runtime in self._runtimes.items():
            mine = [row for row in rows if row.runtime == name and row.instance_id]
            there = [at for row in mine if os.path.isdir((at := self._instance(row)).directory)]
            if not there:
                continue
            failpoint("reconcile.before_kill")
            try:
                killed = await runtime.clear_leftovers(there)
            except AgentError as error:  # not reached, or something does not die: a resume tries again
                log.warning("runtime.not_answering", runtime=name, error=error.message)
                unknown += mine
                continue
            failpoint("reconcile.after_kill")
            if killed:
                log.info("reconcile.killed", instances=killed)
        return unknown

    async def _remove_strays(self, rows: Sequence[ExecutorRunning]) -> None:
        """End instances that no row names: one was made, its id not stored (CRASH-3); or its session is gone."""
        named = Named(
            instances={row.instance_id for row in rows},
            has_session=lambda session_id: self._store.database.one("session_get", id=session_id) is not None,
        )
        for name, runtime in self._runtimes.items():
            try:
                strays = await runtime.strays(named)
                if strays:
                    await runtime.clear_leftovers(strays)
            except KandevError as error:
                log.warning("runtime.not_answering", runtime=name, error=error.message)
                continue
            for stray in strays:
                await runtime.discard(stray)

    def _instance(self, row: ExecutorRunning) -> Instance:
        return self._runtimes[row.runtime].locate(row.session_id, row.instance_id)

    def _directory(self, row: ExecutorRunning) -> str:
        """Return where the journal of an execution is; '' where there is none that this backend could find."""
        return self._instance(row).directory if row.instance_id and row.runtime in self._runtimes else ""

    def _has_journal(self, row: ExecutorRunning) -> bool:
        directory = self._directory(row)
        return bool(directory) and journal_bounds(journal_in(directory)).end > row.last_event_seq

    async def _read_one(self, row: ExecutorRunning, slots: asyncio.Semaphore) -> None:
        async with slots:
            reader = self._reader(row)
            splitter = LineSplitter(self._line_bytes)
            for chunk in read_journal(journal_in(self._directory(row)), row.last_event_seq):
                splitter.feed(chunk, reader)
                if reader.batch.size > COMMIT_BYTES:
                    await self._commit([(reader, reader.take())])
                await asyncio.sleep(0)
            await self._commit([self._ended(reader, row)])
            await self._discard(row)

    async def _settle_together(self, rows: Sequence[ExecutorRunning]) -> None:
        """Settle executions without anything to read, many in one transaction."""
        for start in range(0, len(rows), SETTLE_TOGETHER):
            part = rows[start : start + SETTLE_TOGETHER]
            await self._commit([self._ended(self._reader(row), row) for row in part])
            for row in part:
                if os.path.isdir(self._directory(row)):
                    await self._discard(row)

    async def _discard(self, row: ExecutorRunning) -> None:
        self._agent_logs.keep(row.session_id, self._directory(row))
        failpoint("reconcile.before_discard")
        await self._runtimes[row.runtime].discard(self._instance(row))
        failpoint("reconcile.after_discard")

    async def _settle_stuck(self, kept: Container[str]) -> None:
        """Move sessions that are STARTING or RUNNING although nothing runs; `kept` are those whose agents go on."""
        for state in (SessionState.STARTING, SessionState.RUNNING):
            for raw in self._store.database.all("sessions_in_state", state=state):
                row = self._store.executor(raw["id"]) if raw["id"] not in kept else None
                if row is not None:
                    await self._commit([self._ended(self._reader(row), row)])

    def _reader(self, row: ExecutorRunning) -> Reader:
        settings = self._store.settings(row.session_id)
        config = msgspec.json.decode(settings.agent_config, type=AgentConfig)
        ref = ExecutionRef(
            session_id=row.session_id,
            task_id=row.task_id,
            execution_id=row.agent_execution_id,
            agent=config.name,
        )
        return Reader(
            ref,
            decode_state(row.protocol_state),
            row.last_event_seq,
            handlers=self._handlers,
            next_seq=lambda: self._store.next_seq(row.session_id),
            load_message=self._store.message,
            permissions="ask",
        )

    def _ended(self, reader: Reader, row: ExecutorRunning) -> tuple[Reader, Batch]:
        """Close the execution: turn, tool calls, permissions; then the session waits and the task is in review."""
        reader.agent_ended(stderr=_stderr(self._directory(row)), why=self._why(reader, row))
        session_id, task_id = row.session_id, row.task_id

        def wait(tx: Tx, applied: Applied) -> None:
            moved = move_session(tx, session_id, SessionEvent.AGENT_LOST)
            applied.events.extend(moved)
            if moved:
                applied.events.extend(move_task(tx, task_id, TaskEvent.SESSION_WAITING, session_id=session_id))

        reader.batch.add(wait)
        return reader, reader.take()

    def _why(self, reader: Reader, row: ExecutorRunning) -> str:
        """Return why an execution is over: an agent that could have lived on may have ended by itself."""
        runtime = self._runtimes.get(row.runtime)
        if runtime is None or not runtime.lasting:
            return WHY
        return BY_ITSELF if reader.state.exited is not None else LOST

    async def _commit(self, parts: Sequence[tuple[Reader, Batch]]) -> None:
        def job(tx: Tx) -> list[tuple[Reader, Batch, Applied]]:
            return [
                (
                    reader,
                    batch,
                    batch.apply(tx, session_id=reader.ref.session_id, execution_id=reader.ref.execution_id),
                )
                for reader, batch in parts
            ]

        failpoint("reconcile.before_commit")
        committed = await self._store.write(job)
        failpoint("reconcile.after_commit")
        for reader, batch, applied in committed:
            self._publish(applied.events)
            if reader.state.history_enabled:
                self._record(reader.ref.session_id, applied.closed)
            for done in batch.after:
                done()


def _stderr(directory: str) -> str:
    """Return the end of what the agent wrote to stderr, as far as it is there."""
    try:
        with open(os.path.join(directory, "stderr.log"), "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - STDERR_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
