"""A session in a real store and readers of its journal: what the ingest works on, without an agent or a process.

with stored(tmp_path) as database:
    session = await StoredSession.create(database)
    reader = session.reader()
    reader.feed([chunk("Hello")])
    await session.commit(reader)
    assert (await session.messages())[0].content == "Hello"
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

import kandev.store
from kandev.agents import AgentConfig
from kandev.domain.models import Event, ExecutorRunning, Message, Turn, TurnId, new_id, now
from kandev.domain.states import SessionEvent, TaskEvent
from kandev.lifecycle.batch import Applied
from kandev.lifecycle.effects import Effect, ExecutionRef
from kandev.lifecycle.protocol_state import Phase, decode_state
from kandev.lifecycle.reader import Reader
from kandev.orchestrator.event_handlers import SessionEventHandlers
from kandev.orchestrator.messages import MessageService
from kandev.orchestrator.transitions import move_session, move_task
from kandev.protocols import acp
from kandev.store.database import Tx, load_statements
from kandev.store.rows import to_json
from kandev.store.sqlite import SqliteDatabase
from kandev.store.store import Store

DIRECTORY = Path(kandev.store.__file__).parent
TOKEN = "agent-session-1"


@contextlib.contextmanager
def stored(directory: Path) -> Iterator[SqliteDatabase]:
    """The real database with the real statements, in `directory`. Opening one costs some 50 ms: share it."""
    statements = load_statements(DIRECTORY / "queries.sql")
    database = SqliteDatabase.open(directory / "kandev.db", statements, DIRECTORY / "migrations")
    database._connection.execute("PRAGMA synchronous = OFF")  # no test here cuts the power
    try:
        yield database
    finally:
        asyncio.run(database.aclose())


class StoredSession:
    """One session whose agent runs, as far as the store knows. `effects` and `events` are what commits gave."""

    def __init__(self, database: SqliteDatabase, ref: ExecutionRef) -> None:
        self.database = database
        self.store = Store(database)
        self.ref = ref
        self.effects: list[Effect] = []
        self.events: list[Event] = []
        self.closed: list[Message] = []
        self._permissions: str | Sequence[str] = "ask"

    @classmethod
    async def create(cls, database: SqliteDatabase, *, permissions: str | Sequence[str] = "ask") -> Self:
        """Makes task, session and row; the session waits for input, its execution has read nothing."""
        ref = ExecutionRef(session_id=new_id(), task_id=new_id(), execution_id=new_id(), agent="fake")
        await database.write(lambda tx: _insert(tx, ref))
        session = cls(database, ref)
        session._permissions = permissions
        return session

    @property
    def row(self) -> ExecutorRunning:
        """The executor row as it is stored."""
        row = self.store.executor(self.ref.session_id)
        assert row is not None
        return row

    @property
    def state(self) -> str:
        """The session's state as it is stored."""
        return self.store.session(self.ref.session_id).state

    @property
    def task_state(self) -> str:
        """The task's state as it is stored."""
        return self.store.task(self.ref.task_id).state

    def messages(self) -> list[Message]:
        """All messages that have a place, in order, with streamed text."""
        return self.store.messages_after(self.ref.session_id, after=0, limit=100_000)

    def agent_state(self) -> dict[str, Any]:
        """What the agent last said of its modes, options, commands and plan."""
        return self.store.settings(self.ref.session_id).agent_state

    def reader(self, *, live: bool = True) -> Reader:
        """A reader that goes on where the store stands, in a process that remembers nothing."""
        store = self.store = Store(self.database)
        session_id = self.ref.session_id
        handlers = SessionEventHandlers(store)
        handlers.after = lambda _ref, effect: self.effects.append(effect)
        row = self.row
        reader = Reader(
            self.ref,
            decode_state(row.protocol_state),
            row.last_event_seq,
            handlers=handlers,
            next_seq=lambda: store.next_seq(session_id),
            load_message=store.message,
            permissions=self._permissions,
        )
        if live:
            reader.on_answer = lambda _request_id, _response: None
        return reader

    async def commit(self, reader: Reader) -> Applied:
        """Stores what has gathered, as the ingest does, and returns what it published."""
        batch, ref = reader.take(), reader.ref
        applied = await self.database.write(
            lambda tx: batch.apply(tx, session_id=ref.session_id, execution_id=ref.execution_id)
        )
        self.events += applied.events
        self.closed += applied.closed
        for done in batch.after:
            done()
        return applied

    async def request(self, reader: Reader, method: str, build: Callable[[int], bytes]) -> int:
        """Stores a request of ours as sent; returns its id."""
        request_id = reader.begin_request(method)
        reader.queue_line(build(request_id))
        await self.commit(reader)
        return request_id

    async def opened(self, reader: Reader) -> None:
        """Has the agent answer session/new with TOKEN."""
        request_id = await self.request(reader, "session/new", lambda n: acp.new_session(n, "/work"))
        reader.feed([answer(request_id, {"sessionId": TOKEN})])
        await self.commit(reader)

    async def loading(self, reader: Reader) -> int:
        """Asks the agent to load TOKEN, behind the replay gate; returns the request's id."""
        state = reader.state
        state.phase, state.agent_session_id, state.replayed = Phase.REPLAYING, TOKEN, {}
        return await self.request(reader, "session/load", lambda n: acp.load_session(n, TOKEN, "/work"))

    async def claim(self, text: str = "Hello?") -> Turn:
        """Has a turn take a prompt from the queue, and sends nothing."""
        service = MessageService(self.store, kick=lambda _session_id: None, publish=self.events.extend)
        message = await service.add(self.ref.task_id, self.ref.session_id, text)
        turn_id, seq = TurnId(new_id()), self.store.next_seq(self.ref.session_id)
        await self.database.write(lambda tx: _claim(tx, self.ref, turn_id, message.id, seq))
        return self.store.turn(turn_id)

    async def prompt(self, reader: Reader, text: str = "Hello?", *, injected: str = "") -> tuple[Turn, int]:
        """Begins a turn and stores its prompt as sent; returns the turn and the request's id."""
        turn = await self.claim(text)
        reader.begin_turn(turn.id, injected=injected)
        request_id = reader.begin_request("session/prompt", turn.id)
        reader.queue_line(reader.dialect.prompt(request_id, reader.state.agent_session_id, text))
        await self.commit(reader)
        return turn, request_id

    async def replace_execution(self) -> ExecutionRef:
        """Starts another execution of the session: what the old one still says is late (RACE-5)."""
        new = msgspec.structs.replace(self.ref, execution_id=new_id())
        await self.database.write(lambda tx: _begin(tx, new, self.ref.execution_id))
        return new


