"""Search on a real file: what is found, when it is in the index, and that no text of a person breaks it."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kandev.domain.models import Message, SessionId, new_id, new_message_id, now
from kandev.lifecycle.batch import Applied, PutMessages
from kandev.orchestrator import search as module
from kandev.orchestrator.messages import MessageService
from kandev.orchestrator.search import Hit, Search, words_of
from kandev.store.database import load_statements
from kandev.store.sqlite import SqliteDatabase
from stored import DIRECTORY, StoredSession, chunk, stored


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    """One database for the module; each test has a session of its own in it."""
    with stored(tmp_path_factory.mktemp("search")) as opened:
        yield opened


class Searched:
    """A session, what is put into it, and what is found in its task."""

    def __init__(self, database: SqliteDatabase, session: StoredSession) -> None:
        self.database = database
        self.session = session
        self.search = Search(database)

    async def say(self, content: str, *, type_: str = "message") -> str:
        """Store a message that is whole, and return its id."""
        return await self._store(content, type_, self.session.store.next_seq(self.session.ref.session_id))

    async def _store(self, content: str, type_: str, seq: int) -> str:
        message = Message(
            id=new_message_id(),
            session_id=SessionId(self.session.ref.session_id),
            seq=seq,
            author_type="user",
            type=type_,
            content=content,
            created_at=now(),
            updated_at=now(),
        )
        puts = PutMessages(self.session.ref.task_id, "message_insert")
        puts.messages[message.id] = message
        await self.database.write(lambda tx: puts(tx, Applied()))
        return message.id

    async def find(self, text: str) -> list[Hit]:
        """What is found in this task."""
        return (await self.search.find(text, self.session.ref.task_id)).hits

    async def title(self, title: str) -> None:
        """Give the task another title."""
        task_id = self.session.ref.task_id
        await self.database.write(lambda tx: tx.one("task_set_title", id=task_id, title=title, now=now()))

    def check_index(self) -> None:
        """SQLite compares the index with the texts it was made from."""
        with contextlib.closing(sqlite3.connect(self.database.path)) as connection:
            connection.execute("INSERT INTO search_index (search_index, rank) VALUES ('integrity-check', 1)")


@pytest.fixture
async def searched(database: SqliteDatabase) -> AsyncIterator[Searched]:
    one = Searched(database, await StoredSession.create(database))
    yield one
    one.check_index()


async def test_words_are_found_by_their_beginning_with_place_and_excerpt(searched: Searched) -> None:
    """All words must be there, in any order and case, accents or not; the marks say where in the excerpt."""
    message_id = await searched.say("Der Café hat einen Quittenbaum im Garten")
    (hit,) = await searched.find("quitten CAFE")
    assert (hit.id, hit.seq, hit.type) == (message_id, 1, "message")
    assert hit.excerpt == "Der Café hat einen Quittenbaum im Garten"
    assert [hit.excerpt[first : first + size] for first, size in hit.marks] == ["Café", "Quittenbaum"]
    assert await searched.find("quitten birne") == []
    assert await searched.find("baum") == []
    assert await searched.find("ha") == []
    assert len(await searched.find("im")) == 1


async def test_streaming_text_is_found_once_its_message_closes(searched: Searched) -> None:
    """Not before; and then the whole of it, also words that came in two pieces."""
    session = searched.session
    reader = session.reader()
    reader.feed([chunk("A medlar is like a quin")])
    await session.commit(reader)
    assert await searched.find("medlar") == []
    reader.feed([chunk("ceberry")])
    await session.commit(reader)
    reader.transcript.close_text()
    await session.commit(reader)
    (hit,) = await searched.find("medlar quinceberry")
    assert hit.author_type == "agent"


async def test_tool_calls_notices_and_queued_prompts_are_not_found(searched: Searched) -> None:
    """Only what person and agent said, and only what has a place to go to."""
    await searched.say("sloe", type_="tool_call")
    await searched.say("sloe", type_="status")
    service = MessageService(searched.session.store, kick=lambda _session_id: None, publish=lambda _events: None)
    queued = await service.add(searched.session.ref.task_id, searched.session.ref.session_id, "sloe")
    assert await searched.find("sloe") == []
    await searched.say("sloe", type_="thinking")
    assert [hit.type for hit in await searched.find("sloe")] == ["thinking"]
    await service.cancel_queued(searched.session.ref.session_id, queued.id)


async def test_messages_come_newest_first_behind_titles(searched: Searched) -> None:
    """A title's hit leads to the newest session of its task."""
    older, newer = await searched.say("rowan one"), await searched.say("rowan two")
    await searched.title("The rowan tree")
    title, *messages = await searched.find("rowan")
    assert (title.type, title.id, title.seq) == ("title", searched.session.ref.task_id, None)
    assert title.session_id == searched.session.ref.session_id
    assert [hit.id for hit in messages] == [newer, older]


