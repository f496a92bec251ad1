"""Whatever an agent writes, one event comes out of a line, and a session goes on with what it says (WIRE-1, WIRE-3)."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzed import HOSTILE, JSON, QUIET, damaged, ends, fuzz, near, peak_bytes, to_json, to_raw_json
from kandev.domain.failures import classify_load_failure, classify_prompt_failure, in_use_owner
from kandev.gateway import protocol
from kandev.lifecycle.line_splitter import LineSplitter
from kandev.lifecycle.protocol_state import decode_state
from kandev.lifecycle.reader import Reader
from kandev.protocols import acp
from kandev.store.sqlite import SqliteDatabase
from stored import TOKEN, StoredSession, answer, ask, chunk, line, stored, update

pytestmark = QUIET

KINDS = (
    *("agent_message_chunk", "agent_thought_chunk", "user_message_chunk", "tool_call", "tool_call_update", "plan"),
    *("available_commands_update", "current_mode_update", "config_option_update", "session_info_update"),
    *("usage_update", "weather_report"),
)
TOOL_CALL = {
    "toolCallId": "call-1",
    "title": "Write",
    "kind": "edit",
    "status": "pending",
    "locations": [{"path": "/a"}],
    "rawInput": {"command": ["ls"]},
    "rawOutput": {"output": "done"},
    "content": [{"type": "content", "content": {"type": "text", "text": "ok"}}, {"type": "diff", "path": "/a"}],
}
BODY = {
    **TOOL_CALL,
    "messageId": "m1",
    "entries": [{"content": "step", "priority": "high", "status": "pending"}],
    "availableCommands": [{"name": "plan"}],
    "currentModeId": "code",
    "configOptions": [{"id": "model"}],
    "used": 5,
    "size": 10,
    "_meta": {"sessionId": "another"},
}
SETUP = {
    "sessionId": TOKEN,
    "modes": {"currentModeId": "code", "availableModes": [{"id": "code", "name": "Code", "description": "d"}]},
    "models": {"currentModelId": "m", "availableModels": [{"modelId": "m", "name": "M"}]},
    "configOptions": [{"id": "model", "type": "select", "currentValue": "m", "options": [{"value": "m"}]}],
}
INITIALIZED = {
    "protocolVersion": 1,
    "agentInfo": {"name": "fake", "title": "Fake", "version": "1"},
    "agentCapabilities": {"loadSession": True, "sessionCapabilities": {"resume": {}}, "promptCapabilities": {}},
    "authMethods": [{"id": "login", "name": "Log in", "_meta": {"terminal-auth": {"command": "x", "args": ["y"]}}}],
}
ERROR = {"code": -32603, "message": "Internal error", "data": {"details": ["no thread", {"owner": {"pid": 5}}]}}


def message(raw: bytes) -> Any:
    return msgspec.json.decode(raw)


UPDATES = [message(update(kind, **BODY)) for kind in KINDS] + [
    message(update(kind, content={"type": "text", "text": "Hello"})) for kind in KINDS[:3]
]
ANSWERS = [
    *(message(answer(number, result)) for number in (1, 2, 3, 4) for result in (SETUP, INITIALIZED, None)),
    *(message(answer(number, {"stopReason": "end_turn", "usage": {"totalTokens": 5}})) for number in (2, 3)),
    *({"jsonrpc": "2.0", "id": number, "error": ERROR} for number in (1, 2, 3)),
]
REQUESTS = [
    message(ask(100, title="Write", kind="edit", rawInput=TOOL_CALL["rawInput"], content=TOOL_CALL["content"])),
    message(line({"id": "a", "method": "fs/read_text_file", "params": {"path": "/etc/passwd"}})),
    message(line({"method": "$/cancel_request", "params": {"requestId": 100}})),
    message(line({"method": "_extension/event", "params": [1]})),
]
MESSAGES = near(st.sampled_from([*UPDATES, *ANSWERS, *REQUESTS]))
LINES = st.one_of(
    MESSAGES.map(to_json),
    MESSAGES.map(to_raw_json),
    MESSAGES.flatmap(lambda value: damaged(to_json(value))),
    HOSTILE.map(to_json),
    st.binary(max_size=40),
).map(lambda raw: raw.replace(b"\n", b" "))
EVENTS = (acp.Chunk, acp.Update, acp.Request, acp.Notification, acp.Response, acp.Noise)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    with stored(tmp_path_factory.mktemp("fuzz")) as opened:
        yield opened


def deeper(work: Callable[[], object], frames: int) -> object:
    """Do it with so many more frames on the stack: what is read here is written by somebody who was called."""
    return deeper(work, frames - 1) if frames else work()


@fuzz(600)
@given(raw=LINES)
def test_wire_1_and_hist_6_a_line_gives_one_event_that_every_reader_can_have(raw: bytes) -> None:
    """No bytes raise; what comes out can be stored and sent on, and nobody's stack is too short for it."""
    with ends():
        event = acp.decode(raw)
    assert isinstance(event, EVENTS)
    with ends():
        deeper(lambda: msgspec.json.encode(event).decode(), 150)
    if isinstance(event, acp.Request):
        # WIRE-5: the answer names the request by its own id.
        sent = json.loads(acp.error(event.id, -32601, "no"))
        assert sent["id"] == event.id


