"""SessionHistoryManager: the recorded conversation of each session, and the resume context made of it.

Specification, "History Injection". The files are `$KANDEV_HOME/sessions/{session_id}.jsonl`.
"""

import asyncio
import contextlib
import os
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from kandev.domain.history import CONTEXT_LIMIT, Boundary, Entry, Rendered, render_resume_context
from kandev.domain.models import now
from kandev.errors import Invalid
from kandev.lifecycle.history_file import READ_LIMIT, HistoryFile
from kandev.store.failures import file_failure

T = TypeVar("T")

OPEN_FILES = 128
"""Descriptors kept; a session that was not used for longest gives its one up."""

_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


class SessionHistoryManager:
    """Owns the directory of history files. Calls about one session take turns; none of them blocks the loop for long.

    Every call raises Invalid for an id that could be a path (SEC-2), StorageFull when there is no room, and
    Unavailable when a file cannot be used. What was recorded before stays whole (HIST-12).
    """

    def __init__(self, directory: Path, *, limit: int = CONTEXT_LIMIT) -> None:
        self._directory = directory
        self._limit = limit
        self._used: OrderedDict[str, _Used] = OrderedDict()
        self._deleted: set[str] = set()

    async def append(self, session_id: str, entry: Entry) -> None:
        """Record one entry, after the commit of its message. A line that was torn before is left behind (HIST-5)."""
        async with self._file(session_id) as file:
            if session_id not in self._deleted:
                file.append(entry)  # a microsecond or two: no thread

    def has_history(self, session_id: str) -> bool:
        """True if there is anything to tell an agent: an entry, and no fresh start behind it."""
        return HistoryFile(self._path(session_id)).has_history()

    async def read(self, session_id: str, *, newest_bytes: int = READ_LIMIT) -> list[Entry]:
        """Return the entries within the last `newest_bytes` bytes of the file, boundaries among them (HIST-11)."""
        async with self._file(session_id) as file:
            return (await _on_thread(lambda: file.read(newest_bytes))).entries

    async def generate_resume_context(self, session_id: str, prompt: str, *, message_id: str = "") -> Rendered:
        """Return `prompt` inside the resume context.

        `message_id` is the prompt's own message: its entry is no history, also when the prompt is sent a second
        time (PROMPT-6). Without any history the text is the prompt alone.
        """
        async with self._file(session_id) as file:
            return await _on_thread(lambda: self._render(file, prompt, message_id))

    async def complete(self, session_id: str, expected: Sequence[Entry]) -> int:
        """Record those of `expected` that are missing, in their place; return how many.

        `expected` are the session's messages as entries, in order, or the newest of them. A backend that was killed
        between the commit and the append has left such a gap (CRASH-8).
        """
        async with self._file(session_id) as file:
            if session_id in self._deleted:
                return 0
            return await _on_thread(lambda: file.complete(expected))

    async def boundary(self, session_id: str) -> None:
        """Record a fresh start, on the disk when this returns: what came before is told to no agent again."""
        async with self._file(session_id) as file:
            if session_id not in self._deleted:
                await _on_thread(lambda: _append_synced(file, Boundary(time=now())))

    async def sync(self, session_id: str) -> None:
        """Bring what was recorded to the disk; at the end of a turn."""
        async with self._file(session_id) as file:
            await _on_thread(file.sync)

    async def delete(self, session_id: str) -> None:
        """Remove the session's history. What comes late for it is not recorded: a deleted session leaves no text."""
        async with self._file(session_id) as file:
            self._deleted.add(session_id)
            file.delete()

    def keep(self, session_id: str) -> None:
        """Record again for a session whose deletion could not be carried out; `complete` brings back what it had."""
        self._deleted.discard(session_id)

    async def aclose(self) -> None:
        """Close every descriptor. What was appended is in the files."""
        for used in list(self._used.values()):
            async with used.turn:
                used.file.close()

    def _path(self, session_id: str) -> Path:
        if not _SESSION_ID.fullmatch(session_id):
            raise Invalid("A session id has letters, digits, hyphens and underscores only.", field="session_id")
        return self._directory / f"{session_id}.jsonl"

    @contextlib.asynccontextmanager
    async def _file(self, session_id: str) -> AsyncIterator[HistoryFile]:
        used = self._used.get(session_id)
        if used is None:
            path = self._path(session_id)
            _make_directory(self._directory)
            used = self._used[session_id] = _Used(HistoryFile(path))
        self._used.move_to_end(session_id)
        used.users += 1
        try:
            async with used.turn:
                yield used.file
        finally:
            used.users -= 1
            self._give_up()

    def _give_up(self) -> None:
        while len(self._used) > OPEN_FILES:
            idle = next((key for key, used in self._used.items() if not used.users), None)
            if idle is None:
                return
            self._used.pop(idle).file.close()

    def _render(self, file: HistoryFile, prompt: str, message_id: str) -> Rendered:
        newest = file.read(READ_LIMIT)
        told = [entry for entry in newest.entries if not message_id or _message_of(entry) != message_id]
        return render_resume_context(told, prompt, limit=self._limit, unread=newest.unread)


class _Used:
    """A file, whose turn it is, and how many wait or work."""

    def __init__(self, file: HistoryFile) -> None:
        self.file = file
        self.turn = asyncio.Lock()
        self.users = 0


def _message_of(entry: Entry) -> str:
    return "" if isinstance(entry, Boundary) else entry.message_id


def _append_synced(file: HistoryFile, entry: Entry) -> None:
    file.append(entry)
    file.sync()


def _make_directory(directory: Path) -> None:
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as exc:
        raise file_failure(exc, directory) from exc


async def _on_thread(call: Callable[[], T]) -> T:
    """Run `call` on a thread. A caller that is cancelled still waits: the file is not free before the call is over."""
    work = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        work.exception()  # its caller is gone, so nobody else asks for it
        raise
