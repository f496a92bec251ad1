"""The pipe from a journal to the database: what the agent said and how far it was read are one transaction.

Three loops for each live agent: one reads, one commits, one sends. A commit happens at once when nothing is under
way; what arrives meanwhile is the next batch. Commits of a streaming session are 16 ms apart, urgent ones are not.
After a commit: publish, then answer, then send, then acknowledge to agentctl. A crash anywhere repeats nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import structlog

from kandev.agentctl.failpoints import failpoint
from kandev.domain.constants import INGEST_YIELD_BYTES, Timing
from kandev.domain.models import Event, Message
from kandev.errors import (
    AgentError,
    AgentSilent,
    ExecutionNotFoundError,
    RequestFailed,
    StorageFull,
    StorageLocked,
)
from kandev.lifecycle.batch import Applied, Change, Superseded
from kandev.lifecycle.line_splitter import LineSplitter
from kandev.lifecycle.reader import Reader
from kandev.protocols import acp
from kandev.store.database import Database

PENDING_BYTES = 4 << 20
ACK_GAP_S = 1.0  # an acknowledgement only lets agentctl delete segments of 16 MiB
ACK_BYTES = 8 << 20  # sooner in a flood, so that agentctl's cap is never the limit
STORAGE_RETRY_S = 1.0

log = structlog.get_logger(__name__)


class Channel(Protocol):
    """The part of an agentctl client that a live ingest uses."""

    def stream(self, offset: int, /) -> AsyncGenerator[bytes, None]:
        """Yield the journal's bytes from a line boundary on."""

    async def send(self, n: int, line: bytes, /) -> None:
        """Write line `n` to the agent's stdin, at most once."""

    async def ack(self, offset: int, /) -> None:
        """Tell that everything before `offset` is stored."""


