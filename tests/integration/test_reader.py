"""Lines of a journal in wire order: the replay gate, requests both ways, the ends of turns and of agents."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from kandev.agentctl import records
from kandev.domain.models import Turn
from kandev.lifecycle.batch import Superseded
from kandev.lifecycle.effects import AgentExited, CompleteStreamEvent, PromptAccepted, PromptFailed
from kandev.lifecycle.protocol_state import Phase, ProtocolState, decode_state
from kandev.lifecycle.reader import Reader
from kandev.protocols import acp
from kandev.store.sqlite import SqliteDatabase
from stored import TOKEN, StoredSession, answer, ask, chunk, line, refusal, stored, update

USER = "user_message_chunk"
REPLAYED = [chunk("Remember A.", USER), chunk("I will."), update("tool_call", toolCallId="1", title="T")]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    """One database for the module; each test has a session of its own in it."""
    with stored(tmp_path_factory.mktemp("reader")) as opened:
        yield opened


@pytest.fixture
async def session(database: SqliteDatabase) -> StoredSession:
    return await StoredSession.create(database)


def record(kind: records.Record) -> bytes:
    return records.encode(kind).removesuffix(b"\n")


async def in_a_turn(session: StoredSession) -> tuple[Reader, Turn, int]:
    """A reader of an agent that has a session and a prompt."""
    reader = session.reader()
    await session.opened(reader)
    return reader, *await session.prompt(reader)


async def hear(session: StoredSession, reader: Reader, *lines: bytes) -> None:
    reader.feed(lines)
    await session.commit(reader)


def said(session: StoredSession) -> list[str]:
    """The messages that are not the user's."""
    return [message.content for message in session.messages() if message.author_type != "user"]


def sent(reader: Reader) -> list[Any]:
    """The lines that go to the agent after the next commit."""
    return [msgspec.json.decode(text) for _number, text in reader.batch.lines]


def turn_of(session: StoredSession, turn: Turn) -> Turn:
    return session.store.turn(turn.id)


# ---- positions and noise


async def test_the_position_is_behind_the_last_whole_line(session: StoredSession) -> None:
    """Counted in bytes with the newlines, records and noise included, and stored with what was said."""
    reader = session.reader()
    lines = [chunk("Grüße"), b"noise", b"", record(records.StdinWritten(n=1)), b"\x1e\x1eodd"]
    await hear(session, reader, *lines)
    assert session.row.last_event_seq == sum(len(one) + 1 for one in lines)
    assert decode_state(session.row.protocol_state) == reader.state


async def test_wire_1_what_is_no_message_is_counted_and_skipped(session: StoredSession) -> None:
    """Banners, numbers, colours and bad bytes are neither errors nor messages."""
    reader, _turn, _ = await in_a_turn(session)
    noise = [b"123", b"null", b"[]", b"Welcome!", b"\x1b[31mred\x1b[0m", b"\xff\xfe", b"\x1e\x1ebell"]
    await hear(session, reader, *noise, chunk("Hi"))
    assert reader.noise == len(noise)
    assert said(session) == ["Hi"]


async def test_an_extensions_notification_is_ignored(session: StoredSession) -> None:
    """The protocol lets a client ignore what it does not know."""
    reader, _turn, _ = await in_a_turn(session)
    await hear(session, reader, line({"method": "_vendor/ping", "params": {}}), line({"id": 99, "result": 1}))
    assert said(session) == []


async def test_wire_2_a_line_over_the_limit_is_an_error_of_this_line(session: StoredSession) -> None:
    """It is told with its size, its bytes are passed over, and what was said before it is closed."""
    reader, _turn, _ = await in_a_turn(session)
    reader.feed([chunk("Here it comes")])
    before = reader.position
    reader.too_long(70 << 20, limit=64 << 20)
    reader.feed([chunk("Sorry.")])
    await session.commit(reader)
    first, error, last = session.messages()[1:]
    assert (first.content, last.content) == ("Here it comes", "Sorry.")
    assert (error.author_type, error.type, error.metadata["kind"]) == ("system", "error", "line_too_long")
    assert "70.0 MiB" in error.content
    assert session.row.last_event_seq == before + (70 << 20) + len(chunk("Sorry.")) + 1


# ---- the replay gate