def _insert(tx: Tx, ref: ExecutionRef) -> None:
    stamp = now()
    tx.run(
        "task_insert",
        id=ref.task_id,
        title="A task",
        description="Hello?",
        state="REVIEW",
        client_task_id=None,
        intent="",
        created_at=stamp,
        updated_at=stamp,
    )
    tx.run(
        "session_insert",
        id=ref.session_id,
        task_id=ref.task_id,
        agent=ref.agent,
        agent_config=to_json(
            AgentConfig(name=ref.agent, display_name="Fake", command=("fake",), login_hint="fake login")
        ),
        runtime="standalone",
        state="WAITING_FOR_INPUT",
        model="",
        mode="",
        repository_path="",
        workspace="",
        recap_pending=0,
        recap_of="",
        created_at=stamp,
        updated_at=stamp,
    )
    tx.run(
        "executor_insert",
        session_id=ref.session_id,
        task_id=ref.task_id,
        runtime="standalone",
        status="ready",
        worktree_id="",
        worktree_path="",
        worktree_branch="",
        now=stamp,
    )
    _begin(tx, ref, "")


def _begin(tx: Tx, ref: ExecutionRef, observed: str) -> None:
    begun = tx.one(
        "executor_begin",
        session_id=ref.session_id,
        agent_execution_id=ref.execution_id,
        instance_id="i",
        observed_execution=observed,
        now=now(),
    )
    assert begun is not None


def _claim(tx: Tx, ref: ExecutionRef, turn_id: TurnId, message_id: str, seq: int) -> None:
    tx.one("queue_take", message_id=message_id, session_id=ref.session_id)
    tx.run(
        "turn_insert",
        id=turn_id,
        session_id=ref.session_id,
        agent_execution_id=ref.execution_id,
        message_id=message_id,
        started_at=now(),
    )
    tx.one("message_take_place", id=message_id, seq=seq, turn_id=turn_id, now=now())
    move_session(tx, ref.session_id, SessionEvent.PROMPT_SENT)
    move_task(tx, ref.task_id, TaskEvent.TURN_STARTED, session_id=ref.session_id)


# ---- lines of an agent, without their newlines


def line(message: dict[str, Any]) -> bytes:
    """A message as one line."""
    return msgspec.json.encode({"jsonrpc": "2.0", **message})


def answer(request_id: int | str, result: Any) -> bytes:
    """An answer to a request of ours."""
    return line({"id": request_id, "result": result})


def refusal(request_id: int, code: int, message: str) -> bytes:
    """An error answer to a request of ours."""
    return line({"id": request_id, "error": {"code": code, "message": message}})


def update(kind: str, /, **body: Any) -> bytes:
    """A session/update."""
    params = {"sessionId": TOKEN, "update": {"sessionUpdate": kind, **body}}
    return line({"method": "session/update", "params": params})


def chunk(text: str, kind: str = "agent_message_chunk", message_id: str | None = None) -> bytes:
    """A piece of text: the agent's, its thought (agent_thought_chunk), or the user's (user_message_chunk)."""
    more = {"messageId": message_id} if message_id else {}
    return update(kind, content={"type": "text", "text": text}, **more)


def ask(request_id: int | str, *, call_id: str = "call-1", **tool_call: Any) -> bytes:
    """A permission request with one option of each kind; an option's id is its kind."""
    kinds = ("allow_once", "allow_always", "reject_once", "reject_always")
    params = {
        "sessionId": TOKEN,
        "toolCall": {"toolCallId": call_id, **tool_call},
        "options": [{"optionId": kind, "name": kind, "kind": kind} for kind in kinds],
    }
    return line({"id": request_id, "method": "session/request_permission", "params": params})
