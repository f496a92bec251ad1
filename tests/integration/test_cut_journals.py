"""Wherever a backend is killed, what the agent said is stored once: a journal that is cut gives the same session.

Design, section 4: the reader's state is stored with the position, in one transaction with the content. Here journals
are read with kills at every line, at any byte, before, inside and after any commit, and compared with one reading.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, repeat
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kandev.agentctl import records
from kandev.domain.constants import LINE_BYTES
from kandev.domain.models import Event, Message, PermissionState, now
from kandev.lifecycle.batch import Applied
from kandev.lifecycle.line_splitter import LineSplitter
from kandev.lifecycle.permissions import resolved_events, rpc_key
from kandev.lifecycle.protocol_state import Phase
from kandev.lifecycle.reader import Reader
from kandev.protocols import acp
from kandev.store.database import Tx
from kandev.store.sqlite import SqliteDatabase
from recorded import NAMES, Ours, Step, conversation, recorded
from stored import TOKEN, StoredSession, answer, ask, chunk, line, refusal, stored, update

ON = "on"  # read on
COMMIT = "commit"
KILL = "kill"  # inside of the transaction: nothing of it is stored
LOSE = "lose"  # after the commit, before anything was published

Cuts = Iterator[tuple[int, str]]
"""Read so many bytes, then do this; again and again."""

UNCUT: Cuts = repeat((1 << 30, ON))
EXAMPLES = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    """One database for the module; each reading has a session of its own in it."""
    with stored(tmp_path_factory.mktemp("cuts")) as opened:
        yield opened


class Killed(Exception):
    """Raised at the end of a transaction: all of it was done, and none of it is committed."""


class Reading:
    """One backend after the other reads one journal. Our lines are stored before they are sent, so once."""

    def __init__(self, session: StoredSession, steps: list[Step]) -> None:
        self.session = session
        self.steps = steps
        self.journal = b"".join(step for step in steps if isinstance(step, bytes))
        self.kills = 0
        self._reader = session.reader()
        self._splitter = LineSplitter(LINE_BYTES)
        self._fed = 0
        self._requests: list[int] = []

    async def run(self, cuts: Cuts) -> None:
        """Reads everything, cut as `cuts` say, and ends the execution as its runner does."""
        end = 0
        for step in self.steps:
            if isinstance(step, Ours):
                await self._write(step)
                continue
            end += len(step)
            while self._fed < end:
                await self._read_some(end, *next(cuts))
        self._reader.agent_ended(stderr="it was an agent")
        await self.session.commit(self._reader)

    async def _read_some(self, end: int, size: int, action: str) -> None:
        piece = self.journal[self._fed : min(self._fed + size, end)]
        self._splitter.feed(piece, self._reader)
        self._fed += len(piece)
        match action:
            case "commit":
                await self.session.commit(self._reader)
            case "kill":
                await self._kill_in_transaction()
            case "lose":
                batch, ref = self._reader.take(), self._reader.ref
                await self.session.database.write(
                    lambda tx: batch.apply(tx, session_id=ref.session_id, execution_id=ref.execution_id)
                )
                self._restart()

    async def _kill_in_transaction(self) -> None:
        batch, ref = self._reader.take(), self._reader.ref

        def job(tx: Tx) -> None:
            batch.apply(tx, session_id=ref.session_id, execution_id=ref.execution_id)
            raise Killed

        with pytest.raises(Killed):
            await self.session.database.write(job)
        self._restart()

    def _restart(self) -> None:
        """A new backend: it knows what is stored, and nothing else."""
        self.kills += 1
        self._reader = self.session.reader()
        self._splitter = LineSplitter(LINE_BYTES)
        self._fed = self._reader.position

    async def _write(self, ours: Ours) -> None:
        session, reader = self.session, self._reader
        await session.commit(reader)  # whatever we do follows from something that is stored
        if ours.method == "session/prompt":
            await session.prompt(reader, "What now?")
        elif ours.method in {"session/load", "session/resume"}:
            state = reader.state
            state.phase, state.agent_session_id = Phase.REPLAYING, TOKEN
            await session.request(reader, ours.method, lambda n: acp.load_session(n, TOKEN, "/work"))
        elif ours.method == "session/cancel":
            reader.queue_line(acp.cancel(TOKEN))
            await session.commit(reader)
        elif ours.method:
            await session.request(reader, ours.method, lambda n: acp.close_session(n, TOKEN))
        else:
            await self._reply(reader, ours)

    async def _reply(self, reader: Reader, ours: Ours) -> None:
        """A person answers, as PermissionService stores it."""
        request_id = reader.state.permissions.pop(rpc_key(ours.reply_to))
        reader.queue_line(acp.permission_selected(ours.reply_to, ours.option))
        task_id = self.session.ref.task_id

        def change(tx: Tx, applied: Applied) -> None:
            answered = PermissionState.ANSWERED
            row = tx.one("permission_resolve", id=request_id, state=answered, answer=ours.option, now=now())
            assert row is not None
            applied.events.extend(resolved_events(tx, row, task_id))

        reader.batch.add(change)
        await self.session.commit(reader)


def told(session: StoredSession) -> dict[str, Any]:
    """Everything that is stored of a session, with its random ids counted, without times."""
    row = session.row
    tables = ("turns", "permission_requests", "outbox")
    connection = session.database._connection
    found: dict[str, Any] = {
        table: [
            dict(raw)
            for raw in connection.execute(
                f"SELECT * FROM {table} WHERE session_id = ? ORDER BY rowid"
                if table != "outbox"
                else f"SELECT n, CAST(line AS TEXT) AS line FROM {table} WHERE session_id = ? ORDER BY n",
                (session.ref.session_id,),
            )
        ]
        for table in tables
    }
    found["messages"] = session.messages()
    found["session"] = [session.state, session.task_state, session.agent_state()]
    found["parts"] = connection.execute(
        "SELECT count(*) FROM message_parts JOIN messages ON messages.id = message_id WHERE session_id = ?",
        (session.ref.session_id,),
    ).fetchone()[0]
    found["token"] = [row.resume_token, row.metadata, row.last_event_seq, row.protocol_state]
    names: dict[str, str] = {}
    text = re.sub(
        r"\b[0-9a-f]{20}\b",
        lambda match: names.setdefault(match[0], f"id-{len(names)}"),
        msgspec.json.encode(found).decode(),
    )
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "a time", text)
    plain: dict[str, Any] = msgspec.json.decode(text)
    return plain


async def read(database: SqliteDatabase, steps: list[Step], cuts: Cuts, policy: str | Sequence[str] = "ask") -> Reading:
    reading = Reading(await StoredSession.create(database, permissions=policy), steps)
    await reading.run(cuts)
    return reading


def once_at(place: int, action: str) -> Cuts:
    """Cuts once, `place` bytes into the journal."""
    yield place, action
    yield from UNCUT


def at_every_line(steps: list[Step], action: str) -> Cuts:
    """Cuts behind every line. A kill without a commit would read the same line for ever."""
    for journal in (step for step in steps if isinstance(step, bytes)):
        for one in journal.splitlines(keepends=True):
            yield len(one), action


def boundaries(steps: list[Step]) -> list[int]:
    """The offset behind each line of the journal."""
    journal = b"".join(step for step in steps if isinstance(step, bytes))
    return [match.end() for match in re.finditer(b"\n", journal)]


@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_journal_cut_at_any_line_gives_the_same_session(database: SqliteDatabase, name: str) -> None:
    """Stored up to there, killed, and read on by another backend: same messages, turns, token and reader's state."""
    steps = recorded(name)
    whole = told((await read(database, steps, UNCUT)).session)
    assert whole["turns"][0]["state"] == "completed"
    for place in boundaries(steps):
        reading = await read(database, steps, once_at(place, LOSE))
        assert told(reading.session) == whole, f"cut at byte {place}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("action", [COMMIT, LOSE])