async def test_hist_1_a_replay_is_counted_and_never_stored(session: StoredSession) -> None:
    """Neither messages nor events nor usage, and no turn is begun or ended by it."""
    reader = session.reader()
    request_id = await session.loading(reader)
    session.events.clear()
    await hear(session, reader, *REPLAYED, update("usage_update", used=7), answer(request_id, {}))
    assert session.messages() == []
    assert [event.action for event in session.events] == []
    kinds = {USER: 1, "agent_message_chunk": 1, "tool_call": 1, "usage_update": 1}
    assert reader.state.replayed == kinds
    assert reader.state.turn_usage == {}


async def test_hist_1_the_gate_is_closed_until_the_first_prompt_is_written(session: StoredSession) -> None:
    """Some agents answer load first and replay afterwards."""
    reader = session.reader()
    request_id = await session.loading(reader)
    await hear(session, reader, answer(request_id, None), *REPLAYED)
    assert reader.state.phase is Phase.REPLAYING
    await session.prompt(reader)
    await hear(session, reader, chunk("A!"))
    assert said(session) == ["A!"]


async def test_hist_1_a_message_that_was_open_before_takes_nothing_of_a_replay(session: StoredSession) -> None:
    """An agent that greets before it is asked to load says two things."""
    reader = session.reader()
    await hear(session, reader, chunk("Welcome. "))
    await session.loading(reader)
    await hear(session, reader, chunk("I will."))
    assert said(session) == ["Welcome. "]


async def test_hist_1_a_line_over_the_limit_in_a_replay_is_not_told(session: StoredSession) -> None:
    """It was told when it was said; each resume would tell it again."""
    reader = session.reader()
    await session.loading(reader)
    reader.too_long(70 << 20, limit=64 << 20)
    await session.commit(reader)
    assert session.messages() == []
    assert session.row.last_event_seq == reader.position >= 70 << 20


GATED = [
    (update("available_commands_update", availableCommands=[{"name": "x"}]), "commands", [{"name": "x"}]),
    (update("current_mode_update", currentModeId="plan"), "mode", "plan"),
    (update("config_option_update", configOptions=[{"id": "o"}]), "options", [{"id": "o"}]),
    (update("plan", entries=[{"content": "Dig"}]), "plan", [{"content": "Dig"}]),
]


@pytest.mark.parametrize(("said_line", "key", "value"), GATED, ids=["commands", "mode", "options", "plan"])
async def test_hist_2_the_gate_lets_the_agents_state_through(
    session: StoredSession, said_line: bytes, key: str, value: Any
) -> None:
    """What is so now is kept and told, and makes no message."""
    reader = session.reader()
    await session.loading(reader)
    await hear(session, reader, said_line)
    assert session.agent_state()[key] == value
    assert session.events[-1].payload == {key: value}
    assert session.messages() == []


async def test_hist_2_the_last_plan_of_a_replay_is_the_plan(session: StoredSession) -> None:
    """Earlier ones are history."""
    reader = session.reader()
    await session.loading(reader)
    await hear(session, reader, *(update("plan", entries=[{"content": text}]) for text in ("Dig", "Fill")))
    assert session.agent_state()["plan"] == [{"content": "Fill"}]


async def test_hist_3_a_load_that_fails_half_way_leaves_nothing(session: StoredSession) -> None:
    """The transcript is as it was; the gate stays closed until a new session is answered."""
    reader = session.reader()
    request_id = await session.loading(reader)
    await hear(session, reader, *REPLAYED[:2], refusal(request_id, -32603, "service failure"), REPLAYED[2])
    assert session.messages() == []
    await session.opened(reader)
    assert reader.state.phase is Phase.LIVE


# ---- answers to our requests


async def test_the_answer_of_initialize_is_kept(session: StoredSession) -> None:
    """Also across restarts, because it says what the agent can do; one that is no object counts as empty."""
    reader = session.reader()
    for result, kept in (({"protocolVersion": 1}, {"protocolVersion": 1}), (7, {})):
        request_id = await session.request(reader, "initialize", lambda n: acp.initialize(n, "1"))
        await hear(session, reader, answer(request_id, result))
        assert session.reader().state.initialize == kept