@fuzz(400)
@given(value=st.one_of(near(st.sampled_from([SETUP, INITIALIZED, ERROR, TOOL_CALL, *REQUESTS])), JSON))
def test_wire_3_a_wrong_type_anywhere_counts_as_absent(value: Any) -> None:
    """The typed readings of answers, requests and errors are total."""
    read = acp.decode(to_json({"id": 1, "result": value, "error": value}))
    if isinstance(read, acp.Noise):
        assert read.reason == "nested too deeply"
        return
    assert isinstance(read, acp.Response)
    with ends():
        acp.AgentInfo.from_initialize(read.result)
        acp.session_setup(read.result)
        acp.stop_reason(read.result)
        acp.usage(read.result)
        ask_read = acp.permission(read.result)
        acp.auto_permission(ask_read.options, ask_read.kind, ["edit"])
        acp.text_of(read.result)
        assert len(acp.error_text(read.error, hide=TOKEN)) <= 2000
        classify_load_failure(read.error, session_id=TOKEN)
        classify_prompt_failure(read.error, session_id=TOKEN)
        in_use_owner(read.error)


async def state_of(session: StoredSession, opening: str) -> Reader:
    """A reader that waits for the answer to session/new, to a load, or to a prompt."""
    reader = session.reader()
    if opening == "new":
        await session.request(reader, "initialize", lambda n: acp.initialize(n, "1"))
        await session.request(reader, "session/new", lambda n: acp.new_session(n, "/work"))
        return reader
    if opening == "load":
        await session.request(reader, "initialize", lambda n: acp.initialize(n, "1"))
        await session.loading(reader)
        return reader
    await session.opened(reader)
    await session.prompt(reader)
    await session.request(reader, "session/set_mode", lambda n: acp.set_mode(n, TOKEN, "code"))
    return reader


@fuzz(250)
@given(
    opening=st.sampled_from(["new", "load", "turn"]),
    lines=st.lists(LINES, max_size=8),
    policy=st.sampled_from(["ask", "deny", "allow-once", ["edit"]]),
)
async def test_wire_6_a_session_takes_any_lines_and_stores_them(
    database: SqliteDatabase, opening: str, lines: list[bytes], policy: Any
) -> None:
    """Each line moves the position, the commit is made, and everything that it published is strict JSON."""
    session = await StoredSession.create(database, permissions=policy)
    reader = await state_of(session, opening)
    before = reader.position
    with ends():
        reader.feed(lines)
        await session.commit(reader)
        reader.feed([chunk("behind it")])
        reader.agent_ended(stderr="the end")
        await session.commit(reader)
    assert reader.position == before + sum(len(one) + 1 for one in [*lines, chunk("behind it")])
    assert decode_state(session.row.protocol_state).encode() == session.row.protocol_state
    for event in session.events:
        protocol.notification(event.action, event.payload, "now").decode()
    for kept in session.messages():
        kept.content.encode()
        assert json.loads(protocol.encode(kept))["id"] == kept.id
    assert session.store.open_turn(session.ref.session_id) is None


# ---- memory


async def grown(database: SqliteDatabase, lines: list[bytes], *, opening: str = "turn") -> int:
    """How many characters the reader's state has after these lines: it is written with each commit."""
    session = await StoredSession.create(database)
    reader = await state_of(session, opening)
    before = len(reader.state.encode())
    for start in range(0, len(lines), 500):
        reader.feed(lines[start : start + 500])
        await session.commit(reader)
    return len(reader.state.encode()) - before


BOUND = 60_000
MANY = 6000


async def test_wire_6_tool_calls_that_never_end_do_not_grow_the_state(database: SqliteDatabase) -> None:
    """Thousands of them, each with an id of its own: the state that every commit writes stays small."""
    assert await grown(database, [update("tool_call", toolCallId=f"call-{n}") for n in range(MANY)]) < BOUND


async def test_wire_3_kinds_without_end_do_not_grow_the_state(database: SqliteDatabase) -> None:
    """What a replay brought is counted by kind; kinds that nobody knows are counted together."""
    lines = [update(f"kind-{n}" + "x" * 40) for n in range(MANY)]
    assert await grown(database, lines, opening="load") < BOUND


async def test_perm_requests_without_end_do_not_grow_the_state(database: SqliteDatabase) -> None:
    """An agent that asks and asks is answered where nobody can want so many questions open."""
    assert await grown(database, [ask(n) for n in range(MANY)]) < BOUND


async def test_wire_3_a_huge_answer_does_not_stay_in_the_state(database: SqliteDatabase) -> None:
    """Not the answer to initialize, nor a usage update, however much stands in it."""
    huge = "x" * 2_000_000
    assert await grown(database, [update("usage_update", note=huge)]) < BOUND
    assert await grown(database, [answer(1, {**INITIALIZED, "_meta": huge})], opening="new") < BOUND


async def test_wire_2_a_line_without_end_is_not_kept(database: SqliteDatabase) -> None:
    """Fifty times the limit without a newline: nothing of it stays, and the next line is read."""
    session = await StoredSession.create(database)
    reader = await state_of(session, "turn")
    limit = 1 << 20
    splitter = LineSplitter(limit)
    piece = b"x" * 65_536

    def flood() -> None:
        for _ in range(50 * limit // len(piece)):
            splitter.feed(piece, reader)

    assert peak_bytes(flood) < 2 * limit
    splitter.feed(b"\n" + chunk("still here") + b"\n", reader)
    await session.commit(reader)
    assert [kept.content for kept in session.messages()][-1] == "still here"


def test_wire_1_a_line_costs_memory_in_proportion_to_its_length() -> None:
    """The worst line for its length: empty objects, a hundred bytes each for two in the line."""
    raw = b'{"method":"session/update","params":{"update":{"sessionUpdate":"x","a":[' + b"{}," * 300_000 + b"{}]}}}"
    assert peak_bytes(lambda: acp.decode(raw)) < 120 * len(raw)
