"""SQLite as the Database: WAL, synchronous=FULL, one writing connection and two that only read."""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from kandev.errors import Conflict, Stopping
from kandev.store.database import Row, Statements, Tx
from kandev.store.failures import database_failure, file_failure
from kandev.store.migrator import APPLICATION_ID, Migrated, check_owner, copy_database, load_migrations, migrate
from kandev.store.writer import GroupWriter

T = TypeVar("T")

OLDEST_SQLITE = (3, 37, 0)
"""The first with STRICT tables."""

WRITE_BUSY_MS = 5000
READ_BUSY_MS = 1000
"""A reader meets a lock only while another program recovers or vacuums the file; the loop must not stand for long."""

_WAL_KEPT = 64 << 20
_STATEMENTS_CACHED = 512


class SqliteDatabase:
    """The Database of the protocol in `database.py`, on one file. Use it as an asynchronous context manager.

    The tables should be STRICT and have no deferred constraints: those would fail a whole group at its commit.
    """

    def __init__(self, path: Path, statements: Statements, connection: sqlite3.Connection, migrated: Migrated) -> None:
        self.path = path
        self.migrated = migrated
        self._statements = statements
        self._connection = connection
        self._reader = _connect_reader(path)
        self._scanner = _connect_reader(path)
        self._scans = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kandev-scan")
        self._writer = GroupWriter(connection, statements, path)
        self._closed = False

    def watch_commits(self, observer: Callable[[float], None]) -> None:
        """Call `observer`, on the writer's thread, with the seconds that each commit takes."""
        self._writer.on_commit = observer

    @classmethod
    def open(cls, path: Path, statements: Statements, migrations_dir: Path) -> Self:
        """Open or make the database at `path` (0600), and migrate it. Blocks; meant for before the port opens.

        Raises Conflict (reasons `foreign_database`, `newer_database`, `sqlite_too_old`, `no_search`, `no_wal`),
        StorageFull, StorageLocked, and sqlite3.Error for a migration that fails. Copies go to `backups/` beside the
        file.
        """
        _check_library()
        check_owner(path)
        with contextlib.ExitStack() as undo, _failures(path):
            _make_private(path)
            connection = _connect(path, WRITE_BUSY_MS)
            undo.callback(connection.close)
            _claim(connection, path)
            migrated = migrate(connection, load_migrations(migrations_dir), backups=path.parent / "backups")
            connection.execute("PRAGMA foreign_keys = ON")
            database = cls(path, statements, connection, migrated)
            database._writer.start()
            undo.pop_all()
        return database

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def write(self, job: Callable[[Tx], T], /) -> T:
        """Run `job` in the next group and return its result once it is committed (see Database.write)."""
        return await self._writer.submit(job)

    def one(self, name: str, /, **args: Any) -> Row | None:
        """Read one row by key, in the loop."""
        return self._read(self._reader, name, args, _first)

    def all(self, name: str, /, **args: Any) -> list[Row]:
        """Read a few rows by an index, in the loop."""
        return self._read(self._reader, name, args, sqlite3.Cursor.fetchall)

    @contextlib.contextmanager
    def moment(self) -> Iterator[None]:
        """Let all reads of a block, which awaits nothing, see one moment (see Database.moment)."""
        if self._closed:
            raise Stopping
        if self._reader.in_transaction:
            yield
            return
        with self._reader:  # commits, which ends the reading
            self._reader.execute("BEGIN")
            yield

    async def scan(self, name: str, /, **args: Any) -> list[Row]:
        """Read many rows on the reader's thread."""
        return await self._on_thread(lambda: self._read(self._scanner, name, args, sqlite3.Cursor.fetchall))

    async def backup(self, path: Path, /) -> None:
        """Write a consistent copy to `path`, which must not exist (Conflict, reason `file_exists`)."""
        await self._on_thread(lambda: self._copy(path))

    async def aclose(self) -> None:
        """Finish the jobs that wait, move the log into the file, close. May be called again."""
        await self._writer.aclose()
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._close)

    def _read(
        self, connection: sqlite3.Connection, name: str, args: Mapping[str, Any], fetch: Callable[[sqlite3.Cursor], T]
    ) -> T:
        if self._closed:
            raise Stopping
        try:
            return fetch(connection.execute(self._statements[name], args))
        except sqlite3.Error as exc:
            raise database_failure(exc, self.path) from exc

    async def _on_thread(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise Stopping
        return await asyncio.get_running_loop().run_in_executor(self._scans, call)

    def _copy(self, target: Path) -> None:
        # A connection of its own: one with query_only refuses VACUUM INTO.
        with contextlib.closing(_connect(self.path, WRITE_BUSY_MS)) as connection, _failures(target):
            copy_database(connection, target)

    def _close(self) -> None:
        self._scans.shutdown()
        self._reader.close()
        self._scanner.close()
        # Without this, what cannot be moved into the file just now stays in the log, and is found there next time.
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()


def check_statements(statements: Statements, migrations_dir: Path) -> list[str]:
    """Return what is wrong with the statements and tables: SQL that does not fit the schema, tables not STRICT.

    Migrates a database in memory and prepares each statement against it, so it costs milliseconds; for a test.
    """
    problems = []
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, load_migrations(migrations_dir), backups=migrations_dir)
        for name, sql in statements.items():
            try:
                connection.execute(f"EXPLAIN {sql}", _AnyArguments())
            except sqlite3.Error as exc:
                problems.append(f"{name}: {exc}")
        tables = connection.execute("SELECT name, strict FROM pragma_table_list WHERE type = 'table'")
        problems += [f"table {name}: not STRICT" for name, strict in tables if not strict and name[:7] != "sqlite_"]
    return problems


def _first(cursor: sqlite3.Cursor) -> Row | None:
    row: Row | None = cursor.fetchone()
    cursor.close()  # ends the read, so that the next one sees later commits
    return row


class _AnyArguments(dict[str, None]):
    """Has a value for each parameter."""

    def __missing__(self, key: str) -> None:
        return None


def _check_library() -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise Conflict(f"SQLite {sqlite3.sqlite_version} is too old; 3.37 or later is needed.", reason="sqlite_too_old")
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("CREATE VIRTUAL TABLE probe USING fts5 (content)")
        except sqlite3.OperationalError as exc:
            raise Conflict("This Python's SQLite has no full-text search (FTS5).", reason="no_search") from exc


def _connect(path: Path, busy_ms: int) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        isolation_level=None,  # transactions are begun and ended in words
        check_same_thread=False,  # opened here, used on the one thread that owns it
        cached_statements=_STATEMENTS_CACHED,
    )
    connection.row_factory = sqlite3.Row
    connection.execute(f"PRAGMA busy_timeout = {busy_ms}")
    return connection


def _connect_reader(path: Path) -> sqlite3.Connection:
    connection = _connect(path, READ_BUSY_MS)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _claim(connection: sqlite3.Connection, path: Path) -> None:
    """Mark a new file as ours, and choose how it is written."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        # Before WAL, so that the mark is in the file itself and not in a log that may be lost or copied apart.
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise Conflict(f"The file system of {path} has no shared memory, which SQLite's WAL needs.", reason="no_wal")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT}")


def _make_private(path: Path) -> None:
    """Make the file and what belongs to it 0600 (TOK-9). SQLite gives -wal and -shm the mode of the file."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.chmod(f"{path}{suffix}", 0o600)


@contextlib.contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise database_failure(exc, path) from exc
    except OSError as exc:
        raise file_failure(exc, path) from exc