async def test_a_former_title_is_not_found(searched: Searched) -> None:
    """What is renamed is taken out and put in again, whether it was indexed before or still waited."""
    await searched.title("Elder")
    await searched.title("Hazel")
    assert await searched.find("elder") == []
    assert len(await searched.find("hazel")) == 1
    await searched.title("Willow")
    assert await searched.find("hazel") == []
    assert len(await searched.find("willow")) == 1


async def test_a_prompt_is_found_once_a_turn_has_taken_it(searched: Searched) -> None:
    """While it is queued it has no place to go to."""
    turn, _ = await searched.session.prompt(searched.session.reader(), "Where does the serviceberry grow?")
    (hit,) = await searched.find("serviceberry")
    assert (hit.id, hit.author_type) == (turn.message_id, "user")


async def test_what_is_deleted_is_not_in_the_index_any_more(searched: Searched) -> None:
    """Whether it was indexed before or still waited; a deleted task takes everything with it."""
    await searched.say("damson indexed")
    await searched.title("damson title")
    assert len(await searched.find("damson")) == 2
    await searched.say("damson waiting")
    task_id = searched.session.ref.task_id
    await searched.database.write(lambda tx: tx.run("task_delete", id=task_id))
    with contextlib.closing(sqlite3.connect(searched.database.path)) as connection:
        left = connection.execute("SELECT count(*) FROM search_index WHERE search_index MATCH 'damson'").fetchone()
        kept = connection.execute("SELECT count(*) FROM searchable WHERE title_of = ?", (task_id,)).fetchone()
    assert left == kept == (0,)


HOSTILE = [
    '"', '""', "'", "a OR", "AND", "NOT x", "NEAR(a b, 2)", "content:x", "title : x", "^x", "x*", "*", "-x", "(x", "x)",
    "{content}: x", "x\x00y", "\x02\x03", "\x1b[31m", "\ud800", "🙂", "…", "%", "_", "\\", ";--", "a" * 100_000,
    "x " * 50_000, "東京タワー", "q\u0301x", "\u202eabc", "--", "\n", "+", '" OR "1"="1', "ﬁ", "①", "²", "\U0010fffd",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_no_text_breaks_the_search(searched: Searched, text: str) -> None:
    """Operators, quotes, control characters, lone surrogates, very long ones: looked for as they stand."""
    await searched.say("harmless")
    assert await searched.find(text) == []
    assert await searched.find(f"harm {text}") in ([], await searched.find("harmless"))


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("東京タワーへ行く", "東京"),
        ("call kandev.store.write()", "store.write"),
        ("the x_y variable", "x_y"),
        ('say "yes" and OR', '"yes" OR'),
        ("C:\\Users\\me", "\\users\\"),
    ],
)
async def test_signs_of_a_query_are_text(searched: Searched, said: str, asked: str) -> None:
    """A run of Chinese or Japanese is found by its beginning; signs within a word make a phrase of it."""
    await searched.say(said)
    assert len(await searched.find(asked)) == 1


