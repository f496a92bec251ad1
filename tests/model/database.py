"""The real database on its real file, without its thread, and a record of every change that was committed.

The record is kept by triggers of the writer's own connection, so it has what was committed, all of it, in order.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import kandev.store
from kandev.store.database import Statements, Tx, load_statements
from kandev.store.migrator import Migrated
from kandev.store.sqlite import SqliteDatabase
from kandev.store.writer import GroupWriter, _publish, _Transaction

T = TypeVar("T")

DIRECTORY = Path(kandev.store.__file__).parent
STATEMENTS = load_statements(DIRECTORY / "queries.sql")
LONGEST_WAIT = 3

RECORD = """
CREATE TEMP TABLE seen (n INTEGER PRIMARY KEY, kind TEXT, id TEXT, old TEXT, new TEXT, more TEXT);
CREATE TEMP TRIGGER seen_session AFTER UPDATE OF state ON task_sessions WHEN old.state <> new.state
    BEGIN INSERT INTO seen (kind, id, old, new, more) VALUES ('session', new.id, old.state, new.state, ''); END;
CREATE TEMP TRIGGER seen_task AFTER UPDATE OF state ON tasks WHEN old.state <> new.state
    BEGIN INSERT INTO seen (kind, id, old, new, more) VALUES ('task', new.id, old.state, new.state, ''); END;
CREATE TEMP TRIGGER seen_token AFTER UPDATE OF resume_token ON executors_running
    WHEN old.resume_token <> new.resume_token BEGIN INSERT INTO seen (kind, id, old, new, more) VALUES
    ('token', new.session_id, old.resume_token, new.resume_token,
    json_object('execution', new.agent_execution_id, 'metadata', json(new.metadata))); END;
CREATE TEMP TRIGGER seen_status AFTER UPDATE OF status ON executors_running WHEN old.status <> new.status
    BEGIN INSERT INTO seen (kind, id, old, new, more)
    VALUES ('status', new.session_id, old.status, new.status, new.agent_execution_id); END;
CREATE TEMP TRIGGER seen_prompt AFTER INSERT ON messages WHEN new.author_type = 'user'
    BEGIN INSERT INTO seen (kind, id, old, new, more) VALUES ('prompt', new.session_id, '', new.content, new.id); END;
CREATE TEMP TRIGGER seen_withdrawn AFTER DELETE ON messages
    BEGIN INSERT INTO seen (kind, id, old, new, more)
    VALUES ('withdrawn', old.session_id, old.content, '', old.id); END;
CREATE TEMP TRIGGER seen_deleted AFTER DELETE ON task_sessions
    BEGIN INSERT INTO seen (kind, id, old, new, more) VALUES ('deleted', old.id, old.state, '', old.task_id); END;
CREATE TEMP TRIGGER seen_place AFTER UPDATE OF seq ON messages WHEN old.seq IS NOT new.seq
    BEGIN INSERT INTO seen (kind, id, old, new, more)
    VALUES ('place', new.id, coalesce(old.seq, ''), coalesce(new.seq, ''), new.author_type); END;
CREATE TEMP TRIGGER seen_turn AFTER UPDATE OF state ON turns WHEN old.state <> new.state
    BEGIN INSERT INTO seen (kind, id, old, new, more)
    VALUES ('turn', new.id, old.state, new.state, new.stop_reason); END;
"""


class Seen(NamedTuple):
    """One committed change. `kind` says of what; `id` is the session's, task's, message's or turn's."""

    n: int
    kind: str
    id: str
    old: str
    new: str
    more: str


class LoopWriter(GroupWriter):
    """Commits in the loop, a few callbacks after a job was submitted, with the code of the writer's thread."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        super().__init__(connection, STATEMENTS, path)
        self.random = Random(0)
        self._due = False
        self.killed = False
        self.after_commit: Callable[[], None] = lambda: None

    def start(self) -> None:
        """There is no thread."""

    def submit(self, job: Callable[[Tx], T]) -> "asyncio.Future[T]":
        """Queue a job for the next commit."""
        future = super().submit(job)
        if not self._due:
            self._due = True
            self._later(self.random.randrange(LONGEST_WAIT))
        return future

    def _later(self, callbacks: int) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(self._work) if not callbacks else loop.call_soon(self._later, callbacks - 1)

    def _work(self) -> None:
        self._due = False
        if self.killed:
            return
        group = self._next_group()
        self._commit(group)
        self.after_commit()
        _publish(group)

    async def aclose(self) -> None:
        """Commit what waits."""
        self._closing = True
        if self._due:
            self._work()


class LoopDatabase(SqliteDatabase):
    """The database of one backend of a world; `seen` are the changes that it committed."""

    def __init__(self, path: Path, statements: Statements, connection: sqlite3.Connection, migrated: Migrated) -> None:
        super().__init__(path, statements, connection, migrated)
        connection.execute("PRAGMA synchronous = OFF")  # no test here cuts the power
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.executescript(RECORD)
        self.writer = LoopWriter(connection, path)
        self._writer = self.writer

    @classmethod
    def begin(cls, path: Path, random: Random) -> "LoopDatabase":
        """Open the file, made if it is not there."""
        database = cls.open(path, STATEMENTS, DIRECTORY / "migrations")
        database.writer.random = random
        return database

    def seen(self, after: int) -> list[Seen]:
        """Return what was committed behind the change `after`."""
        rows = self._connection.execute("SELECT * FROM seen WHERE n > ? ORDER BY n", (after,))
        return [Seen(*row) for row in rows]

    @property
    def connection(self) -> sqlite3.Connection:
        """For reading what is committed, between two jobs."""
        return self._connection

    def run(self, job: Callable[[Tx], Any]) -> None:
        """Run a job at once, between two commits of the backend."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            job(_Transaction(self._connection, STATEMENTS))
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def kill(self) -> None:
        """End as a killed process does: what was not committed is gone, nothing is answered."""
        self.writer.killed = True
        self.writer._closing = True
        self._closed = True
        for connection in (self._reader, self._scanner, self._connection):
            connection.close()
        self._scans.shutdown()


def rows(connection: sqlite3.Connection, query: str, *args: Any) -> list[sqlite3.Row]:
    """Return what a query finds."""
    return connection.execute(query, args).fetchall()
