"""Migrations: numbered `NNNN_name.sql` files, forward only, recorded in `PRAGMA user_version`.

A database that has something to lose is copied to `backups/` first. Each step is one transaction: a step that fails
leaves neither its tables nor its number. `PRAGMA application_id` marks the file as ours, and is written before
anything else, so that its first 100 bytes always tell whose it is.
"""

import contextlib
import os
import re
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from kandev.errors import Conflict, Internal

APPLICATION_ID = 0x4B616E64
"""'Kand' in ASCII, at offset 68 of the file."""

BACKUPS_KEPT = 2

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_MAGIC = b"SQLite format 3\x00"


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """One step. It leads from `number - 1` to `number`."""

    number: int
    name: str
    sql: str


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    """What `migrate` did. `backup` is None if there was nothing to copy."""

    before: int
    after: int
    backup: Path | None = None


def load_migrations(directory: Path) -> tuple[Migration, ...]:
    """Read the steps of `directory` in order. Raises Internal unless they are numbered 1, 2, 3, ... without a gap."""
    steps = []
    for path in sorted(directory.glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise Internal(f"{path.name} is not named NNNN_name.sql.")
        steps.append(Migration(number=int(match[1]), name=match[2], sql=path.read_text(encoding="utf-8")))
    if [step.number for step in steps] != list(range(1, len(steps) + 1)):
        raise Internal(f"The migrations in {directory} are not numbered from 0001 without a gap.")
    return tuple(steps)


def check_owner(path: Path) -> None:
    """Raise Conflict (reason `foreign_database`) if `path` holds something that is not ours; never writes.

    A missing or empty file, and an SQLite file without any table, are free to take.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return
    if not header:
        return
    if header.startswith(_MAGIC):
        owner = int.from_bytes(header[68:72], "big")
        if owner == APPLICATION_ID or (owner == 0 and _is_bare(path)):
            return
    raise Conflict(
        f"{path} was made by another program. It is left alone; choose another home (KANDEV_HOME).",
        reason="foreign_database",
        path=str(path),
    )


def migrate(connection: sqlite3.Connection, steps: tuple[Migration, ...], *, backups: Path) -> Migrated:
    """Bring the database to the last of `steps`. `connection` is in autocommit mode, with foreign keys off.

    Raises Conflict (reason `newer_database`) if a later version of the program wrote it, and sqlite3.Error if a step
    fails; the steps before it stay done.
    """
    before = _version(connection)
    if before > len(steps):
        raise Conflict(
            f"The database is of version {before}, and this program knows {len(steps)}. A later version of kandev "
            "wrote it: install that version, or put a copy from backups/ in its place.",
            reason="newer_database",
            found=before,
            known=len(steps),
        )
    if before == len(steps):
        return Migrated(before=before, after=before)
    backup = _backup(connection, before, backups) if before else None
    for step in steps[before:]:
        _apply(connection, step)
    return Migrated(before=before, after=len(steps), backup=backup)


def copy_database(connection: sqlite3.Connection, target: Path) -> None:
    """Write a consistent, compact copy to `target` (0600). It appears under its name only when it is whole.

    Raises Conflict (reason `file_exists`), and sqlite3.Error or OSError if the copy fails.
    """
    if target.exists():
        raise Conflict(f"{target} exists already; choose another name.", reason="file_exists")
    partial = target.with_name(target.name + ".part")
    partial.unlink(missing_ok=True)
    # VACUUM INTO takes an empty file, so the mode is right before the first byte.
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        connection.execute("VACUUM INTO ?", (str(partial),))
        _sync(partial)
        partial.rename(target)
        _sync(target.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _apply(connection: sqlite3.Connection, step: Migration) -> None:
    try:
        # executescript commits what is open before it starts, so the transaction is begun inside of it.
        connection.executescript(f"BEGIN IMMEDIATE;\n{step.sql}\n;")
        _check_applied(connection, step)
        connection.execute(f"PRAGMA user_version = {step.number}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _check_applied(connection: sqlite3.Connection, step: Migration) -> None:
    if not connection.in_transaction:
        raise Internal(f"Migration {step.number:04} ends its own transaction.")
    # Foreign keys are off meanwhile, so that a step may build a table anew under its old name.
    broken = connection.execute("PRAGMA foreign_key_check").fetchone()
    if broken is not None:
        raise sqlite3.IntegrityError(f"Migration {step.number:04} leaves rows of {broken[0]} without their parent.")


def _backup(connection: sqlite3.Connection, version: int, backups: Path) -> Path:
    backups.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    target = backups / f"kandev-{stamp}-v{version:04}.db"
    copy_database(connection, target)
    # The names sort by time; only names that we could have given are touched.
    for old in sorted(backups.glob("kandev-*Z-v[0-9][0-9][0-9][0-9].db"))[:-BACKUPS_KEPT]:
        old.unlink(missing_ok=True)
    return target


def _is_bare(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        return False
    # `immutable` keeps SQLite from making files beside a database that is not ours.
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        try:
            return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None
        except sqlite3.DatabaseError:
            return False


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
