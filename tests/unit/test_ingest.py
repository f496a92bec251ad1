"""From a journal to the database: when that commits, what follows a commit, who is told when it cannot go on."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from kandev.domain.constants import Timing
from kandev.domain.models import Event
from kandev.errors import (
    AgentctlError,
    AgentDied,
    AgentSilent,
    ExecutionNotFoundError,
    RequestFailed,
    StorageFull,
    StorageLocked,
)
from kandev.lifecycle import ingest as module
from kandev.lifecycle.batch import Superseded
from kandev.lifecycle.effects import Effect, ExecutionRef
from kandev.lifecycle.ingest import Ingest
from kandev.lifecycle.protocol_state import ProtocolState
from kandev.lifecycle.reader import Reader

REF = ExecutionRef(session_id="s", task_id="t", execution_id="e", agent="fake")
NEVER_S = 3600.0
"""So far apart that only what is urgent is committed within a test."""


class Pipe:
    """An agentctl: the journal's pieces as the test says them; lines that it was sent; what was acknowledged."""

    def __init__(self, trace: list[Any]) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.read = 0
        self.refuse = False
        self._trace = trace

    async def stream(self, offset: int, /) -> AsyncGenerator[bytes, None]:
        assert offset == 0
        while (piece := await self.pieces.get()) is not None:
            self.read += 1
            yield piece

    async def send(self, n: int, line: bytes, /) -> None:
        if self.refuse:
            raise AgentctlError("agentctl is gone")
        self._trace.append(("sent", n, line))

    async def ack(self, offset: int, /) -> None:
        self._trace.append(("acknowledged", offset))


class Ledger:
    """A database that writes nothing down but the statements. `troubles` are raised first, one a commit."""

    def __init__(self, trace: list[Any]) -> None:
        self.commits: list[list[tuple[str, dict[str, Any]]]] = []
        self.times: list[float] = []
        self.troubles: list[Exception] = []
        self.door = asyncio.Event()
        self.door.set()
        self.begun = 0
        self._trace = trace

    async def write(self, job: Callable[[Any], Any], /) -> Any:
        self.begun += 1
        self.times.append(asyncio.get_running_loop().time())
        await self.door.wait()
        if self.troubles:
            raise self.troubles.pop(0)
        tx = Statements()
        result = job(tx)
        self.commits.append(tx.statements)
        self._trace.append(("committed", len(self.commits)))
        return result


class Statements:
    """A transaction whose row is always ours."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, dict[str, Any]]] = []

    def one(self, name: str, /, **args: Any) -> dict[str, Any] | None:
        self.statements.append((name, args))
        return {} if name == "executor_advance" else None

    def run(self, name: str, /, **args: Any) -> int:
        self.statements.append((name, args))
        return 1

    def all(self, name: str, /, **args: Any) -> list[Any]:
        self.statements.append((name, args))
        return []

    def many(self, name: str, rows: Any, /) -> None:
        self.statements += [(name, dict(row)) for row in rows]


class Handlers:
    """Nothing follows from an effect but a line in the trace."""

    def __init__(self, trace: list[Any]) -> None:
        self._trace = trace

    def notices(self, _ref: ExecutionRef, _effect: Effect, /) -> list[Any]:
        return []

    def in_commit(self, _tx: Any, _ref: ExecutionRef, effect: Effect, /) -> list[Event]:
        return [Event(action=type(effect).__name__, payload={})]

    def committed(self, _ref: ExecutionRef, effect: Effect, /) -> None:
        self._trace.append(("handled", type(effect).__name__))


class Bench:
    """An ingest between a pipe and a ledger, its loops running. `trace` is what happened, in order."""

    def __init__(self, timing: Timing) -> None:
        self.trace: list[Any] = []
        self.pipe = Pipe(self.trace)
        self.ledger = Ledger(self.trace)
        self.reader = Reader(
            REF,
            ProtocolState(),
            0,
            handlers=Handlers(self.trace),
            next_seq=iter(range(1, 1_000_000)).__next__,
            load_message=lambda _id: None,
            permissions="ask",
        )
        self.ingest = Ingest(
            self.reader,
            self.ledger,  # type: ignore[arg-type]  # of a database only `write` is used
            timing=timing,
            line_bytes=1 << 20,
            publish=lambda events: self.trace.extend(("published", event.action) for event in events),
            record=lambda _messages: None,
        )
        self.reader.on_answer = self.ingest.answered
        self.tasks = [
            asyncio.create_task(coroutine)
            for coroutine in (
                self.ingest.commit_loop(),
                self.ingest.send_loop(self.pipe),
                self.ingest.ack_loop(self.pipe),
                self.ingest.read(self.pipe),
            )
        ]

    @property
    def committing(self) -> asyncio.Task[None]:
        return self.tasks[0]

    @property
    def reading(self) -> asyncio.Task[None]:
        return self.tasks[3]

    def say(self, *lines: bytes) -> None:
        """The agent says these, in one piece."""
        self.pipe.pieces.put_nowait(b"".join(line + b"\n" for line in lines))

    async def until(self, true: Callable[[], bool]) -> None:
        """Waits for what the loops do; they wait for nothing but each other."""
        async with asyncio.timeout(10):
            while not true():
                await asyncio.sleep(0)
                self._raise_what_ended_a_loop()

    def _raise_what_ended_a_loop(self) -> None:
        for task in self.tasks:
            if task.done():
                task.result()

    async def rest(self) -> None:
        """Lets the loops do all that they can do without waiting for time."""
        for _ in range(50):
            await asyncio.sleep(0)

    def text(self) -> str:
        """What the commits hold of the agent's words."""
        parts = [args for commit in self.ledger.commits for name, args in commit if name == "message_part_insert"]
        return "".join(args["content"] for args in parts)

    def positions(self) -> list[int]:
        """How far each commit came."""
        commits = self.ledger.commits
        return [args["last_event_seq"] for commit in commits for name, args in commit if name == "executor_advance"]