async def test_a_recorded_journal_cut_at_all_lines_gives_the_same_session(
    database: SqliteDatabase, name: str, action: str
) -> None:
    """A commit behind each line, and a backend for each line."""
    steps = recorded(name)
    whole = told((await read(database, steps, UNCUT)).session)
    reading = await read(database, steps, at_every_line(steps, action))
    assert told(reading.session) == whole
    assert reading.kills == (len(boundaries(steps)) if action == LOSE else 0)


def plans(*actions: str) -> st.SearchStrategy[list[tuple[int, str]]]:
    """How a journal is read: pieces of any size with anything between them, again and again."""
    piece = st.tuples(st.integers(1, 2000), st.sampled_from(actions))
    return st.lists(piece, max_size=20).map(lambda plan: [*plan, (4000, COMMIT)])  # which gets on after each kill


@pytest.mark.parametrize("name", NAMES)
@settings(EXAMPLES, max_examples=10)
@given(plan=plans(ON, COMMIT, KILL, LOSE))
async def test_a_recorded_journal_killed_anywhere_gives_the_same_session(
    database: SqliteDatabase, name: str, plan: list[tuple[int, str]]
) -> None:
    """Any pieces, commits anywhere, kills in the middle of lines, inside of transactions and behind them."""
    steps = recorded(name)
    whole = told((await read(database, steps, UNCUT)).session)
    assert told((await read(database, steps, cycle(plan))).session) == whole


