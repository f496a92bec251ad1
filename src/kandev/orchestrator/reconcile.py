"""What a killed backend left behind: its processes are ended, its journals read in, its sessions settled (STATE-1).

It runs before the port opens, and again for one session when a resume finds a row that nobody settled (RACE-10).
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from kandev.agentctl.failpoints import failpoint
from kandev.agentctl.segments import journal_bounds, journal_in, read_journal
from kandev.agents.base import AgentConfig
from kandev.domain.models import Event, ExecutorRunning, Message, SessionState
from kandev.domain.states import SessionEvent, TaskEvent
from kandev.lifecycle.agent_logs import AgentLogs
from kandev.lifecycle.batch import Applied, Batch
from kandev.lifecycle.effects import EventHandlers, ExecutionRef
from kandev.lifecycle.line_splitter import LineSplitter
from kandev.lifecycle.protocol_state import decode_state
from kandev.lifecycle.reader import Reader
from kandev.orchestrator.transitions import move_session, move_task
from kandev.runtimes.leftovers import kill_leftovers
from kandev.store.database import Tx
from kandev.store.store import Store

log = structlog.get_logger(__name__)

READ_PARALLEL = 8
COMMIT_BYTES = 2 << 20
SETTLE_TOGETHER = 500
STDERR_BYTES = 4096
WHY = "backend_killed"


class Reconciler:
    """Settles executions of which this process has no memory. `record` takes closed messages for the history."""

    def __init__(
        self,
        store: Store,
        handlers: EventHandlers,
        run_directory: Path,
        *,
        publish: Callable[[Sequence[Event]], None],
        record: Callable[[str, Sequence[Message]], None],
        line_bytes: int,
        agent_logs: AgentLogs,
    ) -> None:
        self._store = store
        self._handlers = handlers
        self._run = run_directory
        self._publish = publish
        self._record = record
        self._line_bytes = line_bytes
        self._agent_logs = agent_logs

    async def run(self) -> None:
        """Settle everything that older boots left. Events are published to nobody: the port is closed."""
        rows = self._store.executors_not_ended()
        await self._kill([*rows], strays=await self._strays(rows))
        with_journal = [row for row in rows if self._has_journal(row)]
        to_read = {row.session_id for row in with_journal}
        rest = [row for row in rows if row.session_id not in to_read]
        slots = asyncio.Semaphore(READ_PARALLEL)
        # Together, because reading keeps the loop busy, and settling the writer.
        await asyncio.gather(self._settle_together(rest), *(self._read_one(row, slots) for row in with_journal))
        await self._settle_stuck()
        log.info("reconcile.done", executions=len(rows), journals=len(with_journal))

    async def settle(self, row: ExecutorRunning) -> None:
        """Prove the processes of one older execution dead, then read what its journal still has.

        A journal that cannot be applied is left where it is, and the session is settled without it: nothing is stuck.
        """
        await self._kill([row], strays=[])
        try:
            await self._read_one(row, asyncio.Semaphore(1))
        except Exception:
            log.exception("reconcile.journal_not_applied", session_id=row.session_id)
            current = self._store.executor(row.session_id)
            if current is not None:
                await self._commit([self._ended(self._reader(current), current)])

    async def _kill(self, rows: Sequence[ExecutorRunning], *, strays: Sequence[str]) -> None:
        directories = [self._directory(row) for row in rows if row.instance_id]
        there = [path for path in (*directories, *strays) if os.path.isdir(path)]
        if there:
            failpoint("reconcile.before_kill")
            killed = await kill_leftovers(there)
            failpoint("reconcile.after_kill")
            if killed:
                log.info("reconcile.killed", instances=[one.instance_id for one in killed])
        for path in strays:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    async def _strays(self, rows: Sequence[ExecutorRunning]) -> list[str]:
        """Return instance directories that no row names: an instance was made, its id not stored (CRASH-3)."""
        named = {row.instance_id for row in rows}
        with contextlib.suppress(FileNotFoundError):
            return [entry.path for entry in os.scandir(self._run) if entry.is_dir() and entry.name not in named]
        return []

    def _directory(self, row: ExecutorRunning) -> str:
        return os.path.join(self._run, row.instance_id)

    def _has_journal(self, row: ExecutorRunning) -> bool:
        if not row.instance_id:
            return False
        return journal_bounds(journal_in(self._directory(row))).end > row.last_event_seq

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
                if row.instance_id and os.path.isdir(self._directory(row)):
                    await self._discard(row)

    async def _discard(self, row: ExecutorRunning) -> None:
        self._agent_logs.keep(row.session_id, self._directory(row))
        failpoint("reconcile.before_discard")
        await asyncio.to_thread(shutil.rmtree, self._directory(row), ignore_errors=True)
        failpoint("reconcile.after_discard")

    async def _settle_stuck(self) -> None:
        """Move sessions that are STARTING or RUNNING although their row says that nothing runs."""
        for state in (SessionState.STARTING, SessionState.RUNNING):
            for raw in self._store.database.all("sessions_in_state", state=state):
                row = self._store.executor(raw["id"])
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
        reader.agent_ended(stderr=_stderr(self._directory(row)), why=WHY)
        session_id, task_id = row.session_id, row.task_id

        def wait(tx: Tx, applied: Applied) -> None:
            moved = move_session(tx, session_id, SessionEvent.AGENT_LOST)
            applied.events.extend(moved)
            if moved:
                applied.events.extend(move_task(tx, task_id, TaskEvent.SESSION_WAITING, session_id=session_id))

        reader.batch.add(wait)
        return reader, reader.take()

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
