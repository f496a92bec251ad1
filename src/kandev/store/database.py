"""What a database is to the rest of the program: two protocols, and the file of named statements.

A statement is known by its name only. They stand in one `.sql` text:

    -- name: session_get
    SELECT * FROM task_sessions WHERE id = :id;
"""

import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kandev.errors import Internal

T = TypeVar("T")

Row = sqlite3.Row
"""A row: `row["column"]`, `row.keys()`, `dict(row)`. Cheaper than a dict, and safe to hand to another thread."""

Statements = Mapping[str, str]
"""Name to SQL, as `parse_statements` made it."""

_NAME_LINE = re.compile(r"^--[ \t]*name[ \t]*:(.*)$", re.MULTILINE)
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Tx(Protocol):
    """The statements of one job. Valid only inside that job, on the writer's thread."""

    def one(self, name: str, /, **args: Any) -> Row | None:
        """Return the first row of a SELECT or of a statement with RETURNING; None if there is none."""

    def all(self, name: str, /, **args: Any) -> list[Row]:
        """Return every row."""

    def run(self, name: str, /, **args: Any) -> int:
        """Run a statement that returns no rows; return how many rows it changed."""

    def many(self, name: str, rows: Iterable[Mapping[str, Any]], /) -> None:
        """Run a statement once for each of `rows`."""


class Database(Protocol):
    """One writer, which commits in groups, and readers beside it.

    Every call raises StorageFull, StorageLocked or Unavailable (reason `storage_failed`) when the file cannot be
    used just now; nothing is lost by that, and the same call may succeed later (HIST-12). A KeyError is an unknown
    statement. Constraint violations are raised as sqlite3.IntegrityError.
    """

    async def write(self, job: Callable[[Tx], T], /) -> T:
        """Run `job` on the writer's thread and return its result once it is committed to the disk.

        Jobs that wait together share one commit. Each has a savepoint of its own: an exception undoes this job
        alone and is raised here. A read after the return sees what was written. A caller that is cancelled while
        it waits does not undo its job: it may be committed or not, as after any lost answer.
        """

    def one(self, name: str, /, **args: Any) -> Row | None:
        """Read one row by key, in the loop; microseconds."""

    def all(self, name: str, /, **args: Any) -> list[Row]:
        """Read a few rows by an index, in the loop."""

    def moment(self) -> AbstractContextManager[None]:
        """Let all reads of a block see one moment: what is committed meanwhile is seen behind it.

        The block awaits nothing. One inside another one is that one's moment.
        """

    async def scan(self, name: str, /, **args: Any) -> list[Row]:
        """Read many rows, or by no index, on a reader's thread. Scans take turns."""

    async def backup(self, path: Path, /) -> None:
        """Write a consistent copy of the database to `path` (0600), which must not exist."""

    async def aclose(self) -> None:
        """Finish the jobs that wait, then close. Jobs that come later get Stopping."""


def parse_statements(text: str) -> dict[str, str]:
    """Return the named statements of `text`.

    Raises Internal for a repeated or unreadable name, for a name without a statement, for two statements under one
    name, and for SQL that stands before the first name.
    """
    heads = list(_NAME_LINE.finditer(text))
    before = text[: heads[0].start()] if heads else text
    if _without_comments(before):
        raise Internal("There is SQL before the first '-- name:' line.")
    found: dict[str, str] = {}
    for at, head in enumerate(heads):
        end = heads[at + 1].start() if at + 1 < len(heads) else len(text)
        name = head.group(1).strip()
        sql = text[head.end() : end].strip()
        if not _NAME.fullmatch(name):
            raise Internal(f"A statement's name is not readable: {name!r}.")
        if name in found:
            raise Internal(f"Two statements are named {name}.")
        _check_single(name, sql)
        found[name] = sql
    return found


def load_statements(path: Path) -> dict[str, str]:
    """Read and parse the file of named statements."""
    return parse_statements(path.read_text(encoding="utf-8"))


def _check_single(name: str, sql: str) -> None:
    body = _without_comments(sql)
    if not body:
        raise Internal(f"The statement {name} is empty.")
    if not sqlite3.complete_statement(body):
        raise Internal(f"The statement {name} does not end with a semicolon, or has an open quote.")
    head, _, _ = body.rpartition(";")
    # Only a semicolon outside of quotes ends a statement, and complete_statement knows which one does.
    cuts = (head[: at + 1] for at, character in enumerate(head) if character == ";")
    if any(sqlite3.complete_statement(cut) for cut in cuts):
        raise Internal(f"The name {name} stands over more than one statement.")


def _without_comments(sql: str) -> str:
    lines = (line for line in sql.splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(lines).strip()