# ---- conversations that no agent has had yet

TEXTS = st.text(st.sampled_from("ab \n\u00e9\U0001f642"), max_size=5)
CALLS = st.sampled_from(["call-1", "call-2"])
STATUSES = st.sampled_from(["pending", "in_progress", "completed", "failed", "daydreaming", None, 7])
KINDS = st.sampled_from(["agent_message_chunk", "agent_thought_chunk", "user_message_chunk"])
NOISE = st.sampled_from(
    [b"123", b"[]", b"", b"\x1b[1mWelcome", b"\xff\xfe", b"\x1eodd", b"{", b'{"id": 99, "result": 1}']
)
BODIES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "tool_call": st.fixed_dictionaries(
        {"toolCallId": CALLS, "status": STATUSES}, optional={"title": TEXTS, "kind": st.just("execute")}
    ),
    "tool_call_update": st.fixed_dictionaries(
        {"toolCallId": CALLS}, optional={"status": STATUSES, "content": st.none(), "title": TEXTS}
    ),
    "plan": st.fixed_dictionaries({"entries": st.lists(st.fixed_dictionaries({"content": TEXTS}), max_size=2)}),
    "usage_update": st.fixed_dictionaries({"used": st.integers(0, 9)}),
    "current_mode_update": st.fixed_dictionaries({"currentModeId": TEXTS}),
    "session_info_update": st.fixed_dictionaries({"title": TEXTS}),
    "agent_message_chunk": st.just({"content": {"type": "image", "mimeType": "image/png"}}),
    "weather_report": st.fixed_dictionaries({"sky": TEXTS}),
}


def updates(kind: str) -> st.SearchStrategy[bytes]:
    return BODIES[kind].map(lambda fields: update(kind, **fields))


UPDATES = st.one_of(st.builds(chunk, TEXTS, KINDS, st.sampled_from([None, "m1", "m2"])), *map(updates, BODIES))
REQUESTS = st.one_of(
    st.builds(ask, st.integers(100, 103), call_id=CALLS),
    st.integers(100, 103).map(lambda n: line({"method": "$/cancel_request", "params": {"requestId": n}})),
    st.integers(200, 203).map(lambda n: line({"id": n, "method": "fs/read_text_file", "params": {}})),
)
LINES = st.lists(st.one_of(UPDATES, UPDATES, REQUESTS, NOISE), max_size=8)
ENDS: dict[str, Callable[[int], bytes]] = {
    "end_turn": lambda n: answer(n, {"stopReason": "end_turn", "usage": {"totalTokens": 5}}),
    "cancelled": lambda n: answer(n, {"stopReason": "cancelled"}),
    "unknown reason": lambda n: answer(n, {"stopReason": "tired"}),
    "no reason": lambda n: answer(n, None),
    "id as text": lambda n: answer(str(n), {"stopReason": "end_turn"}),
    "failed": lambda n: refusal(n, -32603, "Internal error"),
    "login": lambda n: refusal(n, -32000, "Authentication required"),
    "unknown session": lambda n: refusal(n, -32002, "Resource not found"),
}


