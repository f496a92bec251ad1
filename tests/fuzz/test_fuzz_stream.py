"""Whatever Claude Code or Amp writes, something comes out of a line, and a session goes on with it (WIRE-1, WIRE-3)."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzed import HOSTILE, QUIET, damaged, ends, fuzz, near, to_json, to_raw_json
from kandev.gateway import protocol
from kandev.lifecycle.protocol_state import decode_state, new_state
from kandev.lifecycle.reader import Reader
from kandev.protocols import acp
from kandev.protocols.dialect import SessionNamed
from kandev.protocols.stream_json import StreamJson, StreamState
from kandev.store.sqlite import SqliteDatabase
from stored import StoredSession, stored
from streamed import NAMES, encoded, flat, lines

pytestmark = QUIET

MESSAGES = near(st.sampled_from([message for name in NAMES for way, message in lines(name) if way == "in"]))
LINES = st.one_of(
    MESSAGES.map(to_json),
    MESSAGES.map(to_raw_json),
    MESSAGES.flatmap(lambda value: damaged(to_json(value))),
    HOSTILE.map(to_json),
    st.binary(max_size=40),
).map(lambda raw: raw.replace(b"\n", b" "))
PROTOCOLS = st.sampled_from(["stream-json", "amp"])
EVENTS = (acp.Chunk, acp.Update, acp.Request, acp.Notification, acp.Response, acp.Noise, SessionNamed)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    with stored(tmp_path_factory.mktemp("fuzz")) as opened:
        yield opened


@fuzz(600)
@given(name=PROTOCOLS, raw=st.lists(LINES, max_size=6))
def test_wire_1_lines_give_events_and_a_state_that_can_be_stored(name: Any, raw: list[bytes]) -> None:
    """No bytes raise, in any order; requests are refused in a line of their own; the state goes through JSON."""
    dialect = StreamJson(StreamState(protocol=name))
    dialect.initialize(1)
    dialect.prompt(2, "", "Hello?")
    for one in raw:
        with ends():
            events = flat(dialect.decode(one))
        assert all(isinstance(event, EVENTS) for event in events)
        for event in events:
            msgspec.json.encode(event).decode()
            if isinstance(event, acp.Request):
                sent = json.loads(dialect.refuse(event.id, -32601, "no"))
                assert sent["response"]["request_id"] == event.id
                json.loads(dialect.answer_permission(event.id, "allow_always", acp.permission(event.params).tool_call))
    text = msgspec.json.encode(dialect._state)
    assert msgspec.json.encode(msgspec.json.decode(text, type=StreamState)) == text


async def opened(database: SqliteDatabase, name: Any) -> tuple[StoredSession, Reader]:
    """A session whose agent has a prompt, and waits for nothing else."""
    session = await StoredSession.create(database)
    reader = session.reader()
    reader.state = new_state(name, history_enabled=False)
    await session.commit(reader)
    reader = session.reader()
    await session.prompt(reader)
    return session, reader


@fuzz(200)
@given(name=PROTOCOLS, raw=st.lists(LINES, max_size=8))
async def test_wire_6_a_session_takes_any_lines_and_stores_them(
    database: SqliteDatabase, name: Any, raw: list[bytes]
) -> None:
    """Each line moves the position, the commit is made, and everything that it published is strict JSON."""
    session, reader = await opened(database, name)
    before = reader.position
    with ends():
        reader.feed(raw)
        await session.commit(reader)
        reader.agent_ended(stderr="the end")
        await session.commit(reader)
    assert reader.position == before + sum(len(one) + 1 for one in raw)
    assert decode_state(session.row.protocol_state).encode() == session.row.protocol_state
    for event in session.events:
        protocol.notification(event.action, event.payload, "now").decode()
    assert session.store.open_turn(session.ref.session_id) is None


MANY = 3000
HUGE = "x" * 100_000


async def test_nothing_that_goes_on_and_on_grows_the_state(database: SqliteDatabase) -> None:
    """Blocks, edits and ids without end: the state that every commit writes stays small."""
    session, reader = await opened(database, "stream-json")
    for number in range(MANY):
        edit = {"file_path": "/a", "old_string": "a", "new_string": "b"}
        call = {"type": "tool_use", "id": f"call-{number}", "name": "Edit", "input": edit}
        start = {"type": "content_block_start", "index": number, "content_block": {"type": "text", "text": ""}}
        reader.feed(
            [
                encoded({"type": "stream_event", "event": start}),
                encoded({"type": "assistant", "message": {"content": [call]}, "uuid": f"uuid-{number}"}),
            ]
        )
        if number % 500 == 0:
            await session.commit(reader)
    call = {"type": "tool_use", "id": HUGE, "name": "Edit", "input": {"file_path": "/a", "content": "b"}}
    begun = {"type": "message_start", "message": {"id": HUGE}}
    reader.feed(
        [
            encoded({"type": "stream_event", "event": begun}),
            encoded({"type": "assistant", "message": {"id": HUGE, "content": [call]}, "uuid": HUGE}),
        ]
    )
    await session.commit(reader)
    stream = reader.state.stream
    assert stream is not None
    assert len(msgspec.json.encode(stream)) < 10_000