async def test_wire_4_an_id_that_comes_back_as_text_is_ours(session: StoredSession) -> None:
    """A turn ends by the answer with the decimal string of its id."""
    reader, turn, request_id = await in_a_turn(session)
    await hear(session, reader, answer(str(request_id), {"stopReason": "end_turn"}))
    assert turn_of(session, turn).state == "completed"


@pytest.mark.parametrize("wrong", [99, "x1", "1.0", " 4"])
async def test_an_answer_to_nothing_changes_nothing(session: StoredSession, wrong: int | str) -> None:
    """No request of ours has such an id."""
    reader, turn, _request_id = await in_a_turn(session)
    await hear(session, reader, answer(wrong, {"stopReason": "end_turn"}))
    assert turn_of(session, turn).state == "open"


async def test_a_second_answer_changes_nothing(session: StoredSession) -> None:
    """A turn is ended once."""
    reader, turn, request_id = await in_a_turn(session)
    await hear(session, reader, answer(request_id, {"stopReason": "end_turn"}))
    await hear(session, reader, answer(request_id, {"stopReason": "cancelled"}))
    assert turn_of(session, turn).stop_reason == "end_turn"


async def test_tok_7_a_load_keeps_the_id_that_was_asked_for(session: StoredSession) -> None:
    """Whatever the answer names."""
    for result in (None, {}, {"sessionId": "another"}, {"modes": None}):
        reader = session.reader()
        request_id = await session.loading(reader)
        await hear(session, reader, answer(request_id, result))
        assert reader.state.agent_session_id == TOKEN
        assert reader.state.restored
        assert session.row.resume_token == TOKEN


async def test_a_new_session_is_the_token(session: StoredSession) -> None:
    """Stored in the commit of its answer (CRASH-5), not proven before a turn ended in it (TOK-5)."""
    reader = session.reader()
    await session.opened(reader)
    assert (session.row.resume_token, session.row.metadata["token_proven"]) == (TOKEN, False)


async def test_modes_and_options_of_an_answer_are_kept(session: StoredSession) -> None:
    """For clients that come later, and for the next resume to compare with (WIRE-12)."""
    reader = session.reader()
    request_id = await session.request(reader, "session/new", lambda n: acp.new_session(n, "/work"))
    modes = {"currentModeId": "plan", "availableModes": [{"id": "plan", "name": "Plan"}]}
    options = [{"id": "o", "currentValue": True}]
    await hear(session, reader, answer(request_id, {"sessionId": TOKEN, "modes": modes, "configOptions": options}))
    state = session.agent_state()
    assert (state["mode"], state["options"]) == ("plan", options)
    assert state["modes"] == [{"id": "plan", "name": "Plan", "description": ""}]


async def test_answers_are_told_after_their_commit(session: StoredSession) -> None:
    """Whoever waits for an answer finds it stored."""
    reader = session.reader()
    told: list[tuple[int, Any]] = []
    reader.on_answer = lambda request_id, response: told.append((request_id, response.result))
    request_id = await session.request(reader, "session/list", lambda n: acp.close_session(n, TOKEN))
    reader.feed([answer(request_id, {"sessions": []})])
    assert (told, reader.batch.urgent) == ([], True)
    await session.commit(reader)
    assert told == [(request_id, {"sessions": []})]


# ---- requests of the agent


async def test_wire_5_an_unknown_request_is_refused(session: StoredSession) -> None:
    """At once, under its own id, text or number."""
    reader, _turn, _ = await in_a_turn(session)
    for request_id in (7, "seven"):
        reader.feed([line({"id": request_id, "method": "fs/read_text_file", "params": {"path": "/x"}})])
        (reply,) = sent(reader)
        assert (reply["id"], reply["error"]["code"]) == (request_id, -32601)
        assert reader.batch.urgent
        await session.commit(reader)
    assert said(session) == []


async def test_perm_1_a_permission_request_waits_for_a_person(session: StoredSession) -> None:
    """It is a message, a stored request and an event; nothing is answered by itself."""
    reader, turn, _ = await in_a_turn(session)
    reader.feed([chunk("May I?"), ask(7, title="Delete")])
    assert sent(reader) == []
    await session.commit(reader)
    (request,) = session.store.pending_permissions(session.ref.session_id)
    assert (request.rpc_id, request.turn_id, request.agent_execution_id) == ("7", turn.id, session.ref.execution_id)
    message = session.messages()[-1]
    assert (message.type, message.content, message.metadata["state"]) == ("permission_request", "Delete", "pending")
    assert message.metadata["request_id"] == request.id
    assert [option["option_id"] for option in request.options] == [
        "allow_once",
        "allow_always",
        "reject_once",
        "reject_always",
    ]
    assert "permission.requested" in [event.action for event in session.events]