@st.composite
def conversations(draw: st.DrawFn) -> list[Step]:
    """Opened by new or load; up to three turns with late tails; ended by an exit, in a turn or between turns."""
    opening = draw(st.sampled_from(["session/new", "session/load"]))
    replay = draw(LINES) if opening == "session/load" else []
    said: list[Ours | bytes] = [Ours(method="initialize"), answer(1, {"protocolVersion": 1})]
    said += [Ours(method=opening), *replay, answer(2, {"sessionId": TOKEN}), *draw(LINES)]
    for number in range(draw(st.integers(0, 3))):
        end = draw(st.sampled_from(list(ENDS)))
        said += [Ours(method="session/prompt"), *draw(LINES), ENDS[end](3 + number), *draw(LINES)]
    if draw(st.booleans()):
        said += [Ours(method="session/prompt"), *draw(LINES)]
    died = records.encode(records.Exited(code=draw(st.sampled_from([0, 3])), signal=None))
    return [*conversation(said), died]


POLICIES = st.sampled_from(["ask", "deny", "allow-once", ["execute"]])


@settings(EXAMPLES, max_examples=100)
@given(steps=conversations(), plan=plans(ON, COMMIT, KILL, LOSE), policy=POLICIES)
async def test_any_journal_killed_anywhere_gives_the_same_session(
    database: SqliteDatabase, steps: list[Step], plan: list[tuple[int, str]], policy: str | list[str]
) -> None:
    """Tools, plans, permissions, noise, odd ends and deaths in a turn: what is stored does not tell of the kills."""
    whole = told((await read(database, steps, UNCUT, policy)).session)
    assert told((await read(database, steps, cycle(plan), policy)).session) == whole


def a_long_turn() -> list[Step]:
    """More tool calls than a reader keeps in mind, ended and open ones, with updates for the oldest at the end."""
    calls = [
        update("tool_call", toolCallId=str(n), title=f"Call {n}", status="completed" if n % 3 else "in_progress")
        for n in range(1000)
    ]
    late = [update("tool_call_update", toolCallId=str(n), status="completed") for n in range(0, 1000, 7)]
    said: list[Ours | bytes] = [
        Ours(method="initialize"),
        answer(1, {}),
        Ours(method="session/new"),
        answer(2, {"sessionId": TOKEN}),
    ]
    said += [Ours(method="session/prompt"), *calls, *late, answer(3, {"stopReason": "cancelled"})]
    return conversation(said)


async def test_a_long_turn_is_the_same_wherever_it_is_cut(database: SqliteDatabase) -> None:
    """What a reader forgets of a thousand tool calls it forgets with and without a kill."""
    steps = a_long_turn()
    whole = told((await read(database, steps, UNCUT)).session)
    for size in (997, 5000):
        reading = await read(database, steps, cycle([(size, LOSE), (3 * size, COMMIT), (size, KILL)]))
        assert reading.kills > 5
        assert told(reading.session) == whole


@settings(EXAMPLES, max_examples=60)
@given(steps=conversations(), plan=plans(ON, COMMIT, KILL))
async def test_subscribers_and_the_queue_are_told_everything_once(
    database: SqliteDatabase, steps: list[Step], plan: list[tuple[int, str]]
) -> None:
    """Whatever the batches: the events add up to the stored messages, and each effect comes once, in order."""
    whole = await read(database, steps, UNCUT)
    reading = await read(database, steps, cycle(plan))
    assert heard(reading.session.events) == [m for m in reading.session.messages() if m.author_type != "user"]
    assert [type(one) for one in reading.session.effects] == [type(one) for one in whole.session.effects]


def heard(events: Sequence[Event]) -> list[Message]:
    """What a subscriber has after these events: whole messages as they come, deltas put in at their offsets."""
    known: dict[str, Message] = {}
    for event in events:
        if event.action in {"session.message.added", "session.message.updated"}:
            message = event.payload["message"]
            known[message.id] = message
        elif event.action == "session.message.delta":
            message = known[event.payload["message_id"]]
            assert event.payload["offset"] == len(message.content)
            known[message.id] = msgspec.structs.replace(message, content=message.content + event.payload["text"])
    placed = [message for message in known.values() if message.author_type != "user"]
    return sorted(placed, key=lambda message: message.seq or 0)