async def test_only_so_much_of_a_text_is_kept(searched: Searched) -> None:
    """16,384 characters of each; deleting a longer one still takes out all that was put in."""
    message_id = await searched.say("begin " + "x " * 20_000 + "conclusion")
    assert len(await searched.find("begin")) == 1
    assert await searched.find("conclusion") == []
    await searched.database.write(lambda tx: tx.run("message_delete", id=message_id))
    assert await searched.find("begin") == []


async def test_marks_in_a_text_itself_harm_nobody(searched: Searched) -> None:
    """The excerpt is plain, and its marks lie within it."""
    await searched.say("\x03\x02 bay \x02\x02leaf\x03 " + "y" * 1000)
    (hit,) = await searched.find("leaf")
    assert "\x02" not in hit.excerpt
    assert "\x03" not in hit.excerpt
    assert "leaf" in [hit.excerpt[first : first + size] for first, size in hit.marks]
    assert len(hit.excerpt) <= module.EXCERPT_CHARS


async def test_what_waits_is_indexed_behind_the_work(searched: Searched, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start what an older program left, and after a wake what came since."""
    monkeypatch.setattr(module, "REST_S", 0.0)
    monkeypatch.setattr(module, "CATCH_UP_S", -1.0)
    for number in range(module.PIECE + 1):
        await searched.say(f"almond {number}")
    assert not (await searched.search.find("almond")).complete
    running = asyncio.create_task(searched.search.run())
    try:
        await _nothing_waits(searched.database)
        assert len(await searched.find(f"almond {module.PIECE}")) == 1
        await searched.say("walnut")
        searched.search.wake()
        await _nothing_waits(searched.database)
        assert len(await searched.find("walnut")) == 1
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _nothing_waits(database: SqliteDatabase) -> None:
    async with asyncio.timeout(20):
        while database.all("search_waiting", limit=1)[0]["last"] is not None:
            await asyncio.sleep(0.01)


async def test_an_older_home_is_searchable_after_its_migration(tmp_path: Path) -> None:
    """What it has is noted by the migration, titles and closed messages alike; a vacuumed copy finds the same."""
    older = tmp_path / "older"
    older.mkdir()
    for step in sorted((DIRECTORY / "migrations").glob("000[123]_*.sql")):
        (older / step.name).write_text(step.read_text())
    path, task_id, session_id = tmp_path / "kandev.db", new_id(), new_id()
    await SqliteDatabase.open(path, {}, older).aclose()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO tasks (id, title, description, state, created_at, updated_at)"
            " VALUES (?, 'Mulberry', '', 'TODO', '1', '1')",
            (task_id,),
        )
        connection.execute(
            "INSERT INTO task_sessions (id, task_id, agent, agent_config, runtime, state, created_at, updated_at)"
            " VALUES (?, ?, 'a', '{}', 'standalone', 'CREATED', '1', '1')",
            (session_id, task_id),
        )
        connection.executemany(
            "INSERT INTO messages (id, session_id, seq, author_type, type, content, metadata, created_at, updated_at)"
            " VALUES (?, ?, ?, 'agent', ?, 'mulberry jam', ?, '1', '1')",
            [
                ("closed", session_id, 1, "message", "{}"),
                ("open", session_id, 2, "message", '{"streaming":true}'),
                ("tool", session_id, 3, "tool_call", "{}"),
            ],
        )
    statements = load_statements(DIRECTORY / "queries.sql")
    async with SqliteDatabase.open(path, statements, DIRECTORY / "migrations") as database:
        found = await Search(database).find("mulberry")
        await database.backup(tmp_path / "copy.db")
    assert [hit.id for hit in found.hits] == [task_id, "closed"]
    async with SqliteDatabase.open(tmp_path / "copy.db", statements, DIRECTORY / "migrations") as copy:
        assert await Search(copy).find("mulberry") == found


def test_words_are_bounded() -> None:
    """Sixteen words of a hundred characters; without a letter or a digit it is no word."""
    assert words_of("a -- b\x00c") == ["a", "b", "c"]
    assert len(words_of("w " * 100)) == module.WORDS
    assert words_of("w" * 1000) == ["w" * module.WORD_CHARS]
