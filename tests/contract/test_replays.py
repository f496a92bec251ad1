"""Every recorded conversation of a real agent through the reader and into the store: what a session keeps of it.

The recordings in transcripts/replays are of November 2026, without a network, scrubbed and shortened. Each of their
processes is read as the backend reads it. What must come out is told by `Heard`, a plain reading of the same JSON.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kandev.agentctl import records
from kandev.domain.failures import classify_load_failure, classify_prompt_failure
from kandev.domain.models import Message, PermissionState, now
from kandev.lifecycle.batch import Applied
from kandev.lifecycle.permissions import resolved_events, rpc_key
from kandev.lifecycle.protocol_state import Phase
from kandev.protocols import acp
from kandev.store.database import Tx
from kandev.store.sqlite import SqliteDatabase
from recorded import REPLAYS, processes
from stored import StoredSession, stored

CHUNKS = {"agent_message_chunk": "message", "agent_thought_chunk": "thinking"}
OPENERS = {"session/load", "session/resume"}
ENDS = {"end_turn": "completed", "refusal": "completed", "cancelled": "cancelled"}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    """One database for the module; each process has a session of its own in it."""
    with stored(tmp_path_factory.mktemp("replays")) as opened:
        yield opened


class Heard:
    """A plain reading of one process: what is to be kept of it, and what belongs to a replay."""

    def __init__(self, process: list[dict[str, Any]]) -> None:
        self.token = ""
        self.texts = {"message": "", "thinking": ""}
        self.tools: list[str] = []
        self.turns: list[str] = []
        self.replayed: Counter[str] = Counter()
        self.refused: list[tuple[str, Any]] = []
        self.asked = 0
        self._replaying = False
        self._methods: dict[Any, dict[str, Any]] = {}
        for record in process:
            message = record.get("msg") or answer_behind(record["text"])
            if message is not None and record["dir"] == "out":
                self._sent(message)
            elif message is not None:
                self._said(message)

    def _sent(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method and "id" in message:
            self._methods[message["id"]] = message
        if method in OPENERS:
            self._replaying = True
        if method == "session/prompt":
            self._replaying = False
            self.turns.append("interrupted")

    def _said(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            self._answered(self._methods.pop(message["id"]), message)
        elif message["method"] == "session/request_permission":
            self.asked += 1
        elif message["method"] == "session/update":
            self._told(message["params"]["update"])

    def _answered(self, asked: dict[str, Any], message: dict[str, Any]) -> None:
        method, error = asked["method"], message.get("error")
        if error is not None and method in {*OPENERS, "session/new", "session/prompt"}:
            self.refused.append((method, error))
        if method == "session/prompt":
            self.turns[-1] = "failed" if error else ENDS[message["result"]["stopReason"]]
        elif method == "session/new" and not error:
            self.token, self._replaying = message["result"]["sessionId"], False
        elif method in OPENERS and not error:
            self.token = asked["params"]["sessionId"]

    def _told(self, update: dict[str, Any]) -> None:
        kind = update["sessionUpdate"]
        if self._replaying:
            self.replayed[kind] += 1
        elif kind in CHUNKS:
            self.texts[CHUNKS[kind]] += update["content"]["text"]
        elif kind in {"tool_call", "tool_call_update"} and update["toolCallId"] not in self.tools:
            self.tools.append(update["toolCallId"])


def answer_behind(text: str) -> dict[str, Any] | None:
    """The answer that an agent wrote on the line of a prompt of its own, else None."""
    _, begin, rest = text.partition('{"jsonrpc"')
    message = msgspec.json.decode(begin + rest) if begin else {"method": "none"}
    return None if "method" in message else message


class Played:
    """One process as a backend would have had it: our lines are stored and sent, its lines are fed and committed."""

    def __init__(self, session: StoredSession) -> None:
        self.session = session
        self.reader = session.reader()
        self.replayed: Counter[str] = Counter()
        self._ids: dict[Any, int] = {}

    async def play(self, process: list[dict[str, Any]]) -> None:
        """Plays all of it, then ends the agent."""
        for record in process:
            if record["dir"] == "out":
                await self._send(record["msg"])
            else:
                self.reader.feed([self._line(record)])
        await self.session.commit(self.reader)
        self._keep_replayed()
        self.reader.feed([records.encode(records.Exited(code=0, signal=None)).removesuffix(b"\n")])
        self.reader.agent_ended(stderr="")
        await self.session.commit(self.reader)

    def _line(self, record: dict[str, Any]) -> bytes:
        message = record.get("msg")
        if message is None:
            answer = answer_behind(record["text"])
            text: str = record["text"]
            if answer is None:
                return text.encode()
            return text.partition("{")[0].encode() + msgspec.json.encode({**answer, "id": self._ids[answer["id"]]})
        if "method" not in message:
            message = {**message, "id": self._ids[message["id"]]}
        return msgspec.json.encode(message)

    async def _send(self, message: dict[str, Any]) -> None:
        session, reader, method = self.session, self.reader, message.get("method", "")
        await session.commit(reader)
        params = message.get("params", {})
        if method == "session/prompt":
            if not reader.state.restored and session.row.resume_token != reader.state.agent_session_id:
                reader.state.agent_session_id = ""  # the session was refused, so there is none
            _turn, self._ids[message["id"]] = await session.prompt(reader, params["prompt"][0]["text"])
        elif not method:
            await self._reply(message)
        elif "id" not in message:
            reader.queue_line(acp.cancel(params["sessionId"]))
        else:
            if method in OPENERS:
                self._keep_replayed()
                state = reader.state
                state.phase, state.agent_session_id, state.replayed = Phase.REPLAYING, params["sessionId"], {}
            elif method == "session/new":
                reader.state.agent_session_id = ""
            request_id = reader.begin_request(method, mode=params.get("modeId", ""))
            reader.queue_line(acp.close_session(request_id, "the agent does not read it"))
            self._ids[message["id"]] = request_id
        self._journal_says_written()

    def _journal_says_written(self) -> None:
        number = self.reader.state.next_line - 1
        for record in (records.StdinLine(n=number), records.StdinWritten(n=number)):
            self.reader.feed([records.encode(record).removesuffix(b"\n")])

    def _keep_replayed(self) -> None:
        self.replayed.update(self.reader.state.replayed)

    async def _reply(self, message: dict[str, Any]) -> None:
        """A person answers a permission, as PermissionService stores it; a refused request was answered by itself."""
        if "error" in message:
            return
        reader, session = self.reader, self.session
        request_id = reader.state.permissions.pop(rpc_key(message["id"]))
        option = message["result"]["outcome"]["optionId"]
        reader.queue_line(acp.permission_selected(message["id"], option))

        def change(tx: Tx, applied: Applied) -> None:
            row = tx.one("permission_resolve", id=request_id, state=PermissionState.ANSWERED, answer=option, now=now())
            assert row is not None
            applied.events.extend(resolved_events(tx, row, session.ref.task_id))

        reader.batch.add(change)
        await session.commit(reader)


async def play(database: SqliteDatabase, process: list[dict[str, Any]]) -> Played:
    played = Played(await StoredSession.create(database))
    await played.play(process)
    return played


def turns(session: StoredSession) -> list[dict[str, Any]]:
    statement = "SELECT * FROM turns WHERE session_id = ? ORDER BY rowid"
    return [dict(row) for row in session.database._connection.execute(statement, (session.ref.session_id,))]


def text(messages: list[Message], kind: str) -> str:
    return "".join(one.content for one in messages if one.author_type == "agent" and one.type == kind)


@pytest.mark.parametrize("name", REPLAYS)
async def test_a_session_keeps_of_a_recording_what_was_said(database: SqliteDatabase, name: str) -> None:
    """Text, thoughts, tool calls, questions, ends of turns, token; and of a replay nothing but its counts."""
    for process in processes(name):
        heard, played = Heard(process), await play(database, process)
        session, messages = played.session, played.session.messages()
        assert {kind: text(messages, kind) for kind in heard.texts} == heard.texts
        tools = [one.metadata["tool_call_id"] for one in messages if one.type == "tool_call"]
        assert tools == heard.tools
        assert len([one for one in messages if one.type == "permission_request"]) == heard.asked
        assert [turn["state"] for turn in turns(session)] == heard.turns
        assert session.row.resume_token == heard.token
        assert played.replayed == heard.replayed
        assert played.reader.noise == sum("text" in record and not answer_behind(record["text"]) for record in process)


UNKNOWN_WITHOUT_RESUME = "load unknown_session, load unknown_session, resume unsupported, prompt unknown_session"
REFUSED = {
    "auggie-new": "new login",
    "auggie-nologin-new": "new login",
    "auggie-sessionauth-empty-load": "load unknown_session",
    "auggie-sessionauth-midturn-load": "prompt failed",
    "auggie-sessionauth-resume": "resume unsupported",
    "auggie-sessionauth-unknown": UNKNOWN_WITHOUT_RESUME,
    "claude-empty-load": "load unknown_session",
    "claude-unknown": "load unknown_session, load unknown_session, resume unknown_session, prompt unknown_session",
    "codex-empty-load": "load unknown_session",
    "codex-twolive-b": "load in_use",
    "codex-unknown": "load unknown_session, load cannot_restore, resume unknown_session, prompt unknown_session",
    "copilot-empty-load": "load unknown_session",
    "copilot-midturn-load": "load in_use",
    "copilot-nologin-new": "new login",
    "copilot-resume": "resume unsupported",
    "copilot-unknown": UNKNOWN_WITHOUT_RESUME,
    "fastagent-empty-load": "load unknown_session",
    "fastagent-midturn-load": "prompt failed",
    "fastagent-othercwd": "load unknown_session",
    "fastagent-passthrough-empty-load": "load unknown_session",
    "fastagent-passthrough-othercwd": "load unknown_session",
    "fastagent-passthrough-twolive-b": "load in_use",
    "fastagent-passthrough-unknown": "load unknown_session, load unknown_session, resume unknown_session",
    "fastagent-serverdeath-b": ", ".join(["load in_use"] * 15),
    "fastagent-twolive-b": "load in_use",
    "fastagent-unknown": "load unknown_session, load unknown_session, resume unknown_session",
    "gemini-empty-load": "load unknown_session",
    "gemini-midturn-load": "prompt failed",
    "gemini-nologin-load": "load unknown_session",
    "gemini-nologin-new": "new login, new login, prompt login, prompt login, prompt login",
    "gemini-othercwd": "load unknown_session",
    "gemini-resume": "resume unsupported",
    "gemini-sameminute-load": "load unknown_session",
    "gemini-twice-default-load2": "load unknown_session",
    "gemini-twice-default-load3": "load unknown_session",
    "gemini-twolive-c": "load unknown_session",
    "gemini-unknown": UNKNOWN_WITHOUT_RESUME,
    "opencode-unknown": "load cannot_restore, load cannot_restore, resume cannot_restore, prompt unknown_session",
}


@pytest.mark.parametrize("name", REPLAYS)
def test_wire_9_tok_8_tok_13_tok_14_refusals_mean_what_a_person_reads(name: str) -> None:
    """Six agents, five codes for a session that is not known; the table is from a reading by eye."""
    meant = []
    for process in processes(name):
        for method, error in Heard(process).refused:
            classify = classify_load_failure if method in OPENERS else classify_prompt_failure
            meant.append(f"{method.removeprefix('session/')} {classify(error, session_id='')}")
    assert ", ".join(meant) == REFUSED.get(name, "")


# ---- what each of them does that the others do not


async def only(database: SqliteDatabase, name: str) -> Played:
    (process,) = processes(name)
    return await play(database, process)


async def test_a_question_and_a_notice_outside_of_any_turn_are_kept(database: SqliteDatabase) -> None:
    """Auggie speaks and asks right after session/new; a person can answer, and no turn is begun by it."""
    session = (await only(database, "auggie-sessionauth-empty")).session
    notice, question, thanks = session.messages()
    assert (notice.type, question.type, thanks.type) == ("message", "permission_request", "message")
    assert question.metadata["state"] == "answered"
    assert {one.turn_id for one in session.messages()} == {None}
    assert (session.state, turns(session)) == ("WAITING_FOR_INPUT", [])


@pytest.mark.parametrize(
    ("name", "state", "said"),
    [
        ("codex-midturn-load", "completed", "fake model failure 400"),
        ("copilot-midturn-load", "completed", "400"),
        ("auggie-sessionauth-midturn-load", "failed", "400"),
        ("fastagent-midturn-load", "failed", "400"),
        ("gemini-midturn-load", "failed", "fake model failure 400"),
        ("opencode-midturn-load", "interrupted", ""),
    ],
)
async def test_a_failure_of_the_model_is_told_as_the_agent_tells_it(
    database: SqliteDatabase, name: str, state: str, said: str
) -> None:
    """As text of a turn that ends well, as an error, or never: then the turn is cut off when the agent is ended."""
    session = (await only(database, name)).session
    last = turns(session)[-1]
    assert last["state"] == state
    texts = [one.content for one in session.messages() if one.turn_id == last["id"] and one.author_type == "agent"]
    errors = [one.content for one in session.messages() if one.metadata.get("kind") == "turn_failed"]
    assert said in "".join(texts if state == "completed" else errors[-1:])


@pytest.mark.parametrize(
    ("agent", "kept"),
    [
        ("auggie-sessionauth", False),
        ("claude", True),
        ("codex", False),
        ("copilot", True),
        ("gemini", False),
    ],
)
def test_wire_12_a_mode_that_a_load_lost_is_seen_in_its_answer(agent: str, kept: bool) -> None:  # noqa: FBT001 - a row of the table
    """The mode that was set before the kill is compared with the one that load names."""
    before, after = processes(f"{agent}-mode")[0], processes(f"{agent}-mode-load")[0]
    (wanted,) = [one["msg"]["params"]["modeId"] for one in before if one["msg"].get("method") == "session/set_mode"]
    setup = acp.session_setup(answer_to_load(after))
    assert (setup.current_mode == wanted) is kept
    assert wanted in {mode.id for mode in setup.modes}


def answer_to_load(process: list[dict[str, Any]]) -> Any:
    (request_id,) = [one["msg"]["id"] for one in process if one["msg"].get("method") == "session/load"]
    (answer,) = [one["msg"] for one in process if one["dir"] == "in" and one["msg"].get("id") == request_id]
    return answer["result"]


async def test_wire_1_an_answer_behind_a_prompt_of_the_agents_own_ends_the_turn(database: SqliteDatabase) -> None:
    """Gemini without a login asks on stdout for a code, and writes its answer on the same line."""
    session = (await only(database, "gemini-nologin-new")).session
    assert [turn["state"] for turn in turns(session)] == ["failed"] * 3
    assert session.store.session(session.ref.session_id).queue_held == "login_required"
