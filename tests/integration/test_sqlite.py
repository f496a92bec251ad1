import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import sqlite_items as items
from kandev.errors import Conflict, Stopping, StorageFull, StorageLocked, Unavailable
from kandev.store.database import Row, Tx
from kandev.store.sqlite import SqliteDatabase, check_statements


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    return items.write_migrations(tmp_path)


@pytest.fixture
async def database(tmp_path: Path, migrations: Path) -> AsyncIterator[SqliteDatabase]:
    async with SqliteDatabase.open(tmp_path / "kandev.db", items.STATEMENTS, migrations) as opened:
        yield opened


@contextlib.contextmanager
def held_up(database: SqliteDatabase) -> Iterator[None]:
    """Keep the writer inside a job, so that what is written meanwhile becomes one group."""
    entered, release = threading.Event(), threading.Event()

    def wait(_: Tx) -> None:
        entered.set()
        release.wait(30)

    database._writer.submit(wait)
    assert entered.wait(30)
    try:
        yield
    finally:
        release.set()


def put(number: int, name: str = "x") -> "Job":
    return Job(number, name)


class Job:
    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name

    def __call__(self, tx: Tx) -> int:
        return tx.run("put", id=self.number, name=self.name)


def ids(database: SqliteDatabase) -> list[int]:
    return [row["id"] for row in database.all("everything")]


async def test_a_write_is_read_at_once(database: SqliteDatabase) -> None:
    """Every kind of read after a write sees it, and a job returns what its statements returned."""
    assert await database.write(put(1, "one")) == 1
    row = database.one("get", id=1)
    assert row is not None
    assert dict(row) == {"id": 1, "name": "one"}
    assert database.one("get", id=2) is None

    def rename(tx: Tx) -> tuple[Row | None, Row | None, int]:
        return tx.one("rename", id=1, name="uno"), tx.one("rename", id=9, name="?"), len(tx.all("everything"))

    renamed, missing, count = await database.write(rename)
    assert renamed is not None
    assert (renamed["name"], missing, count) == ("uno", None, 1)
    assert [tuple(found) for found in await database.scan("everything")] == [(1, "uno")]


async def test_reads_of_a_moment_see_nothing_that_comes_later(database: SqliteDatabase) -> None:
    """Also in a moment inside it, and behind an error; what was committed meanwhile is seen afterwards."""
    await database.write(put(1))
    with contextlib.closing(sqlite3.connect(database.path)) as another, database.moment():
        assert ids(database) == [1]
        with another:
            another.execute("INSERT INTO items (id, name) VALUES (2, 'x')")
        with database.moment():
            assert ids(database) == [1]
    with pytest.raises(KeyError), database.moment():
        database.all("no_such_statement")
    await database.write(put(3))
    assert ids(database) == [1, 2, 3]


async def test_many_rows_are_one_statement(database: SqliteDatabase) -> None:
    """`many` takes any iterable of mappings."""
    await database.write(lambda tx: tx.many("put", ({"id": n, "name": str(n)} for n in range(100))))
    assert ids(database) == list(range(100))


async def test_a_failing_job_undoes_itself_alone(database: SqliteDatabase) -> None:
    """Jobs of one group keep what they wrote when a neighbour fails, and the failure is its caller's."""

    def fails(tx: Tx) -> None:
        tx.run("put", id=2, name="gone")
        raise LookupError("mine")

    with held_up(database):
        jobs = [asyncio.ensure_future(database.write(job)) for job in (put(1), fails, put(1), put(3))]
        await asyncio.sleep(0)
    first, second, third, fourth = await asyncio.gather(*jobs, return_exceptions=True)
    assert (first, fourth) == (1, 1)
    assert isinstance(second, LookupError)
    assert isinstance(third, sqlite3.IntegrityError)
    assert ids(database) == [1, 3]


async def test_jobs_that_wait_share_one_commit(database: SqliteDatabase) -> None:
    """What was queued during a commit is one transaction: its jobs see each other's rows, in order."""
    commits: list[str] = []
    database._connection.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    with held_up(database):
        jobs = [asyncio.ensure_future(database.write(put(number))) for number in range(50)]
        await asyncio.sleep(0)
    await asyncio.gather(*jobs)
    assert len(commits) == 2
    assert ids(database) == list(range(50))


