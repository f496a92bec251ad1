"""Sessions of one task whose starts fail in the same moment."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kandev.domain.models import new_id, now
from kandev.errors import AgentctlError
from kandev.orchestrator.outcomes import record_failure
from kandev.orchestrator.starting import Start
from kandev.store.database import Tx
from kandev.store.sqlite import SqliteDatabase
from stored import StoredSession, stored

AGENT = '{"name": "fake", "display_name": "Fake", "command": ["fake"]}'


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    """A real database of this test's own."""
    with stored(tmp_path) as made:
        yield made


def insert_second(tx: Tx, task_id: str, session_id: str) -> None:
    """Another session of the task, which waits for input."""
    empty = dict.fromkeys(("model", "mode", "repository_path", "workspace", "recap_of"), "")
    who = {"id": session_id, "task_id": task_id, "agent": "fake", "agent_config": AGENT, "runtime": "standalone"}
    stamps = {"created_at": now(), "updated_at": now()}
    tx.run("session_insert", **who, **empty, **stamps, state="WAITING_FOR_INPUT", recap_pending=0)


async def test_state_8_the_last_of_two_that_fail_at_once_fails_the_task(database: SqliteDatabase) -> None:
    """Each finds the other one alive when it begins to settle; what counts is what the transaction finds."""
    session, other = await StoredSession.create(database), new_id()
    task_id = session.ref.task_id
    await database.write(lambda tx: insert_second(tx, task_id, other))
    error = AgentctlError("agentctl cannot be reached.", reason="unreachable")
    starts = [Start(one, task_id, lambda _events: None) for one in (session.ref.session_id, other)]
    work = [record_failure(session.store, start, error, publish=lambda _events: None) for start in starts]
    await asyncio.gather(*work)
    assert [one.state for one in session.store.sessions(task_id)] == ["FAILED", "FAILED"]
    assert session.task_state == "FAILED"