@pytest.fixture
async def open_bench() -> AsyncIterator[Callable[..., Bench]]:
    """Opens benches; their loops end with the test."""
    opened: list[Bench] = []

    def bench(**timing: float) -> Bench:
        opened.append(Bench(Timing(**timing)))
        return opened[-1]

    yield bench
    for one in opened:
        for task in one.tasks:
            task.cancel()
        await asyncio.gather(*one.tasks, return_exceptions=True)


@pytest.fixture
async def bench(open_bench: Callable[..., Bench]) -> Bench:
    """One whose commits may follow each other at once."""
    return open_bench(commit_gap_s=0.0)


def chunk(text: str) -> bytes:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return msgspec.json.encode({"method": "session/update", "params": {"sessionId": "a", "update": update}})


def answer(request_id: int, **body: Any) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, **(body or {"result": {}})})


def line(request_id: int) -> bytes:
    return b'{"id":%d}\n' % request_id


# ---- when it commits


async def test_what_comes_when_nothing_is_under_way_is_committed_at_once(open_bench: Callable[..., Bench]) -> None:
    """The first word waits for nobody, however far apart commits are."""
    bench = open_bench(commit_gap_s=NEVER_S)
    bench.ingest._last_commit = -NEVER_S
    bench.say(chunk("Hi"))
    await bench.until(lambda: bench.text() == "Hi")


async def test_what_arrives_during_a_commit_is_the_next_one(bench: Bench) -> None:
    """One commit, not one for each line."""
    bench.ledger.door.clear()
    bench.say(chunk("a"))
    await bench.until(lambda: bench.ledger.begun == 1)
    for text in "bcd":
        bench.say(chunk(text))
    await bench.until(lambda: bench.pipe.read == 4)
    bench.ledger.door.set()
    await bench.until(lambda: bench.text() == "abcd")
    assert len(bench.ledger.commits) == 2
    assert bench.positions() == [len(chunk("a")) + 1, 4 * (len(chunk("a")) + 1)]


async def test_commits_of_a_stream_are_apart(open_bench: Callable[..., Bench]) -> None:
    """A streaming session commits no more often than the gap says, and loses nothing by that."""
    gap = 0.02
    bench = open_bench(commit_gap_s=gap)
    for text in "abcdef":
        bench.say(chunk(text))
        await bench.until(lambda text=text: bench.text().endswith(text))  # type: ignore[misc]  # a default binds it
    times = bench.ledger.times
    assert all(later - earlier >= gap for earlier, later in pairwise(times))
    assert bench.text() == "abcdef"


async def started(bench: Bench) -> None:
    """Has a first commit behind it, so that the next one has to wait for the gap."""
    bench.ingest._last_commit = -NEVER_S
    bench.say(chunk("Hi"))
    await bench.until(lambda: len(bench.ledger.commits) == 1)


async def test_text_waits_for_the_gap(open_bench: Callable[..., Bench]) -> None:
    """The control of the next tests: what is not urgent is not committed now."""
    bench = open_bench(commit_gap_s=NEVER_S)
    await started(bench)
    bench.say(chunk(" there"))
    await bench.until(lambda: bench.pipe.read == 2)
    await bench.rest()
    assert len(bench.ledger.commits) == 1