class Ingest:
    """Reads one execution's journal, and sends to its agent. `publish` and `record` are called after each commit."""

    def __init__(
        self,
        reader: Reader,
        database: Database,
        *,
        timing: Timing,
        line_bytes: int,
        publish: Callable[[Sequence[Event]], None],
        record: Callable[[Sequence[Message]], None],
    ) -> None:
        self.reader = reader
        self.committed = reader.position
        self.storage_trouble = ""
        self._db = database
        self._timing = timing
        self._line_bytes = line_bytes
        self._publish = publish
        self._record = record
        self._dirty = asyncio.Event()
        self._urgent = asyncio.Event()
        self._room = asyncio.Event()
        self._stored = asyncio.Event()
        self._behind = asyncio.Event()
        self._acknowledged = reader.position
        self._waiters: list[asyncio.Future[None]] = []
        self._outgoing: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._written: dict[int, asyncio.Future[None]] = {}
        self._answers: dict[int, asyncio.Future[acp.Response]] = {}
        self._loop = asyncio.get_running_loop()
        self._last_commit = 0.0
        self._failed: Exception | None = None
        self._ended: AgentError | None = None
        self.last_heard = self._loop.time()
        self.heard = asyncio.Event()

    async def read(self, channel: Channel) -> None:
        """Read until the stream ends. Raises AgentctlError when agentctl cannot be reached any more."""
        splitter = LineSplitter(self._line_bytes)
        async with contextlib.aclosing(channel.stream(self.reader.position)) as stream:
            async for data in stream:
                self.last_heard = self._loop.time()
                self.heard.set()
                await self._absorb(data, splitter)

    async def absorb_all(self, chunks: Iterable[bytes]) -> None:
        """Apply a journal that nobody writes any more, and commit as it goes."""
        splitter = LineSplitter(self._line_bytes)
        for data in chunks:
            await self._absorb(data, splitter)

    async def _absorb(self, data: bytes, splitter: LineSplitter) -> None:
        reader = self.reader
        for start in range(0, len(data), INGEST_YIELD_BYTES):
            if start:
                await asyncio.sleep(0)  # other requests are answered during a flood
            splitter.feed(data[start : start + INGEST_YIELD_BYTES], reader)
            self._dirty.set()
            if reader.batch.urgent:
                self._urgent.set()
            while reader.batch.size > PENDING_BYTES and self._failed is None:
                self._room.clear()
                await self._room.wait()

    async def commit_loop(self) -> None:
        """Commit what gathers, for as long as the execution lives."""
        while True:
            await self._dirty.wait()
            gap = self._last_commit + self._timing.commit_gap_s - self._loop.time()
            if gap > 0 and not self.reader.batch.urgent:
                self._urgent.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(gap):
                        await self._urgent.wait()
            self._dirty.clear()
            await self._commit()

    async def _commit(self) -> None:
        batch = self.reader.take()
        waiters, self._waiters = self._waiters, []
        ref = self.reader.ref
        failpoint("ingest.before_commit")
        try:
            applied = await self._store(partial(batch.apply, session_id=ref.session_id, execution_id=ref.execution_id))
        except asyncio.CancelledError:
            self._waiters[:0] = waiters  # for `end`
            raise
        except Exception as error:
            self._failed = error
            for waiter in (*waiters, *self._waiters):
                _fail(waiter, error)
            self._room.set()
            raise
        failpoint("ingest.after_commit")
        self._last_commit = self._loop.time()
        self.committed = batch.position
        self._publish(applied.events)
        self._record(applied.closed)
        failpoint("ingest.after_publish")
        for done in batch.after:
            done()
        for waiter in waiters:
            _succeed(waiter)
        for line in batch.lines:
            self._outgoing.put_nowait(line)
        self._stored.set()
        if self.committed - self._acknowledged > ACK_BYTES:
            self._behind.set()
        self._room.set()

    async def _store(self, job: Callable[..., Applied]) -> Applied:
        """Write, and write again while the disk is full or the database locked: the journal keeps the rest."""
        while True:
            try:
                applied = await self._db.write(job)
            except (StorageFull, StorageLocked) as error:
                if not self.storage_trouble:
                    log.warning("ingest.storage", session_id=self.reader.ref.session_id, error=error.message)
                self.storage_trouble = error.message
                await asyncio.sleep(STORAGE_RETRY_S)
            else:
                self.storage_trouble = ""
                return applied

    async def flush(self, *changes: Change) -> None:
        """Put changes into the running batch and wait until they are committed, at once.

        Raises ExecutionNotFoundError once the agent is gone and everything of it was stored, and what a commit raised
        that will not be tried again.
        """
        self._require_open()
        if self._failed is not None:
            raise self._failed
        self.reader.batch.add(*changes)
        await self._next_commit()

    async def finish(self, error: AgentError) -> None:
        """Commit the last batch of an agent that ended, then fail whoever still waits.

        Nobody can add to it from here on: what came behind the end would be stored of an agent that is gone.
        """
        self._ended = error
        if self._failed is not None:
            raise self._failed
        await self._next_commit()
        self.end(error)

    def _next_commit(self) -> "asyncio.Future[None]":
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        self._hurry()
        return waiter

    @property
    def open(self) -> bool:
        """False once the agent is gone and nothing is committed any more."""
        return self._ended is None

    def _require_open(self) -> None:
        if self._ended is not None:
            raise ExecutionNotFoundError("The agent is not running any more.")

    def _hurry(self) -> None:
        self.reader.batch.urgent = True
        self._dirty.set()
        self._urgent.set()

    async def send_loop(self, channel: Channel) -> None:
        """Send what was committed, in order. A line that cannot be delivered fails its sender only."""
        while True:
            number, line = await self._outgoing.get()
            written = self._written.get(number)  # it stays there meanwhile, for `end`: this loop may be cancelled
            failpoint("ingest.before_send")
            try:
                await channel.send(number, line)
            except AgentError as error:
                log.info("ingest.send_failed", session_id=self.reader.ref.session_id, line=number, error=str(error))
                _fail(written, ExecutionNotFoundError(f"The agent took nothing: {error}"))
            else:
                failpoint("ingest.after_send")
                _succeed(written)
            self._written.pop(number, None)

    async def ack_loop(self, channel: Channel) -> None:
        """Acknowledge what is stored: at once after a silence, then once a second, or every 8 MiB."""
        while True:
            await self._stored.wait()
            self._stored.clear()
            failpoint("ingest.before_ack")
            acknowledged = self.committed
            with contextlib.suppress(AgentError):  # the next acknowledgement says it again
                await channel.ack(acknowledged)
            failpoint("ingest.after_ack")
            self._acknowledged = acknowledged
            self._behind.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ACK_GAP_S):
                    await self._behind.wait()

    def send_again(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Queue lines that an earlier backend stored and did not see written; agentctl takes each number once."""
        for line in lines:
            self._outgoing.put_nowait(line)

    async def leave(self) -> None:
        """Commit what was read. The agent goes on without us, so nobody who waits is failed here."""
        if self._failed is None and self._ended is None:
            await self._next_commit()

    async def transmit(self, line: bytes) -> None:
        """Store a line, then send it; return once agentctl wrote it. Raises ExecutionNotFoundError."""
        self._require_open()
        number = self.reader.queue_line(line)
        if not number:
            raise ExecutionNotFoundError("The agent has ended.")
        written: asyncio.Future[None] = self._loop.create_future()
        self._written[number] = written
        self._hurry()
        await written

    async def request(
        self, method: str, build: Callable[[int], bytes], *, mode: str = "", inactivity_s: float | None = None
    ) -> acp.Response:
        """Send a request and wait for its answer, which is committed by then.

        `mode` is what a session/set_mode sets. `inactivity_s` is a deadline that any message resets (WIRE-10); None:
        none. Raises AgentSilent, RequestFailed, ExecutionNotFoundError, AgentDied.
        """
        answer = await self.post(method, build, mode=mode)
        response = await self._within(answer, method, inactivity_s)
        if response.error is not None:
            text = acp.error_text(response.error, hide=self.reader.state.agent_session_id)
            code = response.error.get("code")
            raise RequestFailed(
                f"{method}: {text}",
                method=method,
                rpc_code=code if isinstance(code, int) else None,
                error=response.error,
            )
        return response

    async def post(
        self, method: str, build: Callable[[int], bytes], *, turn_id: str = "", mode: str = ""
    ) -> asyncio.Future[acp.Response]:
        """Send a request; return the future of its answer once the line is written."""
        self._require_open()
        request_id = self.reader.begin_request(method, turn_id, mode)
        answer: asyncio.Future[acp.Response] = self._loop.create_future()
        answer.add_done_callback(_retrieve)
        self._answers[request_id] = answer
        await self.transmit(build(request_id))
        return answer

    async def _within(
        self, answer: asyncio.Future[acp.Response], method: str, inactivity_s: float | None
    ) -> acp.Response:
        if inactivity_s is None:
            return await answer
        self.last_heard = self._loop.time()
        while True:
            left = self.last_heard + inactivity_s - self._loop.time()
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    return await asyncio.shield(answer)
            except TimeoutError:
                if self._loop.time() >= self.last_heard + inactivity_s:
                    raise AgentSilent(f"The agent said nothing for {inactivity_s:g} s while {method} waited.") from None

    def answered(self, request_id: int, response: acp.Response) -> None:
        """Resolve the request that `response` answers; called after the commit."""
        waiting = self._answers.pop(request_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(response)

    def end(self, error: AgentError) -> None:
        """Fail whoever still waits: the agent is gone."""
        self._ended = error
        for answer in self._answers.values():
            _fail(answer, error)
        for written in self._written.values():
            _fail(written, ExecutionNotFoundError("The agent ended before this was sent."))
        for waiter in self._waiters:
            _fail(waiter, error)
        self._answers.clear()
        self._written.clear()
        self._waiters.clear()


def _succeed(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _fail(future: "asyncio.Future[None] | asyncio.Future[acp.Response] | None", error: Exception) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
        future.exception()  # whoever waits still gets it; nobody waiting is not an error of the loop


def _retrieve(answer: "asyncio.Future[acp.Response]") -> None:
    if not answer.cancelled():
        answer.exception()


__all__ = ["Channel", "Ingest", "Superseded"]
