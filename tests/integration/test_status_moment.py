"""A status is of one moment, though prompts are taken while it is read."""

import contextlib
import sqlite3
from pathlib import Path

from kandev.library import Kandev
from kandev.orchestrator.views import CreateTask
from kandev.store.sqlite import SqliteDatabase

TAKEN = """
INSERT INTO turns (id, session_id, agent_execution_id, message_id, state, started_at)
    SELECT 'taken', session_id, '', message_id, 'open', created_at FROM queued_prompts;
DELETE FROM queued_prompts;
"""


async def test_prompt_3_a_prompt_that_is_being_taken_is_in_the_queue_or_in_a_turn(tmp_path: Path) -> None:
    """It is taken just behind the look for a turn; whoever waits would take the session for idle."""
    async with Kandev(tmp_path / "home") as kandev:
        request = CreateTask(description="remember apple", agent="demo", start=False)
        task, session = await kandev.backend.tasks.create(request)
        database = kandev.backend.store.database
        assert isinstance(database, SqliteDatabase)
        with contextlib.closing(sqlite3.connect(tmp_path / "home/kandev.db")) as another:

            def take(statement: str) -> None:
                if "FROM turns" in statement:
                    another.executescript(TAKEN)

            database._reader.set_trace_callback(take)
            seen = kandev.backend.operations.status(task.id, session.id)
            database._reader.set_trace_callback(None)
        after = kandev.backend.operations.status(task.id, session.id)
        assert (seen.turn, seen.queued) == (None, 1)
        assert after.turn is not None
        assert (after.turn.id, after.queued) == ("taken", 0)
