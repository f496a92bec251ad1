import asyncio
import contextlib
import os
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kandev.domain.history import AgentMessage, Boundary, Entry, ToolResult, UserMessage, encode_entry
from kandev.errors import Invalid, StorageFull, Unavailable
from kandev.lifecycle import history_file, session_history
from kandev.lifecycle.session_history import SessionHistoryManager


@pytest.fixture
async def history(tmp_path: Path) -> AsyncIterator[SessionHistoryManager]:
    manager = SessionHistoryManager(tmp_path / "sessions")
    yield manager
    await manager.aclose()


def file_of(tmp_path: Path, session_id: str = "s1") -> Path:
    return tmp_path / "sessions" / f"{session_id}.jsonl"


def user(number: int, content: str = "hello") -> UserMessage:
    return UserMessage(message_id=f"m{number}", time=f"2026-11-29T10:00:00.{number:03}Z", content=content)


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes: a write there is cut short, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_what_is_appended_is_read(history: SessionHistoryManager, tmp_path: Path) -> None:
    """Entries come back in order, and each is in the file when append returns."""
    entries: list[Entry] = [user(1), AgentMessage(message_id="m2", content="hi"), ToolResult(name="t", content="1")]
    for entry in entries:
        await history.append("s1", entry)
    assert file_of(tmp_path).read_bytes() == b"".join(encode_entry(entry) for entry in entries)
    assert await history.read("s1") == entries
    assert await history.read("s2") == []


async def test_tok_9_history_is_private(history: SessionHistoryManager, tmp_path: Path) -> None:
    """Files are 0600 and their directory is 0700, also after the file was written anew."""
    await history.append("s1", user(2))
    await history.complete("s1", [user(1), user(2)])
    await history.append("s1", user(3))
    assert file_of(tmp_path).stat().st_mode & 0o777 == 0o600
    assert file_of(tmp_path).parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(file_of(tmp_path).parent) == ["s1.jsonl"]


