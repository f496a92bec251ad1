"""The writer: one thread, one connection, and one commit for all the jobs that wait.

A commit to the disk costs some 130 µs, a job some ten. While one commit runs, the next jobs gather; they share the
next one. So a lone job is committed at once, and twenty tasks do not wait for twenty commits.
"""

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from kandev.errors import Stopping
from kandev.store.database import Row, Statements, Tx
from kandev.store.failures import database_failure

T = TypeVar("T")

GROUP_LIMIT = 512
"""Jobs. Bounds how long the first job of a group waits for its neighbours."""


class GroupWriter:
    """Owns the thread. The connection is only lent: its owner closes it after `aclose`.

    `on_commit` is called on the thread with the seconds that each good commit took, its jobs among them.
    """

    def __init__(self, connection: sqlite3.Connection, statements: Statements, path: Path) -> None:
        self._connection = connection
        self._statements = statements
        self._path = path
        self.on_commit: Callable[[float], None] = lambda _seconds: None
        self._jobs: queue.SimpleQueue[_Pending[Any] | None] = queue.SimpleQueue()
        self._closing = False
        self._ended = threading.Event()
        # A daemon, so that a program which ends without closing ends; SQLite survives that as it survives a kill.
        self._thread = threading.Thread(target=self._serve, name="kandev-writer", daemon=True)

    def start(self) -> None:
        """Start the thread. It blocks on its queue, so an idle writer costs nothing."""
        self._thread.start()

    def submit(self, job: Callable[[Tx], T]) -> asyncio.Future[T]:
        """Queue `job`; the future is resolved after the commit, in the loop that runs now. Raises Stopping."""
        if self._closing:
            raise Stopping
        pending = _Pending(job, asyncio.get_running_loop().create_future())
        self._jobs.put(pending)
        return pending.future

    async def aclose(self) -> None:
        """Wait until what was submitted is committed and the thread has ended. May be called again."""
        if not self._closing:
            self._closing = True
            self._jobs.put(None)
        await asyncio.to_thread(self._ended.wait)

    def _serve(self) -> None:
        try:
            while group := self._next_group():
                self._commit(group)
                _publish(group)
        finally:
            self._ended.set()

    def _next_group(self) -> list["_Pending[Any]"]:
        """Wait for a job, and take all that wait with it. Empty once the end is reached."""
        group: list[_Pending[Any]] = []
        item = self._jobs.get()
        while item is not None:
            group.append(item)
            if len(group) == GROUP_LIMIT:
                return group
            try:
                item = self._jobs.get_nowait()
            except queue.Empty:
                return group
        if group:
            self._jobs.put(None)  # nothing is submitted after the end, so it stays the last item
        return group

    def _commit(self, group: list["_Pending[Any]"]) -> None:
        tx = _Transaction(self._connection, self._statements)
        began = time.perf_counter()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for pending in group:
                self._run(pending, tx)
            self._connection.execute("COMMIT")
            self.on_commit(time.perf_counter() - began)
        except sqlite3.Error as exc:
            self._undo()
            for pending in group:
                pending.fail(database_failure(exc, self._path))

    def _run(self, pending: "_Pending[Any]", tx: "_Transaction") -> None:
        self._connection.execute("SAVEPOINT job")
        try:
            pending.result = pending.job(tx)
        except BaseException as exc:  # noqa: BLE001 - whatever a job raises is its caller's, and the thread lives on
            pending.fail(_for_future(exc, self._path))
        if tx.lost is not None:
            raise tx.lost
        if pending.error is not None:
            self._connection.execute("ROLLBACK TO job")
        self._connection.execute("RELEASE job")

    def _undo(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                # SQLite leaves the transaction even when this reports an error of the disk.
                return


class _Pending(Generic[T]):
    """A job, and what became of it."""

    __slots__ = ("error", "future", "job", "result")

    def __init__(self, job: Callable[[Tx], T], future: asyncio.Future[T]) -> None:
        self.job = job
        self.future = future
        self.result: T | None = None
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """Keep the first error: a job's own comes before that of its group."""
        if self.error is None:
            self.error = error


class _Transaction:
    """Tx on the writer's connection, for one group. `lost` is the error for which SQLite undid the whole group."""

    def __init__(self, connection: sqlite3.Connection, statements: Statements) -> None:
        self._connection = connection
        self._statements = statements
        self.lost: sqlite3.Error | None = None

    def one(self, name: str, /, **args: Any) -> Row | None:
        cursor = self._execute(self._connection.execute, name, args)
        row: Row | None = cursor.fetchone()
        cursor.close()
        return row

    def all(self, name: str, /, **args: Any) -> list[Row]:
        return self._execute(self._connection.execute, name, args).fetchall()

    def run(self, name: str, /, **args: Any) -> int:
        return self._execute(self._connection.execute, name, args).rowcount

    def many(self, name: str, rows: Iterable[Mapping[str, Any]], /) -> None:
        self._execute(self._connection.executemany, name, rows)

    def _execute(self, call: Callable[[str, Any], sqlite3.Cursor], name: str, args: Any) -> sqlite3.Cursor:
        if self.lost is not None:
            # Outside of the transaction each further statement would commit by itself.
            raise self.lost
        try:
            return call(self._statements[name], args)
        except sqlite3.Error as exc:
            if not self._connection.in_transaction:
                self.lost = exc
            raise


def _for_future(error: BaseException, path: Path) -> Exception:
    # A future refuses StopIteration, a CancelledError would look like the caller's own, and others end the loop.
    if isinstance(error, StopIteration) or not isinstance(error, Exception):
        return RuntimeError(f"The job raised {error!r}.")
    return database_failure(error, path)


def _publish(group: list[_Pending[Any]]) -> None:
    loop = group[0].future.get_loop()
    try:
        loop.call_soon_threadsafe(_resolve, group)
    except RuntimeError:
        return  # the loop is closed: nobody waits any more


def _resolve(group: list[_Pending[Any]]) -> None:
    for pending in group:
        if pending.future.done():
            continue  # its caller was cancelled
        if pending.error is not None:
            pending.future.set_exception(pending.error)
        else:
            pending.future.set_result(pending.result)