@pytest.mark.parametrize("error", [StopIteration, asyncio.CancelledError, SystemExit])
async def test_the_writer_survives_whatever_a_job_raises(database: SqliteDatabase, error: type[BaseException]) -> None:
    """The caller gets an error, and the next job runs."""

    def fails(_: Tx) -> None:
        raise error

    with pytest.raises(RuntimeError):
        await asyncio.wait_for(database.write(fails), 30)
    await database.write(put(1))
    assert ids(database) == [1]


async def test_an_unknown_statement_is_a_key_error(database: SqliteDatabase) -> None:
    """It names the statement, and undoes the job that used it."""

    def asks(tx: Tx) -> None:
        tx.run("put", id=1, name="gone")
        tx.run("no_such")

    with pytest.raises(KeyError, match="no_such"):
        await database.write(asks)
    with pytest.raises(KeyError, match="no_such"):
        database.one("no_such")
    assert ids(database) == []


async def test_a_cancelled_caller_does_not_undo_its_job(database: SqliteDatabase) -> None:
    """The job was queued, so it runs; its neighbours get their answers."""
    with held_up(database):
        cancelled = asyncio.ensure_future(database.write(put(1)))
        stays = asyncio.ensure_future(database.write(put(2)))
        await asyncio.sleep(0)
        cancelled.cancel()
    await stays
    assert cancelled.cancelled()
    assert ids(database) == [1, 2]


async def test_readers_cannot_write(database: SqliteDatabase) -> None:
    """A statement that changes something is refused outside of a job."""
    with pytest.raises(Unavailable):
        database.one("clear")
    with pytest.raises(Unavailable):
        await database.scan("clear")


async def test_closing_finishes_what_waits(database: SqliteDatabase) -> None:
    """Queued jobs are committed, later ones are told that the backend stops, and no log is left behind."""
    with held_up(database):
        jobs = [asyncio.ensure_future(database.write(put(number))) for number in range(5)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(database.aclose())
        await asyncio.sleep(0)
        with pytest.raises(Stopping):
            await database.write(put(9))
    assert await asyncio.gather(*jobs) == [1] * 5
    await closing
    await database.aclose()
    for read in (lambda: database.one("get", id=1), lambda: database.all("everything")):
        with pytest.raises(Stopping):
            read()
    with pytest.raises(Stopping):
        await database.scan("everything")
    assert not Path(f"{database.path}-wal").exists()
    with contextlib.closing(sqlite3.connect(database.path)) as connection:
        assert connection.execute("SELECT count(*) FROM items").fetchone() == (5,)


async def test_tok_9_all_files_are_private(tmp_path: Path, migrations: Path) -> None:
    """Database, log, index and copies are 0600, also where the database was readable before."""
    path = tmp_path / "kandev.db"
    for _ in range(2):
        async with SqliteDatabase.open(path, items.STATEMENTS, migrations) as database:
            await database.write(lambda tx: tx.run("clear"))
            await database.write(put(1))
            names = ("kandev.db", "kandev.db-wal", "kandev.db-shm")
            assert [(tmp_path / name).stat().st_mode & 0o777 for name in names] == [0o600] * 3
        path.chmod(0o644)


async def test_what_is_committed_is_synced(database: SqliteDatabase) -> None:
    """WAL with synchronous=FULL, and foreign keys are enforced."""
    pragma = {
        name: database._connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in (
            "journal_mode",
            "synchronous",
            "foreign_keys",
            "busy_timeout",
        )
    }
    assert pragma == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5000}


async def test_a_copy_is_whole_and_private(database: SqliteDatabase, tmp_path: Path) -> None:
    """A copy of a database in use opens as one, is 0600, and never overwrites."""
    await database.write(put(1))
    copy = tmp_path / "copy.db"
    await database.backup(copy)
    assert copy.stat().st_mode & 0o777 == 0o600
    async with SqliteDatabase.open(copy, items.STATEMENTS, tmp_path / "migrations") as other:
        assert ids(other) == [1]
    with pytest.raises(Conflict):
        await database.backup(copy)


