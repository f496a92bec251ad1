"""Claude Code's and Amp's lines through the reader and into the store: messages, token, last message, ends, cuts."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kandev.domain.resume import MESSAGE_TURN, resume_point
from kandev.lifecycle.effects import AcpSessionCreated, CompleteStreamEvent, PromptFailed
from kandev.lifecycle.protocol_state import new_state
from kandev.lifecycle.reader import Reader
from kandev.store.sqlite import SqliteDatabase
from stored import StoredSession, stored
from streamed import encoded, lines

AMP = "T-2775dc92-90ed-4f85-8b73-8f9766029e83"
KILLED = -9


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    """One database for the module; each test has a session of its own in it."""
    with stored(tmp_path_factory.mktemp("streams")) as opened:
        yield opened


async def begin(database: SqliteDatabase, protocol: Any = "stream-json", token: str = "") -> StoredSession:
    """A session whose agent speaks `protocol`; with a token it was started to restore that."""
    session = await StoredSession.create(database)
    reader = session.reader()
    reader.state = new_state(protocol, history_enabled=False)
    reader.state.agent_session_id = token
    reader.state.restored = bool(token) and protocol == "amp"
    await session.commit(reader)
    return session


async def play(session: StoredSession, name: str, *, cut: bool = False) -> Reader:
    """Plays a recorded dialogue; with `cut`, a new backend goes on behind every line."""
    reader, prompts = session.reader(), 0
    for way, message in lines(name):
        if way == "in":
            reader.feed([encoded(message)])
            if cut:
                await session.commit(reader)
                reader = session.reader()
            continue
        await session.commit(reader)  # whatever we do follows from something that is stored
        if message["type"] == "user":
            prompts += 1
            await session.prompt(reader, message["message"]["content"][0]["text"])
        elif message.get("request", {}).get("subtype") == "initialize":
            request_id = reader.begin_request("initialize")
            reader.queue_line(reader.dialect.initialize(request_id))  # type: ignore[attr-defined]  # it is StreamJson
        elif message.get("request", {}).get("subtype") == "interrupt":
            reader.queue_line(reader.dialect.cancel(""))
    await session.commit(reader)
    return reader


def transcript(session: StoredSession) -> list[tuple[str, str, str]]:
    return [(m.author_type, m.type, m.content) for m in session.messages()]


FIRST = [
    ("user", "message", "Please remember MARK-ALPHA1."),
    ("agent", "message", "ECHO n=2 marks=MARK-ALPHA1 last=Please remember MARK-ALPHA1."),
    ("user", "message", "tool: echo hello > made.txt"),
    ("agent", "tool_call", "echo hello > made.txt"),
    ("agent", "permission_request", "echo hello > made.txt"),
    ("agent", "message", "ECHO n=6 marks=MARK-ALPHA1 last=tool: echo hello > made.txt"),
    ("user", "message", "slow: 40"),
    ("agent", "message", "slow0 slow1 slow2 slow3 slow4 slow5 slow6 "),
    ("user", "message", "slow: 40"),
    ("agent", "message", "slow0 slow1 slow2 slow3 slow4 slow5 slow6 slow7 "),
]


@pytest.mark.parametrize("cut", [False, True])
async def test_a_recorded_dialogue_is_stored_once(database: SqliteDatabase, cut: bool) -> None:  # noqa: FBT001 - a row of the table
    """Streamed pieces, whole messages and tool calls become each message once, wherever a backend stopped reading."""
    session = await begin(database)
    reader = await play(session, "first", cut=cut)
    assert transcript(session) == FIRST
    (call,) = [m for m in session.messages() if m.type == "tool_call"]
    assert (call.metadata["status"], call.metadata["kind"]) == ("completed", "execute")
    assert reader.state.in_flight != {}  # the last turn has no end yet
    reader.agent_ended(stderr="")
    await session.commit(reader)
    turns = [session.store.turn(e.turn_id) for e in session.effects if isinstance(e, CompleteStreamEvent)]
    assert [(turn.state, turn.stop_reason) for turn in turns] == [
        ("completed", "end_turn"),
        ("completed", "end_turn"),
        ("cancelled", "cancelled"),
    ]
    assert turns[0].usage["inputTokens"] == 20


async def test_tok_5_the_token_comes_before_it_is_proven(database: SqliteDatabase) -> None:
    """It is stored as soon as the agent names its session, and proven by the end of the first turn."""
    session = await begin(database)
    reader = session.reader()
    await session.prompt(reader)
    reader.feed([encoded({"type": "system", "subtype": "init", "session_id": "one"})])
    await session.commit(reader)
    assert (session.row.resume_token, session.row.metadata["token_proven"]) == ("one", False)
    reader.feed([assistant("Hello.", "m-1"), result()])
    await session.commit(reader)
    assert (session.row.resume_token, session.row.metadata["token_proven"]) == ("one", True)


async def test_tok_6_the_last_message_survives_what_brings_none(database: SqliteDatabase) -> None:
    """A later naming of the session, a cancelled turn and one of the agent's own commands leave it as it stands."""
    session = await begin(database)
    reader = session.reader()
    turn, _ = await session.prompt(reader)
    reader.feed([init(), assistant("Hello.", "m-1"), result()])
    await session.commit(reader)
    assert (session.row.last_message_uuid, session.row.metadata[MESSAGE_TURN]) == ("m-1", turn.id)
    assert resume_point(session.row, session.store.last_turn(session.ref.session_id)) == "m-1"

    for end in (result(terminal_reason="aborted_streaming"), result(num_turns=0)):
        await session.prompt(reader)
        reader.feed([init(), end])
        await session.commit(reader)
        assert (session.row.last_message_uuid, session.row.metadata[MESSAGE_TURN]) == ("m-1", turn.id)
        assert resume_point(session.row, session.store.last_turn(session.ref.session_id)) == ""


