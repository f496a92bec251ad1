"""Search in titles and transcripts: the index is filled behind the work, in pieces, and caught up before a search.

Whoever closes a message notes it (`search_note`); triggers note titles, and take out what is deleted (migration 0004).
Filling the index comes later: an agent that streams does not wait for it.
"""

import asyncio
import re
import time
from collections.abc import Sequence

import msgspec
import structlog

from kandev.errors import StorageFull, StorageLocked, Unavailable
from kandev.protocols.jsonrpc import clean_text
from kandev.store.database import Database, Row, Tx

HITS = 50
TITLES = 10
PIECE = 64
"""Entries that one commit puts into the index: some milliseconds of the writer."""
REST_S = 2.0
LATEST_S = 30.0
"""What turns left is put into the index once none has ended for REST_S, at the latest after LATEST_S."""
CATCH_UP_S = 0.25
"""What a search may spend on what is not in the index yet."""
EXCERPT_CHARS = 300
WORDS = 16
WORD_CHARS = 100
PREFIX_CHARS = 3
"""From so many Latin letters on a word is the beginning of words too."""

_BEGIN, _END = "\x02", "\x03"
_MARKS = re.compile(f"[{_BEGIN}{_END}]")
_NOT_PRINTED = re.compile(r"[\x00-\x20\x7f-\x9f]+")

log = structlog.get_logger(__name__)


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """Where a text was found. `type` is that of the message, or `title`: then `id` is a task's and `seq` null.

    `title` is the task's. `session_id` of a title is the newest session of the task, '' where it has none. `marks`
    are what was looked for in the excerpt: [first, length], in characters.
    """

    id: str
    session_id: str
    task_id: str
    title: str
    seq: int | None
    author_type: str
    type: str
    created_at: str
    excerpt: str
    marks: list[tuple[int, int]]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Titles first, then messages, each newest first. `complete` is false while older entries wait for the index."""

    hits: list[Hit]
    complete: bool


class Search:
    """Finds, and keeps the index filled. `run` is for the life of the backend; `wake` tells it that a turn ended."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._woken = asyncio.Event()

    async def find(self, text: str, task_id: str | None = None) -> Found:
        """Return where all words of `text` begin words of a title or a message; short ones are whole words.

        Any text may be asked for.
        """
        words = words_of(text)
        if not words:
            return Found(hits=[], complete=True)
        complete = await self._catch_up()
        scope = task_id or ""
        titles = await self._db.scan("search_titles", query=_query("title", words), task_id=scope, limit=TITLES)
        messages = await self._db.scan("search_messages", query=_query("content", words), task_id=scope, limit=HITS)
        return Found(hits=[_hit(row) for row in (*titles, *messages)][:HITS], complete=complete)

    def wake(self) -> None:
        """Have what was said put into the index soon."""
        self._woken.set()

    async def run(self) -> None:
        """Fill the index after each turn, and first with what an older program left. Rests as long as it works."""
        while True:
            try:
                await self._fill()
            except (StorageFull, StorageLocked, Unavailable) as error:
                log.info("search.waits", error=error.message)  # the next turn, or a search, tries again
            await self._woken.wait()
            await self._quiet()

    async def _quiet(self) -> None:
        deadline = time.monotonic() + LATEST_S
        while self._woken.is_set() and time.monotonic() < deadline:
            self._woken.clear()
            await asyncio.sleep(REST_S)

    async def _fill(self) -> None:
        while True:
            began = time.monotonic()
            if not await self._index_piece():
                return
            await asyncio.sleep(time.monotonic() - began)

    async def _index_piece(self) -> bool:
        return await self._db.write(_put_piece)

    async def _catch_up(self) -> bool:
        """Index what waits, for a moment; the answer says whether nothing waits any more."""
        deadline = time.monotonic() + CATCH_UP_S
        try:
            while time.monotonic() < deadline:
                if self._db.one("search_waiting", limit=1)["last"] is None:  # type: ignore[index]  # max() has a row
                    return True
                await self._index_piece()
        except (StorageFull, StorageLocked, Unavailable):
            return False  # what is in the index can be read all the same
        return False


def words_of(text: str) -> Sequence[str]:
    """Return the words to look for: at most 16, of at most 100 characters, each with a letter or a digit."""
    words = _NOT_PRINTED.sub(" ", clean_text(text)).split()
    return [word[:WORD_CHARS] for word in words if any(character.isalnum() for character in word)][:WORDS]


def _query(column: str, words: Sequence[str]) -> str:
    # In quotes nothing is an operator. The index takes signs inside a word for gaps: it becomes a phrase.
    return f"{column} : ({' '.join(map(_phrase, words))})"


def _phrase(word: str) -> str:
    quoted = '"' + word.replace('"', '""') + '"'
    # Half of all words begin with some letter: reading where all of them stand takes seconds.
    return quoted if word.isascii() and len(word) < PREFIX_CHARS else f"{quoted} *"


def _put_piece(tx: Tx) -> bool:
    """Put the next entries into the index; False if there are none."""
    row = tx.one("search_waiting", limit=PIECE)
    if row is None or row["last"] is None:
        return False
    tx.run("search_fill", last=row["last"])
    tx.run("search_advance", last=row["last"])
    return True


def _hit(row: Row) -> Hit:
    excerpt, marks = _unmarked(row["marked"] or "")
    fields = {name: row[name] for name in row.keys() if name != "marked"}  # noqa: SIM118 - a Row iterates over values
    return Hit(**fields, excerpt=excerpt, marks=marks)


def _unmarked(marked: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the excerpt without its marks, and where they were. Marks that the text itself has are dropped too."""
    plain: list[str] = []
    marks: list[tuple[int, int]] = []
    begun, length = -1, 0
    for part in re.split(f"({_MARKS.pattern})", marked):
        if part == _BEGIN:
            begun = length
        elif part == _END and begun >= 0:
            marks.append((begun, length - begun))
            begun = -1
        elif part not in {_BEGIN, _END}:
            plain.append(part)
            length += len(part)
    excerpt = "".join(plain)[:EXCERPT_CHARS]
    return excerpt, [(first, size) for first, size in marks if first + size <= len(excerpt)]
