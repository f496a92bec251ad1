"""One commit of the ingest: what was said, how far it was read and what the reader knows, all or nothing."""

from collections.abc import Iterator
from typing import NoReturn

import msgspec
import pytest

from kandev.domain.models import Message, MessageId, SessionId, new_message_id, now
from kandev.lifecycle.batch import Applied, Batch, Superseded, close_change, text_change
from kandev.store.database import Tx
from kandev.store.sqlite import SqliteDatabase
from stored import StoredSession, stored


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    """One database for the module; each test has a session of its own in it."""
    with stored(tmp_path_factory.mktemp("batch")) as opened:
        yield opened


@pytest.fixture
async def session(database: SqliteDatabase) -> StoredSession:
    return await StoredSession.create(database)


def message(session: StoredSession, content: str, *, type_: str = "message", status: str = "") -> Message:
    return Message(
        id=new_message_id(),
        session_id=SessionId(session.ref.session_id),
        seq=session.store.next_seq(session.ref.session_id),
        author_type="agent",
        type=type_,
        content=content,
        metadata={"status": status} if status else {},
        created_at=now(),
        updated_at=now(),
    )


async def apply(session: StoredSession, batch: Batch, execution_id: str = "") -> Applied:
    ref = session.ref
    return await session.database.write(
        lambda tx: batch.apply(tx, session_id=ref.session_id, execution_id=execution_id or ref.execution_id)
    )


def told(applied: Applied) -> list[tuple[str, str]]:
    return [(e.action.removeprefix("session.message."), e.payload["message"].content) for e in applied.events]


async def test_a_row_is_written_once_at_its_first_place(session: StoredSession) -> None:
    """Later versions in one batch replace it, also behind another message."""
    first, second = message(session, "one"), message(session, "two")
    batch = Batch()
    for one in (first, second, msgspec.structs.replace(first, content="one, again")):
        batch.put(one, session.ref.task_id, "message_insert" if one.content != "one, again" else "message_update")
    assert told(await apply(session, batch)) == [("added", "one, again"), ("added", "two")]
    assert [stored.content for stored in session.messages()] == ["one, again", "two"]


async def test_a_new_version_of_a_stored_message_is_an_update(session: StoredSession) -> None:
    """And is published as one."""
    first, batch = message(session, "one"), Batch()
    batch.put(first, session.ref.task_id, "message_insert")
    await apply(session, batch)
    batch = Batch()
    batch.put(msgspec.structs.replace(first, content="uno"), session.ref.task_id, "message_update")
    assert told(await apply(session, batch)) == [("updated", "uno")]


async def test_events_come_in_the_order_of_the_journal(session: StoredSession) -> None:
    """Messages, text and their ends as they happened, whatever statements they share."""
    opened, tool, later = message(session, ""), message(session, "T", type_="tool_call"), message(session, "L")
    batch, ref = Batch(), session.ref
    batch.put(opened, ref.task_id, "message_insert")
    batch.add(text_change(opened.id, 0, "Hi", ref.session_id, ref.task_id), close_change(opened.id, ref.task_id))
    batch.put(tool, ref.task_id, "message_insert")
    batch.put(later, ref.task_id, "message_insert")
    applied = await apply(session, batch)
    assert [event.action.removeprefix("session.message.") for event in applied.events] == [
        "added",
        "delta",
        "updated",
        "added",
        "added",
    ]
    assert [closed.content for closed in applied.closed] == ["Hi", "T"]


@pytest.mark.parametrize(("status", "closes"), [("pending", False), ("completed", True), ("failed", True)])
async def test_a_tool_call_goes_to_the_history_when_it_is_done(
    session: StoredSession,
    status: str,
    closes: bool,  # noqa: FBT001 - a row of the table
) -> None:
    """Its begin went there already; what comes between does not."""
    tool, batch = message(session, "T", type_="tool_call", status="pending"), Batch()
    batch.put(tool, session.ref.task_id, "message_insert")
    assert len((await apply(session, batch)).closed) == 1
    batch = Batch()
    batch.put(msgspec.structs.replace(tool, metadata={"status": status}), session.ref.task_id, "message_update")
    assert bool((await apply(session, batch)).closed) is closes


async def test_closing_a_message_that_is_gone_is_nothing(session: StoredSession) -> None:
    """Its session was deleted meanwhile."""
    batch = Batch()
    batch.add(close_change(MessageId("gone"), session.ref.task_id))
    assert await apply(session, batch) == Applied()


async def test_hist_12_a_batch_can_be_applied_again_after_a_failed_commit(session: StoredSession) -> None:
    """Nothing of the failed one is left, and the second gives the same."""
    batch, opened = Batch(), message(session, "")
    batch.position, batch.state = 77, '{"turn_id":"t"}'
    batch.put(opened, session.ref.task_id, "message_insert")
    batch.add(text_change(opened.id, 0, "Hi", session.ref.session_id, session.ref.task_id))
    before = session.row

    def fails(tx: Tx) -> NoReturn:
        batch.apply(tx, session_id=session.ref.session_id, execution_id=session.ref.execution_id)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        await session.database.write(fails)
    assert (session.row, session.messages()) == (before, [])
    applied = await apply(session, batch)
    assert [event.action.removeprefix("session.message.") for event in applied.events] == ["added", "delta"]
    assert (session.row.last_event_seq, session.row.protocol_state) == (77, '{"turn_id":"t"}')
    assert [stored.content for stored in session.messages()] == ["Hi"]


@pytest.mark.parametrize("owner", ["another", "older"])
async def test_race_5_only_the_owner_of_the_row_moves_it(session: StoredSession, owner: str) -> None:
    """No change of the batch runs before that is certain."""
    ran: list[str] = []
    batch = Batch()
    batch.add(lambda _tx, _applied: ran.append("change"))
    execution_id = "" if owner == "older" else "another"
    if owner == "older":
        await session.replace_execution()
    with pytest.raises(Superseded):
        await apply(session, batch, execution_id)
    assert ran == []
    assert session.row.last_event_seq == 0


async def test_a_commit_says_that_the_agent_was_seen(session: StoredSession) -> None:
    """Case 2 of task.session.status reads it."""
    before = now()
    await apply(session, Batch())
    assert session.row.last_seen_at >= before