async def test_an_interrupted_turn_is_not_cut_off(database: SqliteDatabase) -> None:
    """The agent keeps what it recorded of it: the session is resumed at the end of the record, not at a message."""
    session = await begin(database)
    reader = session.reader()
    await session.prompt(reader)
    reader.feed([init(), assistant("Hello.", "m-1"), result()])
    await session.commit(reader)
    await session.prompt(reader)
    reader.feed([init(), assistant("I am at it.", "m-2")])
    reader.state.lines_begun = reader.state.prompt_line
    reader.agent_ended(stderr="")
    await session.commit(reader)
    assert resume_point(session.row, session.store.last_turn(session.ref.session_id)) == ""


async def test_a_session_that_is_cleared_is_not_proven(database: SqliteDatabase) -> None:
    """After /clear the agent is in a session of which it stored nothing: that is its token, without a proof."""
    session = await begin(database)
    await play(session, "commands")
    named = [effect.token for effect in session.effects if isinstance(effect, AcpSessionCreated)]
    assert len(named) == 2
    assert (session.row.resume_token, session.row.metadata["token_proven"]) == (named[1], True)  # by "hello again"
    assert named[0] != named[1]


async def test_a_turn_that_the_agent_begins_by_itself_ends_no_other(database: SqliteDatabase) -> None:
    """What it says there stands in the transcript, and the next prompt waits for its own end."""
    session = await begin(database)
    await play(session, "background")
    ends = [effect for effect in session.effects if isinstance(effect, CompleteStreamEvent)]
    assert [session.store.turn(end.turn_id).state for end in ends] == ["completed", "completed"]
    said = [content for author, _, content in transcript(session) if author == "agent"]
    assert ["n=4" in said[1], "n=6" in said[2], "n=8" in said[3]] == [True, True, True]


@pytest.mark.parametrize(
    ("name", "kind"), [("login", "login"), ("errors", "turn_failed"), ("unknown-prompted", "rejected")]
)
async def test_errors_say_what_to_do(database: SqliteDatabase, name: str, kind: str) -> None:
    """A missing login, a failure of the model, and a session that the agent does not know are told apart."""
    session = await begin(database, token="11111111-2222-4333-8444-555555555555" if name.startswith("u") else "")
    if name.startswith("unknown"):
        reader = session.reader()
        reader.state.restored = True
        await session.commit(reader)
    await play(session, name)
    kinds = [m.metadata.get("kind") for m in session.messages() if m.author_type == "system"]
    assert kinds[0] == kind