async def test_hist_12_a_copy_that_fails_leaves_nothing(database: SqliteDatabase, tmp_path: Path) -> None:
    """A target that cannot be written is a clear error, and no half copy stays."""
    with pytest.raises(Unavailable):
        await database.backup(tmp_path / "nowhere" / "copy.db")
    assert not (tmp_path / "nowhere").exists()


async def test_a_locked_database_is_a_clear_error(database: SqliteDatabase) -> None:
    """Each job of the group gets StorageLocked; nothing is stored, and it works again after."""
    database._connection.execute("PRAGMA busy_timeout = 20")
    with contextlib.closing(sqlite3.connect(database.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        jobs = [database.write(put(number)) for number in range(3)]
        outcomes = await asyncio.gather(*jobs, return_exceptions=True)
        assert all(isinstance(outcome, StorageLocked) for outcome in outcomes)
        assert ids(database) == []
        other.execute("ROLLBACK")
    await database.write(put(1))
    assert ids(database) == [1]


async def test_a_job_that_reads_first_can_write(database: SqliteDatabase) -> None:
    """Nobody else writes between what a job reads and what it writes, so a check in a job holds."""

    def job(tx: Tx) -> int:
        count = len(tx.all("everything"))
        other = sqlite3.connect(database.path, isolation_level=None, timeout=0)
        with contextlib.closing(other), pytest.raises(sqlite3.OperationalError):
            other.execute("INSERT INTO items VALUES (7, 'between')")
        return tx.run("put", id=count, name="x")

    assert await database.write(job) == 1
    assert ids(database) == [0]


async def test_a_refused_commit_is_undone(tmp_path: Path, migrations: Path) -> None:
    """A constraint that is checked at the commit fails its group, and the writer goes on."""
    (migrations / "0002_children.sql").write_text(
        "CREATE TABLE children (item INTEGER REFERENCES items (id) DEFERRABLE INITIALLY DEFERRED) STRICT;"
    )
    statements = {**items.STATEMENTS, "orphan": "INSERT INTO children VALUES (99);"}
    async with SqliteDatabase.open(tmp_path / "kandev.db", statements, migrations) as database:
        with pytest.raises(sqlite3.IntegrityError):
            await database.write(lambda tx: tx.run("orphan"))
        await database.write(put(1))
        assert ids(database) == [1]


async def test_hist_12_a_full_database_is_a_clear_error(database: SqliteDatabase) -> None:
    """A statement that finds no room fails the group with StorageFull; earlier rows stay, smaller ones fit again."""
    await database.write(put(1))
    database._connection.execute("PRAGMA max_page_count = 8")
    with held_up(database):
        jobs = [asyncio.ensure_future(database.write(job)) for job in (put(2), put(3, "x" * 100_000), put(4))]
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(outcomes[1], StorageFull)
    assert ids(database) == [1] + [n for n, outcome in zip((2, 3, 4), outcomes, strict=True) if outcome == 1]
    assert all(outcome == 1 or isinstance(outcome, StorageFull) for outcome in outcomes)
    await database.write(put(5))
    assert ids(database)[-1] == 5


async def test_hist_12_a_job_that_hides_a_lost_transaction_fails(database: SqliteDatabase) -> None:
    """Once SQLite has undone the transaction, a job cannot go on writing outside of it."""
    database._connection.execute("PRAGMA max_page_count = 8")

    def hides(tx: Tx) -> None:
        with contextlib.suppress(sqlite3.Error):
            tx.run("put", id=1, name="x" * 100_000)
        with contextlib.suppress(sqlite3.Error):
            tx.run("put", id=2, name="outside")

    with pytest.raises(StorageFull):
        await database.write(hides)
    assert ids(database) == []


def test_statements_are_checked_against_the_schema(migrations: Path) -> None:
    """An unknown column and a table that is not STRICT are found without running anything."""
    assert check_statements(items.STATEMENTS, migrations) == []
    (migrations / "0002_loose.sql").write_text("CREATE TABLE loose (id INTEGER PRIMARY KEY);")
    problems = check_statements({"bad": "SELECT colour FROM items WHERE id = :id;"}, migrations)
    assert problems == ["bad: no such column: colour", "table loose: not STRICT"]