async def test_requests_7_and_7_as_text_are_two(session: StoredSession) -> None:
    """An id keeps its type, so that the answer goes to the right one."""
    reader, _turn, _ = await in_a_turn(session)
    await hear(session, reader, ask(7), ask("7"))
    assert sorted(reader.state.permissions) == ['"7"', "7"]
    assert len(session.store.pending_permissions(session.ref.session_id)) == 2


POLICIES: list[tuple[Any, str, str | None]] = [
    # policy, the tool's kind, the option that is chosen (None: cancelled)
    ("deny", "execute", "reject_once"),
    ("allow-once", "execute", "allow_once"),
    (["execute"], "execute", "allow_once"),
]


@pytest.mark.parametrize(("policy", "kind", "chosen"), POLICIES)
async def test_a_policy_answers_without_a_person(database: SqliteDatabase, policy: Any, kind: str, chosen: str) -> None:
    """The answer goes out with the commit that stores it; it is shown, and nobody is asked."""
    session = await StoredSession.create(database, permissions=policy)
    reader, _turn, _ = await in_a_turn(session)
    reader.feed([ask(7, kind=kind)])
    assert sent(reader)[0]["result"]["outcome"] == {"outcome": "selected", "optionId": chosen}
    await session.commit(reader)
    assert session.store.pending_permissions(session.ref.session_id) == []
    assert session.messages()[-1].metadata["state"] == "answered"
    assert "permission.requested" not in [event.action for event in session.events]


