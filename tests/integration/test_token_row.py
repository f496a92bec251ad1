"""The row that holds the token: never deleted, and left alone where it cannot be read or written (TOK-10, TOK-11)."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import kandev.store
from backend import Backend
from conversation import Conversation, Conversations
from kandev.store.database import load_statements
from kandev.store.sqlite import SqliteDatabase
from stored import TOKEN, StoredSession, answer, chunk, stored
from wire_client import CallFailed

STATEMENTS = load_statements(Path(kandev.store.__file__).parent / "queries.sql")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    """One database for the module."""
    with stored(tmp_path_factory.mktemp("rows")) as opened:
        yield opened


def test_tok_11_no_statement_deletes_or_replaces_a_row() -> None:
    """It goes only with its session, by the foreign key."""
    touching = {name: " ".join(sql.split()) for name, sql in STATEMENTS.items() if "executors_running" in sql}
    wrong = [name for name, sql in touching.items() if "DELETE" in sql.upper() or "REPLACE" in sql.upper()]
    assert touching
    assert wrong == []


def deny(action: int, table: str | None, *_: str | None) -> int:
    """Let SQLite refuse to read the rows, as a damaged page would."""
    refused = action == sqlite3.SQLITE_READ and table == "executors_running"
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


async def test_tok_11_a_read_that_fails_is_no_reason_to_write(database: SqliteDatabase) -> None:
    """The turn's end is not stored by half; once the row can be read, the same batch is, and the token is as it was."""
    session = await StoredSession.create(database)
    reader = session.reader()
    await session.opened(reader)
    _, request_id = await session.prompt(reader)
    before = session.row
    reader.feed([chunk("said"), answer(request_id, {"stopReason": "end_turn"})])
    batch = reader.take()
    database._connection.set_authorizer(deny)
    try:
        with pytest.raises(sqlite3.DatabaseError, match="prohibited"):
            await database.write(
                lambda tx: batch.apply(tx, session_id=reader.ref.session_id, execution_id=reader.ref.execution_id)
            )
    finally:
        database._connection.set_authorizer(None)
    assert session.row == before
    assert session.state == "RUNNING"
    await database.write(
        lambda tx: batch.apply(tx, session_id=reader.ref.session_id, execution_id=reader.ref.execution_id)
    )
    assert (session.row.resume_token, session.row.metadata["token_proven"]) == (TOKEN, True)
    assert session.state == "WAITING_FOR_INPUT"


async def dies(session: Conversation) -> None:
    """The agent is killed while it is idle."""
    await session.lose_agent()


async def is_stopped(session: Conversation) -> None:
    """A person stops the session for good."""
    await session.call("task.session.stop")


async def cannot_start(session: Conversation) -> None:
    """The agent is killed, and its program breaks at the next start."""
    await session.lose_agent()
    session.agent.update(start=[{"die": 1}])
    await session.fail_to_resume()
    session.agent.update(start=[])


async def is_cancelled_while_it_loads(session: Conversation) -> None:
    """The agent is killed; a person cancels the resume that waits for it."""
    await session.lose_agent()
    session.agent.update(start=[{"mark": "up"}, {"gate": "never"}])
    await session.act("task.session.resume")
    await session.agent.until(session.agent.marks)
    await session.act("task.session.cancel")
    await session.event("session.resume.failed")
    session.agent.update(start=[])


@pytest.mark.parametrize("ending", [dies, is_stopped, cannot_start, is_cancelled_while_it_loads])
async def test_tok_11_a_row_keeps_its_token_through_every_ending(conversation: Conversations, ending: object) -> None:
    """Whatever ended the agent: the status shows the same fingerprint, and the agent is asked for the same session."""
    assert callable(ending)
    session = await conversation()
    await session.begin()
    shown = (await session.status())["acp_session_id"]
    (made,) = {message["params"]["sessionId"] for message in session.agent.requests("session/prompt")}
    await ending(session)
    assert shown
    assert (await session.status())["acp_session_id"] == shown
    assert (await session.recover("resume"))["how"] == "native"
    asked = [*session.agent.requests("session/resume"), *session.agent.requests("session/load")]
    assert asked[-1]["params"]["sessionId"] == made


async def test_tok_10_a_fresh_start_that_cannot_be_stored_starts_nothing(
    stage: Backend, conversation: Conversations
) -> None:
    """Another program holds the database: the request is refused, no process starts, and the token is in its place."""
    session = await conversation()
    await session.begin()
    await session.lose_agent()
    shown = (await session.status())["acp_session_id"]
    with contextlib.closing(sqlite3.connect(stage.home / "kandev.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CallFailed) as refused:
            await session.act("task.session.recover", action="fresh_start")
        other.execute("ROLLBACK")
    assert refused.value.code == "UNAVAILABLE"
    assert len(session.agent.pids()) == 1
    assert (await session.status())["acp_session_id"] == shown
    assert (await session.resume())["how"] == "native"
