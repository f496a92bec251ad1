"""The history file after an accident: what is good in it is used, and it can be written on (HIST-5, HIST-6, HIST-7)."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzed import (
    ANY_TEXT,
    HARD_TEXTS,
    HOSTILE,
    QUIET,
    TEXTS,
    damaged,
    ends,
    fuzz,
    near,
    peak_bytes,
    to_json,
    to_raw_json,
)
from kandev.domain.history import (
    AgentMessage,
    Boundary,
    Entry,
    ToolCall,
    ToolResult,
    UserMessage,
    decode_entries,
    decode_line,
    encode_entry,
    render_resume_context,
)
from kandev.lifecycle.history_file import READ_LIMIT, HistoryFile

pytestmark = QUIET

TIMES = st.sampled_from(["2025-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z"])
ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(UserMessage, message_id=st.sampled_from(["", "m1", "m2"]), time=TIMES, content=TEXTS),
    st.builds(AgentMessage, message_id=st.sampled_from(["", "m3", "m4"]), time=TIMES, content=TEXTS),
    st.builds(ToolCall, message_id=st.sampled_from(["", "m5"]), time=TIMES, name=TEXTS),
    st.builds(ToolResult, message_id=st.sampled_from(["", "m5"]), time=TIMES, name=TEXTS, content=TEXTS),
    st.builds(Boundary, time=TIMES),
)
VALID: list[Any] = [
    {"type": "user_message", "message_id": "m1", "time": "2025-01-01T00:00:00.000Z", "content": "Hello"},
    {"type": "tool_result", "message_id": "m2", "name": "ls", "content": "a\nb", "more": {"x": [1]}},
    {"type": "boundary", "time": "2025-01-01T00:00:00.000Z", "reason": "fresh_start"},
]
LINES = near(st.sampled_from(VALID))
PIECES = st.one_of(
    ENTRIES.map(encode_entry),
    LINES.map(to_json),
    LINES.map(to_raw_json),
    LINES.flatmap(lambda value: damaged(to_json(value) + b"\n")),
    HOSTILE.map(to_json),
    st.sampled_from(
        [b"", b"\n", b"\0" * 70_000, b'{"type":"boundary"', b'{"type":"user_message","content":"x', b"\xff\n"]
    ),
    st.binary(max_size=30),
)
FILES = st.lists(PIECES, max_size=8).map(b"".join)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("history")


@fuzz(500)
@given(raw=PIECES)
def test_hist_5_a_line_is_an_entry_or_nothing(raw: bytes) -> None:
    """No bytes raise, and what comes out can be written, read and told again."""
    with ends():
        entry = decode_line(raw)
    if entry is not None:
        assert decode_line(encode_entry(entry)) is not None


@fuzz(120)
@given(content=FILES, expected=st.lists(ENTRIES, max_size=5), window=st.sampled_from([0, 1, 60, READ_LIMIT]))
def test_hist_5_any_file_is_read_completed_and_written_on(
    place: Path, content: bytes, expected: list[Entry], window: int
) -> None:
    """Whatever it holds: everything that the database has is in it afterwards, once, and nothing good is lost."""
    path = place / "session.jsonl"
    path.write_bytes(content)
    before = decode_entries(content)
    file = HistoryFile(path)
    with ends():
        file.has_history()
        file.read(window)
        file.complete(expected)
        file.append(UserMessage(message_id="last", content="the last"))
        file.sync()
        file.close()
        after = file.read(READ_LIMIT).entries
    assert after[-1] == UserMessage(message_id="last", content="the last")
    assert file.has_history()
    names = [(type(entry), entry.message_id) for entry in after if not isinstance(entry, Boundary) and entry.message_id]
    assert len(names) == len(set(names))
    wanted = [(type(entry), entry.message_id) for entry in expected if not isinstance(entry, Boundary)]
    assert {name for name in wanted if name[1]} <= set(names)
    good = [msgspec.json.encode(entry) for entry in before]
    kept = {msgspec.json.encode(entry) for entry in after}
    assert all(entry in kept for entry in good)
    assert HistoryFile(path).complete(expected) == 0
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()


@fuzz(150)
@given(
    content=FILES,
    prompt=st.one_of(HARD_TEXTS, ANY_TEXT),
    limit=st.integers(600, 4000),
    unread=st.integers(0, 3),
)
def test_hist_6_and_hist_7_any_file_gives_a_context_within_its_bound(
    content: bytes, prompt: str, limit: int, unread: int
) -> None:
    """It can be sent to an agent, and only the prompt itself may make it longer than the limit."""
    with ends():
        rendered = render_resume_context(decode_entries(content), prompt, limit=limit, unread=unread)
    rendered.text.encode()
    assert len(rendered.text) <= limit + len(prompt) + 500
    assert rendered.used <= rendered.total


def test_hist_11_a_line_without_end_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """Forty megabytes without a newline, behind good entries: the end is read, the rest is passed in pieces."""
    path = tmp_path / "session.jsonl"
    good = encode_entry(UserMessage(message_id="m1", content="before"))
    path.write_bytes(good + b"\0" * (20 << 20) + b"x" * (20 << 20) + b"\n" + good.replace(b"m1", b"m2"))
    file = HistoryFile(path)
    with ends():
        assert peak_bytes(lambda: file.read(READ_LIMIT)) < 3 * READ_LIMIT
        assert peak_bytes(file.has_history) < 3 * READ_LIMIT
        assert peak_bytes(lambda: file.complete([UserMessage(message_id="m3", content="new")])) < 3 * READ_LIMIT
    assert [entry.message_id for entry in decode_entries(path.read_bytes()) if isinstance(entry, UserMessage)] == [
        "m1",
        "m2",
        "m3",
    ]