async def test_a_denial_without_an_option_for_it_cancels(database: SqliteDatabase) -> None:
    """An agent that offers no way to refuse gets the outcome cancelled."""
    session = await StoredSession.create(database, permissions="deny")
    reader, _turn, _ = await in_a_turn(session)
    params = {"toolCall": {"toolCallId": "1"}, "options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]}
    reader.feed([line({"id": 7, "method": "session/request_permission", "params": params})])
    assert sent(reader)[0]["result"]["outcome"] == {"outcome": "cancelled"}
    await session.commit(reader)
    assert session.messages()[-1].metadata["state"] == "cancelled"


@pytest.mark.parametrize("restart", [False, True])
async def test_a_list_of_kinds_knows_the_kind_of_the_call(database: SqliteDatabase, restart: bool) -> None:  # noqa: FBT001 - a row of the table
    """A request need not repeat it; the call was announced before, if need be to an earlier backend."""
    session = await StoredSession.create(database, permissions=["read"])
    reader, _turn, _ = await in_a_turn(session)
    await hear(session, reader, update("tool_call", toolCallId="call-1", kind="read", title="Read"))
    if restart:
        reader = session.reader()
    reader.feed([ask(7), ask(8, call_id="unknown")])
    assert [reply["id"] for reply in sent(reader)] == [7]


async def test_a_request_that_the_agent_takes_back_is_closed(session: StoredSession) -> None:
    """The message says so, and the request gets its answer; only that one."""
    reader, _turn, _ = await in_a_turn(session)
    await hear(session, reader, ask(7), ask(8))
    reader.feed([line({"method": "$/cancel_request", "params": {"requestId": 7}})])
    (reply,) = sent(reader)
    assert (reply["id"], reply["error"]["code"]) == (7, -32800)
    await session.commit(reader)
    states = [message.metadata["state"] for message in session.messages()[-2:]]
    assert states == ["cancelled", "pending"]


async def test_taking_back_what_was_never_asked_is_nothing(session: StoredSession) -> None:
    """Odd parameters too."""
    reader, _turn, _ = await in_a_turn(session)
    odd: list[Any] = [{"requestId": 9}, {}, [], None]
    for params in odd:
        reader.feed([line({"method": "$/cancel_request", "params": params})])
    assert sent(reader) == []


async def test_perm_1_a_question_that_was_on_the_way_before_the_prompt_is_none_of_its_turn(
    session: StoredSession,
) -> None:
    """It is read behind the prompt's commit, but the journal has it before the prompt's first byte: it stays open."""
    reader, _turn, request_id = await in_a_turn(session)
    begun = record(records.StdinLine(n=reader.state.prompt_line))
    await hear(session, reader, ask(7), begun, answer(request_id, {"stopReason": "end_turn"}))
    assert len(session.store.pending_permissions(session.ref.session_id)) == 1


async def test_wire_14_the_end_of_a_turn_closes_its_requests(session: StoredSession) -> None:
    """No button is left that does nothing."""
    reader, _turn, request_id = await in_a_turn(session)
    begun = record(records.StdinLine(n=reader.state.prompt_line))
    await hear(session, reader, begun, ask(7), answer(request_id, {"stopReason": "cancelled"}))
    assert session.store.pending_permissions(session.ref.session_id) == []
    assert reader.state.permissions == {}
    assert [event.payload["request"].state for event in session.events if event.action == "permission.resolved"] == [
        "cancelled"
    ]


async def test_a_reader_of_what_was_left_behind_sends_nothing(session: StoredSession) -> None:
    """The agent is dead; its requests are stored and expire with it (PERM-2)."""
    reader, _turn, _ = await in_a_turn(session)
    reader = session.reader(live=False)
    before = reader.state.next_line
    reader.feed([line({"id": 7, "method": "fs/write_text_file"}), ask(8)])
    assert (sent(reader), reader.state.next_line) == ([], before)
    reader.agent_ended(stderr="", why="backend_killed")
    await session.commit(reader)
    states = [m.metadata["state"] for m in session.messages() if m.type == "permission_request"]
    assert states == ["expired"]


# ---- lines of ours


async def test_lines_are_numbered_and_stored_until_they_are_written(session: StoredSession) -> None:
    """A number is given once; the journal's record of a line takes it out of the outbox."""
    reader = session.reader()
    assert [reader.queue_line(b"one\n"), reader.queue_line(b"two\n")] == [1, 2]
    await session.commit(reader)
    assert outbox(session) == [1, 2]
    reader.feed([record(records.StdinLine(n=1)), record(records.StdinWritten(n=1)), record(records.StdinLine(n=2))])
    await session.commit(reader)
    assert outbox(session) == [2]
    assert (reader.state.lines_begun, reader.state.lines_written) == (2, 1)
    assert session.reader().queue_line(b"three\n") == 3


def outbox(session: StoredSession) -> list[int]:
    query = "SELECT n FROM outbox WHERE session_id = ? ORDER BY n"
    return [row[0] for row in session.database._connection.execute(query, (session.ref.session_id,))]


# ---- the end of a turn


async def test_the_end_of_a_turn_is_one_commit(session: StoredSession) -> None:
    """Turn, session, task and proof of the token; subscribers learn it once."""
    reader, turn, request_id = await in_a_turn(session)
    assert (session.state, session.task_state) == ("RUNNING", "IN_PROGRESS")
    await hear(session, reader, chunk("Yes."), answer(request_id, {"stopReason": "end_turn"}))
    ended = turn_of(session, turn)
    assert (ended.state, ended.stop_reason, bool(ended.ended_at)) == ("completed", "end_turn", True)
    assert (session.state, session.task_state) == ("WAITING_FOR_INPUT", "REVIEW")
    assert session.row.metadata["token_proven"] is True
    actions = [event.action for event in session.events]
    assert actions.count("session.turn.completed") == actions.count("session.state_changed") == 1


@pytest.mark.parametrize(
    ("result", "reason", "notice"),
    [
        ({"stopReason": "tired"}, "tired", "The agent ended the turn with 'tired'."),
        (None, "", "The agent ended the turn with 'no reason'."),
        ({"stopReason": 7}, "", "The agent ended the turn with 'no reason'."),
        ({"stopReason": "refusal"}, "refusal", None),
    ],
)
async def test_state_7_any_stop_reason_ends_a_turn(
    session: StoredSession, result: Any, reason: str, notice: str | None
) -> None:
    """One that the protocol does not know is told."""
    reader, turn, request_id = await in_a_turn(session)
    await hear(session, reader, chunk("Hm."), answer(request_id, result))
    ended = turn_of(session, turn)
    assert (ended.state, ended.stop_reason) == ("completed", reason)
    assert said(session) == ["Hm.", *([notice] if notice else [])]


async def test_a_cancelled_turn_says_so(session: StoredSession) -> None:
    """By the agent's own stop reason; silence is no fault then."""
    reader, turn, request_id = await in_a_turn(session)
    await hear(session, reader, answer(request_id, {"stopReason": "cancelled"}))
    assert turn_of(session, turn).state == "cancelled"
    assert said(session) == []


async def test_usage_is_that_of_the_turn(session: StoredSession) -> None:
    """The last update of the turn with the numbers of its answer; the next turn begins without."""
    reader, turn, request_id = await in_a_turn(session)
    await hear(session, reader, update("usage_update", used=5, size=9), update("usage_update", used=6, size=9))
    reader = session.reader()  # a restart between does not lose it
    await hear(session, reader, answer(request_id, {"stopReason": "end_turn", "usage": {"totalTokens": 11}}))
    assert turn_of(session, turn).usage == {"used": 6, "size": 9, "totalTokens": 11}
    turn, request_id = await session.prompt(reader)
    await hear(session, reader, answer(request_id, {"stopReason": "end_turn"}))
    assert turn_of(session, turn).usage == {}


NOTHING = [chunk(""), chunk("Hello?", USER), update("usage_update", used=1), update("current_mode_update")]
SOMETHING = [chunk("Hi"), chunk("hm", "agent_thought_chunk"), update("plan", entries=[]), ask(7)]


@pytest.mark.parametrize("said_line", NOTHING)
async def test_a_turn_without_a_word_is_told(session: StoredSession, said_line: bytes) -> None:
    """An empty chunk or an echo is no word; a person would wonder."""
    reader, _turn, request_id = await in_a_turn(session)
    await hear(session, reader, said_line, answer(request_id, {"stopReason": "end_turn"}))
    assert session.messages()[-1].metadata["kind"] == "empty_turn"


@pytest.mark.parametrize("said_line", SOMETHING)
@pytest.mark.parametrize("restart", [False, True])
async def test_a_turn_with_a_word_is_not(session: StoredSession, said_line: bytes, restart: bool) -> None:  # noqa: FBT001 - a row of the table
    """Also when another backend heard it."""
    reader, _turn, request_id = await in_a_turn(session)
    await hear(session, reader, said_line)
    if restart:
        reader = session.reader()
    await hear(session, reader, answer(request_id, {"stopReason": "end_turn"}))
    assert "empty_turn" not in [message.metadata.get("kind") for message in session.messages()]


async def test_a_silent_turn_after_a_restore_offers_a_recap(session: StoredSession) -> None:
    """The agent may have lost its memory without saying so."""
    reader = session.reader()
    request_id = await session.loading(reader)
    await hear(session, reader, answer(request_id, {}))
    _, request_id = await session.prompt(reader)
    await hear(session, reader, answer(request_id, {"stopReason": "end_turn"}))
    assert session.messages()[-1].metadata["actions"] == ["recap"]
    _, request_id = await session.prompt(reader)
    await hear(session, reader, answer(request_id, {"stopReason": "end_turn"}))
    assert "actions" not in session.messages()[-1].metadata


async def test_an_error_ends_a_turn_as_failed(session: StoredSession) -> None:
    """The session waits, the token stays, the error is told."""
    reader, turn, request_id = await in_a_turn(session)
    await hear(session, reader, chunk("I"), refusal(request_id, -32603, "out of tokens"))
    assert (turn_of(session, turn).state, turn_of(session, turn).error) == ("failed", "out of tokens")
    assert (session.state, session.row.resume_token) == ("WAITING_FOR_INPUT", TOKEN)
    assert "out of tokens" in said(session)[-1]


@pytest.mark.parametrize("restored", [False, True])
async def test_wire_9_an_unknown_session_costs_the_token_right_after_a_restore_only(
    session: StoredSession,
    restored: bool,  # noqa: FBT001 - a row of the table
) -> None:
    """To the first prompt after a load it means that the agent lost the session; in a session at work it does not."""
    reader = session.reader()
    await session.opened(reader)
    if restored:
        request_id = await session.loading(reader)
        await hear(session, reader, answer(request_id, {}))
    _, request_id = await session.prompt(reader)
    await hear(session, reader, refusal(request_id, -32002, "session not found"))
    assert session.row.resume_token == ("" if restored else TOKEN)
    assert session.store.session(session.ref.session_id).queue_held == ("token_rejected" if restored else "")
    assert (session.state, session.task_state) == ("WAITING_FOR_INPUT", "REVIEW")
    failed = [effect for effect in session.effects if isinstance(effect, PromptFailed)]
    assert [effect.restored for effect in failed] == [restored]


ACCEPTING: list[Callable[[int], bytes]] = [
    lambda _n: chunk("Hi"),
    lambda _n: update("tool_call", toolCallId="1"),
    lambda _n: ask(7),
    lambda n: answer(n, {"stopReason": "end_turn"}),
]


@pytest.mark.parametrize("first", ACCEPTING, ids=["chunk", "tool", "permission", "answer"])
async def test_prompt_6_a_context_is_injected_once_the_agent_took_it(
    session: StoredSession, first: Callable[[int], bytes]
) -> None:
    """By its first update of the turn, or by an answer without error; told once."""
    reader = session.reader()
    await session.opened(reader)
    _, request_id = await session.prompt(reader, injected="history")
    await hear(session, reader, update("current_mode_update", currentModeId="x"))
    assert not reader.state.resume_context_injected
    await hear(session, reader, first(request_id), chunk("more"))
    assert session.reader().state.resume_context_injected
    assert len([effect for effect in session.effects if isinstance(effect, PromptAccepted)]) == 1


async def test_prompt_6_a_prompt_that_failed_at_once_injects_again(session: StoredSession) -> None:
    """The agent took nothing."""
    reader = session.reader()
    await session.opened(reader)
    _, request_id = await session.prompt(reader, injected="history")
    await hear(session, reader, refusal(request_id, -32603, "no"))
    assert not reader.state.resume_context_injected
    (failed,) = [effect for effect in session.effects if isinstance(effect, PromptFailed)]
    assert not failed.accepted


# ---- the end of an agent


async def ended(session: StoredSession, reader: Reader, *, why: str = "") -> AgentExited:
    reader.agent_ended(stderr="boom", why=why)
    await session.commit(reader)
    effect = session.effects[-1]
    assert isinstance(effect, AgentExited)
    return effect


async def test_an_idle_agent_ends_without_a_word(session: StoredSession) -> None:
    """The session waits as before; its row says that nothing runs."""
    reader, _turn, request_id = await in_a_turn(session)
    await hear(session, reader, chunk("Bye."), answer(request_id, {"stopReason": "end_turn"}))
    await hear(session, reader, record(records.Exited(code=0, signal=None)))
    effect = await ended(session, reader)
    assert (effect.turn_id, effect.exit_code) == ("", 0)
    assert said(session) == ["Bye."]
    assert (session.state, session.row.status) == ("WAITING_FOR_INPUT", "stopped")


async def test_a_turn_that_ended_in_the_same_batch_is_not_interrupted(session: StoredSession) -> None:
    """A journal that is read in one go: answer and exit together."""
    reader, turn, request_id = await in_a_turn(session)
    delivered = [record(records.StdinLine(n=2)), record(records.StdinWritten(n=2))]
    reader.feed([*delivered, chunk("Bye."), answer(request_id, {"stopReason": "end_turn"})])
    reader.feed([record(records.Exited(code=1, signal=None))])
    await ended(session, reader, why="backend_killed")
    assert turn_of(session, turn).state == "completed"
    assert said(session) == ["Bye."]
    assert not session.store.session(session.ref.session_id).interrupted


async def test_state_4_an_agent_that_dies_in_a_turn_interrupts_it(session: StoredSession) -> None:
    """Exit code and stderr are told; the queue waits for a person, the token is kept (TOK-2)."""
    reader, turn, _ = await in_a_turn(session)
    begun = [record(records.StdinLine(n=2)), record(records.StdinWritten(n=2)), chunk("I was")]
    await hear(session, reader, *begun, record(records.Exited(code=3, signal=None)))
    effect = await ended(session, session.reader())  # the exit is known to the next backend too
    assert (effect.turn_id, effect.exit_code, effect.delivered) == (turn.id, 3, True)
    assert turn_of(session, turn).state == "interrupted"
    stored_session = session.store.session(session.ref.session_id)
    assert (stored_session.interrupted, stored_session.queue_held) == (True, "interrupted")
    assert (session.state, session.task_state, session.row.resume_token) == ("WAITING_FOR_INPUT", "REVIEW", TOKEN)
    text, notice = session.messages()[1:]
    assert text.content == "I was"
    assert (notice.metadata["kind"], notice.metadata["exit_code"]) == ("interrupted", 3)
    assert notice.metadata["stderr"] == "boom"


async def test_prompt_4_a_line_that_was_never_begun_reached_nobody(session: StoredSession) -> None:
    """The prompt is first in the queue again, without a place; nothing is interrupted."""
    reader, turn, _ = await in_a_turn(session)
    effect = await ended(session, reader)
    assert not effect.delivered
    assert [prompt.message_id for prompt in session.store.queue(session.ref.session_id)] == [turn.message_id]
    assert session.store.message(turn.message_id).seq is None
    assert session.store.open_turn(session.ref.session_id) is None
    assert [message.metadata["kind"] for message in session.messages()] == ["not_delivered"]


async def test_prompt_4_a_turn_without_a_line_is_put_back(session: StoredSession) -> None:
    """It was claimed, and its backend was killed before it wrote; an earlier prompt's line says nothing of it."""
    reader, _turn, request_id = await in_a_turn(session)
    begun = [record(records.StdinLine(n=2)), record(records.StdinWritten(n=2))]
    await hear(session, reader, *begun, chunk("Yes."), answer(request_id, {"stopReason": "end_turn"}))
    claimed = await session.claim("And then?")
    await ended(session, session.reader(live=False), why="backend_killed")
    assert [prompt.message_id for prompt in session.store.queue(session.ref.session_id)] == [claimed.message_id]
    assert session.messages()[-1].metadata["kind"] == "not_delivered"


async def test_a_cancelled_turn_whose_agent_dies_is_cancelled(session: StoredSession) -> None:
    """A person wanted it to end; how it ended is no interruption."""
    reader, turn, _ = await in_a_turn(session)
    await hear(session, reader, record(records.StdinLine(n=2)))
    await session.database.write(lambda tx: tx.one("turn_cancel_request", session_id=session.ref.session_id, now="now"))
    await ended(session, reader)
    assert turn_of(session, turn).state == "cancelled"
    assert not session.store.session(session.ref.session_id).interrupted


# ---- late events


async def test_race_5_a_batch_of_another_execution_changes_nothing(session: StoredSession) -> None:
    """Neither text nor turn nor token nor position; whoever wrote it is told."""
    reader, turn, request_id = await in_a_turn(session)
    await session.replace_execution()
    before = (session.row, session.messages(), session.state)
    reader.feed([chunk("late"), ask(7), answer(request_id, {"stopReason": "end_turn"})])
    with pytest.raises(Superseded):
        await session.commit(reader)
    assert (session.row, session.messages(), session.state) == before
    assert turn_of(session, turn).state == "open"
    assert session.store.pending_permissions(session.ref.session_id) == []


async def test_a_new_execution_begins_without_position_and_state(session: StoredSession) -> None:
    """Both belong to the journal of one process."""
    reader, _turn, _ = await in_a_turn(session)
    await hear(session, reader, chunk("Hi"))
    session.ref = await session.replace_execution()
    fresh = session.reader()
    assert (fresh.position, fresh.state) == (0, ProtocolState())
    assert session.row.resume_token == TOKEN


async def test_complete_stream_events_carry_what_handlers_need(session: StoredSession) -> None:
    """The token in which the turn ended, and whether anything was said."""
    reader, turn, request_id = await in_a_turn(session)
    await hear(session, reader, chunk("Hi"), answer(request_id, {"stopReason": "end_turn"}))
    (effect,) = [effect for effect in session.effects if isinstance(effect, CompleteStreamEvent)]
    assert effect == CompleteStreamEvent(
        turn_id=turn.id,
        token=TOKEN,
        stop_reason="end_turn",
        known=True,
        usage={},
        silent=False,
        restored=False,
    )