INFO = msgspec.json.encode(
    {"method": "session/update", "params": {"sessionId": "a", "update": {"sessionUpdate": "session_info_update"}}}
)
URGENT = {
    "answer": [answer(1)],
    "answer and info": [answer(1), INFO],
    "unknown request": [msgspec.json.encode({"id": 7, "method": "fs/read_text_file"})],
    "permission": [msgspec.json.encode({"id": 7, "method": "session/request_permission", "params": {}})],
    "exit": [b'\x1e{"ev":"exit","code":0,"signal":null}'],
}


@pytest.mark.parametrize("lines", URGENT.values(), ids=list(URGENT))
@pytest.mark.parametrize("waiting", [False, True])
async def test_what_changes_a_state_does_not_wait(
    open_bench: Callable[..., Bench],
    lines: list[bytes],
    waiting: bool,  # noqa: FBT001 - a row of the table
) -> None:
    """Nor does the text before it; also when the loop waits for the gap already."""
    bench = open_bench(commit_gap_s=NEVER_S)
    bench.reader.begin_request("session/prompt", "turn")
    await started(bench)
    if waiting:
        bench.say(chunk(" there"))
        await bench.until(lambda: bench.pipe.read == 2)
        await bench.rest()
    bench.say(chunk("."), *lines)
    await bench.until(lambda: len(bench.ledger.commits) == 2)
    assert bench.positions()[-1] == bench.reader.position


async def test_a_session_info_alone_can_wait(open_bench: Callable[..., Bench]) -> None:
    """Some agents send one with each word."""
    bench = open_bench(commit_gap_s=NEVER_S)
    await started(bench)
    bench.say(INFO)
    await bench.until(lambda: bench.pipe.read == 2)
    await bench.rest()
    assert len(bench.ledger.commits) == 1


async def test_a_flush_does_not_wait_for_the_gap(open_bench: Callable[..., Bench]) -> None:
    """It returns once its changes are committed, with all that was said before."""
    bench = open_bench(commit_gap_s=NEVER_S)
    await started(bench)
    bench.say(chunk(" there"))
    await bench.until(lambda: bench.pipe.read == 2)
    ran: list[str] = []
    await asyncio.wait_for(bench.ingest.flush(lambda _tx, _applied: ran.append("mine")), 10)
    assert (ran, len(bench.ledger.commits)) == (["mine"], 2)
    assert bench.text() == "Hi there"


# ---- back-pressure and trouble with the storage