@pytest.mark.parametrize("session_id", ["", ".", "..", "../x", "a/b", "a.b", "a\0", "a\n", "-x", "ü", "x" * 129])
async def test_sec_2_an_id_is_never_a_path(history: SessionHistoryManager, tmp_path: Path, session_id: str) -> None:
    """Anything but letters, digits, hyphens and underscores is refused by every call, and touches no file."""
    calls = (
        history.append(session_id, user(1)), history.read(session_id), history.delete(session_id),
        history.boundary(session_id), history.sync(session_id), history.complete(session_id, [user(1)]),
        history.generate_resume_context(session_id, "go"),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(Invalid):
            await call
    with pytest.raises(Invalid):
        history.has_history(session_id)
    assert list(tmp_path.rglob("*")) == []


async def test_sec_2_a_link_is_not_followed(history: SessionHistoryManager, tmp_path: Path) -> None:
    """A link under the file's name does not lead an append to another file."""
    other = tmp_path / "other"
    other.write_text("mine")
    file_of(tmp_path).parent.mkdir()
    file_of(tmp_path).symlink_to(other)
    with pytest.raises(Unavailable):
        await history.append("s1", user(1))
    assert other.read_text() == "mine"


TAILS = [b'{"type":"user_me', b"\0" * 100, b'{"type":"user_message","content":"x"}'[:-1], b"rubbish"]


@pytest.mark.parametrize("tail", TAILS, ids=["torn", "nul", "almost", "rubbish"])
async def test_hist_5_a_torn_tail_is_left_behind(history: SessionHistoryManager, tmp_path: Path, tail: bytes) -> None:
    """The next append starts on a line of its own; entries before and after the torn one are used."""
    file_of(tmp_path).parent.mkdir()
    file_of(tmp_path).write_bytes(encode_entry(user(1)) + tail)
    assert history.has_history("s1")
    await history.append("s1", user(2))
    await history.append("s1", user(3))
    assert file_of(tmp_path).read_bytes().endswith(tail + b"\n" + encode_entry(user(2)) + encode_entry(user(3)))
    assert await history.read("s1") == [user(1), user(2), user(3)]


async def test_has_history_needs_something_to_tell(history: SessionHistoryManager, tmp_path: Path) -> None:
    """No file, an empty one, rubbish, and a fresh start are no history."""
    assert not history.has_history("s1")
    assert not file_of(tmp_path).parent.exists()
    file_of(tmp_path).parent.mkdir()
    for content in (b"", b"\0\0\0", b"rubbish\n", b"\n" * 200_000):
        file_of(tmp_path).write_bytes(content)
        assert not history.has_history("s1")
    await history.append("s1", user(1))
    assert history.has_history("s1")
    await history.boundary("s1")
    assert not history.has_history("s1")
    await history.append("s1", user(2))
    assert history.has_history("s1")
    with file_of(tmp_path).open("ab") as file:
        file.write(b"\0" * 200_000)
    assert history.has_history("s1"), "an entry before a long run of rubbish was not found"


async def test_the_context_tells_what_came_after_a_fresh_start(history: SessionHistoryManager) -> None:
    """A boundary hides what was before it; the prompt's own message is no history (PROMPT-6)."""
    await history.append("s1", user(1, "forget this"))
    await history.boundary("s1")
    await history.append("s1", user(2, "keep this"))
    await history.append("s1", user(3, "the prompt"))
    rendered = await history.generate_resume_context("s1", "the prompt", message_id="m3")
    assert (rendered.used, rendered.total) == (1, 1)
    assert "[USER]: keep this\n=== CURRENT REQUEST ===\nthe prompt\n" in rendered.text
    assert "forget" not in rendered.text


async def test_hist_9_a_context_of_one_prompt_is_the_prompt(history: SessionHistoryManager) -> None:
    """A first prompt that is sent again after it was recorded does not tell of itself."""
    await history.append("s1", user(1, "first"))
    assert (await history.generate_resume_context("s1", "first", message_id="m1")).text == "first"


async def test_hist_11_a_huge_history_is_read_from_its_end(
    history: SessionHistoryManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200,000 entries only the end is read; the context keeps its bound and knows how many there are."""
    file_of(tmp_path).parent.mkdir()
    with file_of(tmp_path).open("wb") as file:
        file.writelines(encode_entry(user(number, f"{number} " + "x" * 100)) for number in range(200_000))
    read: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        read.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    rendered = await history.generate_resume_context("s1", "go on")
    assert read == [history_file.READ_LIMIT]
    assert rendered.total == 200_000
    assert 0 < rendered.used < 500
    assert len(rendered.text) <= 24_000
    assert "[USER]: 199999 x" in rendered.text


@pytest.mark.parametrize("window", [1, 300, 2000])
async def test_hist_11_unread_entries_are_counted_from_the_boundary(
    history: SessionHistoryManager, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """However little is read, and wherever the counting is cut, older entries count from the fresh start on."""
    for number in range(5):
        await history.append("s1", user(number, '{"type":"boundary" in a text'))
    await history.boundary("s1")
    for number in range(5, 25):
        await history.append("s1", user(number))
    for chunk in (*range(20, 60), 1 << 20):
        monkeypatch.setattr(history_file, "_CHUNK", chunk)
        newest = history_file.HistoryFile(history._path("s1")).read(window)
        inside = [entry for entry in newest.entries if not isinstance(entry, Boundary)]
        assert len(inside) + newest.unread == 20
        assert inside == [user(number) for number in range(25 - len(inside), 25)]


async def test_crash_8_missing_entries_are_appended(history: SessionHistoryManager, tmp_path: Path) -> None:
    """What was committed and not recorded is added once, in one write; nothing is repeated."""
    expected = [user(number) for number in range(6)]
    await history.append("s1", expected[0])
    await history.append("s1", expected[1])
    inode = file_of(tmp_path).stat().st_ino
    assert await history.complete("s1", expected) == 4
    assert await history.complete("s1", expected) == 0
    assert await history.read("s1") == expected
    assert file_of(tmp_path).stat().st_ino == inode


async def test_crash_8_missing_entries_in_the_middle_go_to_their_place(
    history: SessionHistoryManager, tmp_path: Path
) -> None:
    """A gap is filled in order, before the boundary that followed it; the next append goes behind."""
    await history.append("s1", AgentMessage(message_id="old", content="older than what is asked for"))
    await history.append("s1", user(1))
    await history.append("s1", user(3))
    with file_of(tmp_path).open("ab") as file:
        file.write(b"rubbish\n" + encode_entry(Boundary(time="2026-11-29T10:00:00.005Z")))
    assert await history.complete("s1", [user(number) for number in (1, 2, 3, 4, 6)]) == 3
    await history.append("s1", user(7))
    read = await history.read("s1")
    assert [getattr(entry, "message_id", "boundary") for entry in read] == [
        "old", "m1", "m2", "m3", "m4", "boundary", "m6", "m7",
    ]  # fmt: skip


async def test_crash_8_what_was_said_before_a_fresh_start_stays_before_it(history: SessionHistoryManager) -> None:
    """The newest message before a boundary, recorded late, is not told after it."""
    await history.append("s1", user(1))
    await history.boundary("s1")
    assert await history.complete("s1", [user(1), user(2)]) == 1
    assert not history.has_history("s1")
    assert (await history.read("s1"))[:2] == [user(1), user(2)]


async def test_completing_nothing_makes_no_file(history: SessionHistoryManager, tmp_path: Path) -> None:
    """A session without messages has no history file, so none is injected."""
    assert await history.complete("s1", []) == 0
    assert not file_of(tmp_path).exists()
    assert await history.complete("s1", [user(1)]) == 1
    assert history.has_history("s1")


async def test_appends_while_it_is_completed_wait(history: SessionHistoryManager) -> None:
    """An entry that comes in while the file is written anew is not lost with the old file."""
    await history.append("s1", user(500))
    expected = [user(number) for number in range(501)]
    calls = [history.complete("s1", expected)] + [history.append("s1", user(number)) for number in range(600, 620)]
    await asyncio.gather(*calls)
    assert await history.read("s1") == expected + [user(number) for number in range(600, 620)]


async def test_a_cancelled_caller_frees_the_file_only_when_it_is_done(history: SessionHistoryManager) -> None:
    """The thread that writes the file anew is not overtaken by a later append."""
    await history.append("s1", user(999))
    expected = [user(number, "x" * 1000) for number in range(1000)]
    completing = asyncio.ensure_future(history.complete("s1", expected))
    while not history._used["s1"].turn.locked():
        await asyncio.sleep(0)
    completing.cancel()
    await history.append("s1", user(1000))
    assert completing.cancelled()
    assert await history.read("s1") == [*expected[:-1], user(999), user(1000)]


async def test_hist_12_no_room_is_one_clear_error(history: SessionHistoryManager, tmp_path: Path) -> None:
    """An entry that does not fit leaves nothing of itself; earlier ones stay, smaller and later ones are recorded."""
    await history.append("s1", user(1))
    before = file_of(tmp_path).read_bytes()
    with largest_file(len(before) + 500):
        with pytest.raises(StorageFull):
            await history.append("s1", user(2, "x" * 5000))
        assert file_of(tmp_path).read_bytes() == before
        await history.append("s1", user(3))
    await history.append("s1", user(2, "x" * 5000))
    assert await history.read("s1") == [user(1), user(3), user(2, "x" * 5000)]


async def test_hist_12_no_room_to_write_anew_keeps_the_old_file(history: SessionHistoryManager, tmp_path: Path) -> None:
    """A gap that cannot be filled for want of room stays a gap; it is filled when there is room."""
    await history.append("s1", user(9))
    before = file_of(tmp_path).read_bytes()
    expected = [user(1, "x" * 5000), user(9)]
    with largest_file(2000), pytest.raises(StorageFull):
        await history.complete("s1", expected)
    assert file_of(tmp_path).read_bytes() == before
    assert os.listdir(file_of(tmp_path).parent) == ["s1.jsonl"]
    assert await history.complete("s1", expected) == 1
    assert await history.read("s1") == expected


async def test_delete_removes_the_file(history: SessionHistoryManager, tmp_path: Path) -> None:
    """Deleting is allowed twice; another session is not concerned."""
    await history.append("s1", user(1))
    await history.append("s2", user(2))
    await history.delete("s1")
    await history.delete("s1")
    assert not file_of(tmp_path).exists()
    assert await history.read("s2") == [user(2)]


async def test_sync_is_allowed_at_any_time(history: SessionHistoryManager, tmp_path: Path) -> None:
    """Before anything was recorded, after it, and twice."""
    await history.sync("s1")
    assert not file_of(tmp_path).exists()
    await history.append("s1", user(1))
    await history.sync("s1")
    await history.sync("s1")
    assert await history.read("s1") == [user(1)]


async def test_descriptors_are_bounded(
    history: SessionHistoryManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many sessions share a few descriptors, and none loses an entry; closing gives all of them back."""
    monkeypatch.setattr(session_history, "OPEN_FILES", 3)
    for number in range(2):
        await asyncio.gather(*(history.append(f"s{session}", user(number)) for session in range(10)))
        assert open_files(tmp_path) == 3
    for session in range(10):
        assert await history.read(f"s{session}") == [user(0), user(1)]
    await history.aclose()
    assert open_files(tmp_path) == 0


def open_files(under: Path) -> int:
    """Count this process's descriptors for files below `under`."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith(str(under))
    return count


async def test_what_comes_late_for_a_deleted_session_is_not_recorded(
    history: SessionHistoryManager, tmp_path: Path
) -> None:
    """A turn's tail, a fresh start or a completion behind the deletion bring no file back, unless it was given up."""
    await history.append("s1", user(1))
    await history.delete("s1")
    await history.append("s1", user(2))
    await history.boundary("s1")
    assert await history.complete("s1", [user(1), user(2)]) == 0
    assert not file_of(tmp_path).exists()
    history.keep("s1")
    assert await history.complete("s1", [user(1), user(2)]) == 2
    assert await history.read("s1") == [user(1), user(2)]
