import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from kandev.errors import Conflict, Internal
from kandev.store.database import Statements
from kandev.store.migrator import APPLICATION_ID, load_migrations, migrate
from kandev.store.sqlite import SqliteDatabase

NO_STATEMENTS: Statements = {}


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    folder = tmp_path / "migrations"
    folder.mkdir()
    (folder / "0001_first.sql").write_text("CREATE TABLE a (id INTEGER PRIMARY KEY, text TEXT) STRICT;\n-- end")
    return folder


@contextlib.contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def tables(path: Path) -> set[str]:
    with raw(path) as connection:
        return {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def version(path: Path) -> int:
    with raw(path) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


async def test_a_new_database_gets_every_step_and_no_copy(tmp_path: Path, steps: Path) -> None:
    """A brand-new file is migrated to the end, marked as ours, and nothing is copied."""
    (steps / "0002_second.sql").write_text("CREATE TABLE b (id INTEGER PRIMARY KEY) STRICT")
    path = tmp_path / "kandev.db"
    async with SqliteDatabase.open(path, NO_STATEMENTS, steps) as database:
        assert (database.migrated.before, database.migrated.after, database.migrated.backup) == (0, 2, None)
    assert tables(path) == {"a", "b"}
    assert version(path) == 2
    assert int.from_bytes(path.read_bytes()[68:72], "big") == APPLICATION_ID
    assert not (tmp_path / "backups").exists()


async def test_an_old_database_is_copied_before_it_is_migrated(tmp_path: Path, steps: Path) -> None:
    """The copy has the old version and all rows, is 0600, and only the last two copies are kept."""
    path = tmp_path / "kandev.db"
    async with SqliteDatabase.open(path, NO_STATEMENTS, steps):
        pass
    with raw(path) as connection:
        connection.execute("INSERT INTO a VALUES (1, 'kept')")
    copies = []
    for number in (2, 3, 4):
        (steps / f"000{number}_more.sql").write_text(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY) STRICT;")
        async with SqliteDatabase.open(path, NO_STATEMENTS, steps) as database:
            assert database.migrated.backup is not None
            copies.append(database.migrated.backup)
    assert sorted((tmp_path / "backups").iterdir()) == copies[1:]
    assert version(copies[2]) == 3
    assert copies[2].stat().st_mode & 0o777 == 0o600
    with raw(copies[2]) as connection:
        assert connection.execute("SELECT text FROM a").fetchall() == [("kept",)]


async def test_other_files_in_backups_are_left_alone(tmp_path: Path, steps: Path) -> None:
    """Only copies of ours are pruned."""
    path = tmp_path / "kandev.db"
    (tmp_path / "backups").mkdir()
    (tmp_path / "backups" / "kandev-mine.db").write_text("mine")
    for number in (1, 2, 3, 4, 5):
        (steps / f"000{number}_first.sql").write_text(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY) STRICT;")
        async with SqliteDatabase.open(path, NO_STATEMENTS, steps):
            pass
    assert (tmp_path / "backups" / "kandev-mine.db").read_text() == "mine"
    assert len(list((tmp_path / "backups").iterdir())) == 3


@pytest.mark.parametrize(
    "bad",
    [
        "CREATE TABLE b (id INTEGER PRIMARY KEY) STRICT; INSERT INTO nowhere VALUES (1);",
        "CREATE TABLE b (id INTEGER PRIMARY KEY) STRICT; SELEC",
        "CREATE TABLE b (id INTEGER PRIMARY KEY, a REFERENCES a (id)); INSERT INTO b VALUES (1, 77);",
    ],
    ids=["fails", "syntax", "orphan-rows"],
)
def test_a_failing_step_leaves_neither_tables_nor_number(tmp_path: Path, steps: Path, bad: str) -> None:
    """The steps before it stay; of the failing one nothing does, and it can be run again when it is mended."""
    (steps / "0002_good.sql").write_text("CREATE TABLE good (id INTEGER PRIMARY KEY) STRICT;")
    (steps / "0003_bad.sql").write_text(bad)
    path = tmp_path / "kandev.db"
    with pytest.raises(sqlite3.Error):
        SqliteDatabase.open(path, NO_STATEMENTS, steps)
    assert tables(path) == {"a", "good"}
    assert version(path) == 2
    with raw(path) as connection:
        with pytest.raises(sqlite3.Error):
            migrate(connection, load_migrations(steps), backups=tmp_path / "backups")
        (steps / "0003_bad.sql").write_text("CREATE TABLE b (id INTEGER PRIMARY KEY) STRICT;")
        migrate(connection, load_migrations(steps), backups=tmp_path / "backups")
    assert version(path) == 3


def test_a_step_may_not_end_its_own_transaction(tmp_path: Path, steps: Path) -> None:
    """A COMMIT inside of a step would break the promise above, so it is an error."""
    (steps / "0001_first.sql").write_text("CREATE TABLE a (id INTEGER PRIMARY KEY) STRICT; COMMIT;")
    with pytest.raises(Internal):
        SqliteDatabase.open(tmp_path / "kandev.db", NO_STATEMENTS, steps)


async def test_a_newer_database_is_refused(tmp_path: Path, steps: Path) -> None:
    """A database of a later version is a Conflict that says what to do, and stays as it is."""
    path = tmp_path / "kandev.db"
    async with SqliteDatabase.open(path, NO_STATEMENTS, steps):
        pass
    with raw(path) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(Conflict) as caught:
        SqliteDatabase.open(path, NO_STATEMENTS, steps)
    assert caught.value.reason == "newer_database"
    assert version(path) == 9
    assert tables(path) == {"a"}


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_a_foreign_database_is_refused_and_left_alone(tmp_path: Path, steps: Path, journal: str) -> None:
    """An SQLite file of another program keeps its bytes, its mode and its neighbours."""
    path = tmp_path / "kandev.db"
    with raw(path) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("CREATE TABLE theirs (id)")
    os.chmod(path, 0o644)
    before = path.read_bytes()
    with pytest.raises(Conflict) as caught:
        SqliteDatabase.open(path, NO_STATEMENTS, steps)
    assert caught.value.reason == "foreign_database"
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o644
    assert sorted(item.name for item in tmp_path.iterdir()) == ["kandev.db", "migrations"]


def test_a_foreign_database_with_all_of_it_in_its_log_is_refused(tmp_path: Path, steps: Path) -> None:
    """Tables that are still in the write-ahead log of a program that runs count too."""
    path = tmp_path / "kandev.db"
    with raw(path) as theirs:
        theirs.execute("PRAGMA journal_mode = WAL")
        theirs.execute("CREATE TABLE theirs (id)")
        with pytest.raises(Conflict):
            SqliteDatabase.open(path, NO_STATEMENTS, steps)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path, steps: Path) -> None:
    """A text under our name is not overwritten."""
    path = tmp_path / "kandev.db"
    path.write_text("shopping list")
    with pytest.raises(Conflict):
        SqliteDatabase.open(path, NO_STATEMENTS, steps)
    assert path.read_text() == "shopping list"


async def test_empty_files_are_taken(tmp_path: Path, steps: Path) -> None:
    """A file of no bytes, and a database without tables, are free."""
    for name in ("empty.db", "bare.db"):
        path = tmp_path / name
        path.touch()
    with raw(tmp_path / "bare.db") as connection:
        connection.execute("PRAGMA user_version = 0")
        connection.execute("VACUUM")
    for name in ("empty.db", "bare.db"):
        async with SqliteDatabase.open(tmp_path / name, NO_STATEMENTS, steps):
            pass
        assert tables(tmp_path / name) == {"a"}


@pytest.mark.parametrize("name", ["0003_gap.sql", "0001_again.sql", "2_short.sql", "notes.sql"])
def test_steps_are_numbered_without_a_gap(steps: Path, name: str) -> None:
    """A gap, a repeated number or another name is an error before anything runs."""
    (steps / name).write_text("SELECT 1;")
    with pytest.raises(Internal):
        load_migrations(steps)