async def test_wire_6_a_slow_disk_stops_the_reading(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds what is being committed and one batch; the rest stays with agentctl."""
    monkeypatch.setattr(module, "PENDING_BYTES", 1000)
    bench.ledger.door.clear()
    piece = chunk("x" * 400)
    for _ in range(20):
        bench.say(piece)
    await bench.until(lambda: bench.ledger.begun == 1)
    await bench.rest()
    held = bench.pipe.read
    assert held < 8
    await bench.rest()
    assert bench.pipe.read == held
    bench.ledger.door.set()
    await bench.until(lambda: bench.text() == "x" * 8000)
    assert bench.positions()[-1] == 20 * (len(piece) + 1)


@pytest.mark.parametrize("trouble", [StorageFull("The disk is full."), StorageLocked("The database is locked.")])
async def test_hist_12_a_full_disk_is_tried_again_and_nothing_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, trouble: StorageFull | StorageLocked
) -> None:
    """The trouble is shown while it lasts; nothing is published, sent or acknowledged before it is over."""
    monkeypatch.setattr(module, "STORAGE_RETRY_S", 0.0)
    bench.ledger.troubles = [trouble] * 3
    shown: list[str] = []
    sending = asyncio.create_task(bench.ingest.transmit(b"line\n"))
    bench.say(chunk("Hi"))

    def over() -> bool:
        shown.append(bench.ingest.storage_trouble)
        assert bench.trace == [] or bench.trace[0] == ("committed", 1)
        return bench.text() == "Hi" and sending.done()

    await bench.until(over)
    assert trouble.message in shown
    assert bench.ingest.storage_trouble == ""
    assert bench.ledger.begun >= 4


async def test_race_5_a_replaced_execution_ends_its_ingest(bench: Bench) -> None:
    """Whoever waits for that commit, or comes later, gets the same error; nothing hangs."""
    bench.ledger.troubles = [Superseded("Another execution owns the session.")]
    with pytest.raises(Superseded):
        await asyncio.wait_for(bench.ingest.flush(), 10)
    with pytest.raises(Superseded):
        await asyncio.wait_for(bench.committing, 10)
    with pytest.raises(Superseded):
        await asyncio.wait_for(bench.ingest.flush(), 10)
    assert bench.trace == []


async def test_a_reader_does_not_wait_for_room_that_nobody_makes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a commit that failed for good the journal can still be read to its end."""
    monkeypatch.setattr(module, "PENDING_BYTES", 10)
    bench.ledger.door.clear()
    bench.ledger.troubles = [Superseded("Another execution owns the session.")]
    for _ in range(5):
        bench.say(chunk("Hello"))
    bench.pipe.pieces.put_nowait(None)
    await bench.until(lambda: bench.ledger.begun == 1)
    await bench.rest()
    assert not bench.reading.done()
    bench.ledger.door.set()
    await asyncio.wait_for(bench.reading, 10)
    assert bench.pipe.read == 5


@pytest.mark.parametrize("steps", range(8))
async def test_no_loop_outlives_its_end(open_bench: Callable[..., Bench], steps: int) -> None:
    """Each loop ends when it is cancelled, also as what it waited for comes: who ends the agent waits for that."""
    bench = open_bench(commit_gap_s=NEVER_S)
    bench.say(chunk("first"))
    await bench.until(lambda: bool(bench.ledger.commits))
    bench.say(chunk("second"))
    await bench.until(lambda: bench.pipe.read == 2)
    flushing = asyncio.create_task(bench.ingest.flush())
    bench.ingest._behind.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    for task in (*bench.tasks, flushing):
        task.cancel()
    _, left = await asyncio.wait(bench.tasks, timeout=2)
    assert not left


# ---- what follows a commit


async def test_publish_answer_send_acknowledge_come_in_order_after_the_commit(bench: Bench) -> None:
    """Nobody hears of what is not stored; agentctl may forget only what is."""
    request = asyncio.create_task(bench.ingest.request("session/new", line))
    await bench.until(lambda: ("sent", 1, line(1)) in bench.trace)
    bench.trace.clear()
    bench.ledger.door.clear()
    said = bench.reader.position
    bench.say(answer(1, result={"sessionId": "a"}), msgspec.json.encode({"id": 7, "method": "fs/read_text_file"}))
    await bench.until(lambda: bench.ledger.begun == 2)
    await bench.rest()
    assert not request.done()
    bench.trace.clear()
    bench.ledger.door.set()
    assert (await asyncio.wait_for(request, 10)).result == {"sessionId": "a"}
    await bench.until(lambda: any(entry[0] == "acknowledged" for entry in bench.trace))
    names = [entry[0] for entry in bench.trace]
    assert names == ["committed", "published", "handled", "sent", "acknowledged"]
    assert bench.trace[1:3] == [("published", "AcpSessionCreated"), ("handled", "AcpSessionCreated")]
    assert bench.trace[-1] == ("acknowledged", bench.reader.position)
    assert bench.reader.position > said


async def test_lines_are_sent_in_the_order_of_their_numbers(bench: Bench) -> None:
    """Those that wait for one commit go out one after the other, behind it."""
    bench.ledger.door.clear()
    sending = [asyncio.create_task(bench.ingest.transmit(b"%d\n" % n)) for n in range(5)]
    await bench.rest()
    assert bench.trace == []
    bench.ledger.door.set()
    await asyncio.wait_for(asyncio.gather(*sending), 10)
    assert [entry[1:] for entry in bench.trace if entry[0] == "sent"] == [(n + 1, b"%d\n" % n) for n in range(5)]
    stored = [args["n"] for commit in bench.ledger.commits for name, args in commit if name == "outbox_insert"]
    assert stored == [1, 2, 3, 4, 5]


async def test_a_line_that_cannot_be_sent_fails_its_sender_only(bench: Bench) -> None:
    """The prompt provably reached nobody; the next line is tried all the same."""
    bench.pipe.refuse = True
    with pytest.raises(ExecutionNotFoundError):
        await asyncio.wait_for(bench.ingest.transmit(b"one\n"), 10)
    bench.pipe.refuse = False
    await asyncio.wait_for(bench.ingest.transmit(b"two\n"), 10)
    assert ("sent", 2, b"two\n") in bench.trace


async def test_a_sender_that_gave_up_harms_nobody(bench: Bench) -> None:
    """Its line goes out, because it is stored."""
    bench.ledger.door.clear()
    sending = asyncio.create_task(bench.ingest.transmit(b"one\n"))
    await bench.rest()
    sending.cancel()
    bench.ledger.door.set()
    await bench.until(lambda: ("sent", 1, b"one\n") in bench.trace)
    await asyncio.wait_for(bench.ingest.transmit(b"two\n"), 10)


# ---- requests


async def test_an_answer_is_given_to_its_request(bench: Bench) -> None:
    """Two at once, answered the other way round."""
    first = asyncio.create_task(bench.ingest.request("session/list", line))
    second = asyncio.create_task(bench.ingest.request("session/set_mode", line, mode="plan"))
    await bench.until(lambda: sum(entry[0] == "sent" for entry in bench.trace) == 2)
    bench.say(answer(2, result="second"), answer(1, result="first"))
    assert (await asyncio.wait_for(first, 10)).result == "first"
    assert (await asyncio.wait_for(second, 10)).result == "second"


async def test_tok_9_an_error_answer_is_typed_and_hides_the_token(bench: Bench) -> None:
    """The code for decisions, the words for people, no secret in them."""
    bench.reader.state.agent_session_id = "secret-token"
    request = asyncio.create_task(bench.ingest.request("session/load", line))
    await bench.until(lambda: ("sent", 1, line(1)) in bench.trace)
    bench.say(answer(1, error={"code": -32002, "message": "no session secret-token"}))
    with pytest.raises(RequestFailed, match="session/load: no session") as failed:
        await asyncio.wait_for(request, 10)
    assert (failed.value.method, failed.value.rpc_code) == ("session/load", -32002)
    assert "secret-token" not in str(failed.value)


async def test_wire_10_any_message_resets_the_deadline(bench: Bench) -> None:
    """A load that replays for longer than the deadline is not given up."""
    deadline = 0.25
    request = asyncio.create_task(bench.ingest.request("session/load", line, inactivity_s=deadline))
    await bench.until(lambda: ("sent", 1, line(1)) in bench.trace)
    loop = asyncio.get_running_loop()
    end = loop.time() + 3 * deadline
    while loop.time() < end:
        bench.say(b"noise is a message too")
        await asyncio.sleep(deadline / 25)
    assert not request.done()
    bench.say(answer(1))
    await asyncio.wait_for(request, 10)


async def test_wire_10_silence_ends_a_request(bench: Bench) -> None:
    """With the name of what waited."""
    with pytest.raises(AgentSilent, match="initialize"):
        await asyncio.wait_for(bench.ingest.request("initialize", line, inactivity_s=0.05), 10)


async def test_wire_10_without_a_deadline_silence_ends_nothing(bench: Bench) -> None:
    """A prompt may take as long as it takes."""
    answered = await asyncio.wait_for(bench.ingest.post("session/prompt", line, turn_id="turn"), 10)
    bench.ingest.last_heard -= NEVER_S
    await bench.rest()
    assert not answered.done()


# ---- the end


async def test_the_end_fails_whoever_waits(bench: Bench) -> None:
    """An answer fails with how the agent died, a line that was not sent as not delivered; nothing hangs."""
    answered = await asyncio.wait_for(bench.ingest.post("session/prompt", line), 10)
    bench.ledger.door.clear()
    sending = asyncio.create_task(bench.ingest.transmit(b"late\n"))
    await bench.until(lambda: bench.ledger.begun == 2)
    flushing = asyncio.create_task(bench.ingest.flush())
    await bench.rest()
    bench.ingest.end(AgentDied("The agent ended with exit code 3.", exit_code=3))
    with pytest.raises(AgentDied, match="exit code 3"):
        await asyncio.wait_for(answered, 10)
    with pytest.raises(ExecutionNotFoundError):
        await asyncio.wait_for(sending, 10)
    with pytest.raises(AgentDied):
        await asyncio.wait_for(flushing, 10)


async def test_after_the_end_nothing_is_taken(bench: Bench) -> None:
    """Whoever comes later learns that it provably reached nobody."""
    bench.ingest.end(AgentDied("The agent ended."))
    for refused in (
        bench.ingest.request("initialize", line),
        bench.ingest.post("session/prompt", line),
        bench.ingest.transmit(b"x\n"),
        bench.ingest.flush(),
    ):
        with pytest.raises(ExecutionNotFoundError):
            await asyncio.wait_for(refused, 10)
    assert not bench.ingest.open
    assert bench.reader.state.in_flight == {}


async def test_a_journal_that_nobody_writes_is_absorbed_as_it_is(bench: Bench) -> None:
    """The pieces of a file, in order, with the same commits."""
    stream = b"".join(chunk(text) + b"\n" for text in "hello")
    await bench.ingest.absorb_all([stream[:7], stream[7:100], stream[100:]])
    await bench.until(lambda: bench.text() == "hello")
    assert bench.positions()[-1] == len(stream)