async def test_thinking_that_was_streamed_is_not_said_again(database: SqliteDatabase) -> None:
    """Nor is text of which only the beginning was streamed: its rest is."""
    session = await begin(database)
    reader = session.reader()
    await session.prompt(reader)
    reader.feed(
        [
            event({"type": "message_start", "message": {"id": "msg_1"}}),
            event({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
            event({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm"}}),
            event({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "x"}}),
            whole("msg_1", {"type": "thinking", "thinking": "Hmm, at length", "signature": "x"}),
            event({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
            event({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hel"}}),
            whole("msg_1", {"type": "text", "text": "Hello"}),
            whole("msg_1", {"type": "text", "text": "And this."}),
            result(),
        ]
    )
    await session.commit(reader)
    assert transcript(session)[1:] == [
        ("agent", "thinking", "Hm"),
        ("agent", "message", "Hello"),
        ("agent", "message", "And this."),
    ]


async def test_a_result_that_nothing_was_said_of_is_the_answer(database: SqliteDatabase) -> None:
    """Some commands of the agent only have a result."""
    session = await begin(database)
    reader = session.reader()
    await session.prompt(reader)
    reader.feed([init(), result(result="Set model to sonnet", num_turns=0)])
    await session.commit(reader)
    assert transcript(session)[1:] == [("agent", "message", "Set model to sonnet")]


async def test_wire_5_a_request_that_is_not_known_is_refused(database: SqliteDatabase) -> None:
    """In the protocol's own form, so that the agent does not wait for ever."""
    session = await begin(database)
    reader = session.reader()
    reader.feed([encoded({"type": "control_request", "request_id": "r-1", "request": {"subtype": "hook_callback"}})])
    lines_out = [msgspec.json.decode(one) for _, one in reader.batch.lines]
    assert lines_out == [
        {
            "type": "control_response",
            "response": {"subtype": "error", "request_id": "r-1", "error": "Method not found: hook_callback"},
        }
    ]


# ---- Amp, as its manual documents it


async def test_amp_ends_a_turn_with_its_last_message(database: SqliteDatabase) -> None:
    """A result that follows, at once or when its input ends, is not taken for the end of the next turn."""
    session = await begin(database, "amp")
    reader = session.reader()
    reader.feed([amp("system", subtype="init")])
    for text, late in (("one", False), ("two", True), ("three", False)):
        await session.prompt(reader, text)
        if late:
            reader.feed([amp("result", subtype="success", is_error=False, result="one!", num_turns=1)])
        said = {"content": [{"type": "text", "text": f"{text}!"}], "stop_reason": "end_turn"}
        reader.feed([amp("user", message={"role": "user", "content": [{"type": "text", "text": text}]})])
        reader.feed([amp("assistant", message={"type": "message", "role": "assistant", **said})])
        if text == "two":
            reader.feed([amp("result", subtype="success", is_error=False, result="two!", num_turns=2)])
        await session.commit(reader)
    ends = [effect for effect in session.effects if isinstance(effect, CompleteStreamEvent)]
    assert [session.store.turn(end.turn_id).state for end in ends] == ["completed"] * 3
    assert [content for _, _, content in transcript(session)] == ["one", "one!", "two", "two!", "three", "three!"]
    assert session.row.resume_token == AMP


@pytest.mark.parametrize(
    ("stderr", "kind", "token"),
    [
        (f"Error: Thread {AMP} not found", "rejected", ""),
        ("Error: Not logged in. Please run `amp login`.", "login", AMP),
    ],
)
async def test_tok_1_amp_says_on_stderr_that_it_knows_no_such_thread(
    database: SqliteDatabase, stderr: str, kind: str, token: str
) -> None:
    """It ends over its first prompt: a lost thread costs the token, a missing login does not."""
    session = await begin(database, "amp", token=AMP)
    reader = session.reader()
    reader.feed([amp("system", subtype="init")])
    turn, _ = await session.prompt(reader)
    reader.state.lines_begun = reader.state.prompt_line
    reader.agent_ended(stderr=stderr)
    await session.commit(reader)
    assert [effect.turn_id for effect in session.effects if isinstance(effect, PromptFailed)] == [turn.id]
    assert session.row.resume_token == token
    assert (session.state, session.store.turn(turn.id).state) == ("WAITING_FOR_INPUT", "failed")
    assert [m.metadata["kind"] for m in session.messages() if m.author_type == "system"] == [kind]


async def test_amp_that_ends_without_such_words_is_interrupted(database: SqliteDatabase) -> None:
    """Nothing is known of why: the token is kept and a person decides."""
    session = await begin(database, "amp", token=AMP)
    reader = session.reader()
    reader.feed([amp("system", subtype="init")])
    turn, _ = await session.prompt(reader)
    reader.state.lines_begun = reader.state.prompt_line
    reader.agent_ended(stderr="Segmentation fault")
    await session.commit(reader)
    assert (session.row.resume_token, session.store.turn(turn.id).state) == (AMP, "interrupted")


# ---- lines


def init(session_id: str = "one") -> bytes:
    return encoded({"type": "system", "subtype": "init", "session_id": session_id})


def assistant(text: str, uuid: str) -> bytes:
    message = {"id": uuid, "role": "assistant", "content": [{"type": "text", "text": text}]}
    return encoded({"type": "assistant", "message": message, "uuid": uuid, "session_id": "one"})


def whole(message_id: str, block: dict[str, Any]) -> bytes:
    return encoded({"type": "assistant", "message": {"id": message_id, "content": [block]}, "session_id": "one"})


def event(body: dict[str, Any]) -> bytes:
    return encoded({"type": "stream_event", "event": body, "session_id": "one", "parent_tool_use_id": None})


def result(**more: Any) -> bytes:
    told = {"type": "result", "subtype": "success", "is_error": False, "num_turns": 1, "stop_reason": "end_turn"}
    return encoded({**told, "session_id": "one", **more})


def amp(kind: str, **more: Any) -> bytes:
    return encoded({"type": kind, "parent_tool_use_id": None, "session_id": AMP, **more})
