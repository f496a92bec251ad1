"""What an agent says becomes messages: text is joined, tool calls and plans are kept as one message each."""

from collections.abc import Iterator
from typing import Any

import pytest

from kandev.domain.constants import MESSAGE_PART_BYTES
from kandev.domain.models import Message
from kandev.lifecycle.reader import Reader
from kandev.store.sqlite import SqliteDatabase
from stored import StoredSession, answer, chunk, stored, update

THOUGHT = "agent_thought_chunk"
USER = "user_message_chunk"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    """One database for the module; each test has a session of its own in it."""
    with stored(tmp_path_factory.mktemp("transcript")) as opened:
        yield opened


class Turn:
    """A session in a turn: `hear` what the agent says, look at `said`, `end` it."""

    def __init__(self, session: StoredSession, reader: Reader, request_id: int) -> None:
        self.session = session
        self.reader = reader
        self.request_id = request_id

    async def hear(self, *lines: bytes) -> None:
        self.reader.feed(lines)
        await self.session.commit(self.reader)

    async def end(self, stop_reason: str = "end_turn") -> None:
        await self.hear(answer(self.request_id, {"stopReason": stop_reason}))

    async def begin_another(self) -> None:
        _, self.request_id = await self.session.prompt(self.reader, "And then?")

    @property
    def said(self) -> list[Message]:
        """The messages that are not the user's."""
        return [message for message in self.session.messages() if message.author_type != "user"]

    @property
    def texts(self) -> list[tuple[str, str]]:
        """Type and content of each."""
        return [(message.type, message.content) for message in self.said]


@pytest.fixture
async def turn(database: SqliteDatabase) -> Turn:
    """A turn whose prompt was sent; the agent has said nothing yet."""
    session = await StoredSession.create(database)
    reader = session.reader()
    await session.opened(reader)
    _, request_id = await session.prompt(reader)
    return Turn(session, reader, request_id)


# ---- text


async def test_chunks_of_one_message_are_joined(turn: Turn) -> None:
    """One message, whichever commits its pieces came in; its text can be read while it grows."""
    await turn.hear(chunk("Hel"), chunk("lo"))
    assert turn.texts == [("message", "Hello")]
    assert turn.said[0].metadata == {"streaming": True}
    await turn.hear(chunk(", you"))
    await turn.end()
    (message,) = turn.said
    assert (message.content, message.metadata) == ("Hello, you", {})


async def test_another_message_id_begins_another_message(turn: Turn) -> None:
    """The agent says where its messages end."""
    await turn.hear(chunk("one", message_id="a"), chunk(" more", message_id="a"), chunk("two", message_id="b"))
    assert turn.texts == [("message", "one more"), ("message", "two")]


async def test_thoughts_and_answers_are_apart(turn: Turn) -> None:
    """A change of kind begins a new message; both keep their order."""
    await turn.hear(chunk("hm", THOUGHT), chunk("Yes."), chunk("but", THOUGHT), chunk(" so", THOUGHT))
    assert turn.texts == [("thinking", "hm"), ("message", "Yes."), ("thinking", "but so")]


async def test_whatever_comes_between_ends_a_message(turn: Turn) -> None:
    """A tool call has its place between the texts around it."""
    await turn.hear(chunk("Before."), update("tool_call", toolCallId="1", title="ls"), chunk("After."))
    assert turn.texts == [("message", "Before."), ("tool_call", "ls"), ("message", "After.")]
    assert [message.seq for message in turn.said] == [2, 3, 4]


async def test_empty_chunks_make_no_message(turn: Turn) -> None:
    """Some agents begin with one; it says nothing, and does not end what was said either."""
    await turn.hear(chunk(""), chunk("", THOUGHT), chunk("a"), chunk(""), chunk("b"))
    assert turn.texts == [("message", "ab")]


async def test_an_echo_of_the_user_is_dropped(turn: Turn) -> None:
    """The user's message is stored already; an echo does not cut the agent's text."""
    await turn.hear(chunk("Hello?", USER), chunk("He"), chunk("Hello?", USER), chunk("y"))
    assert turn.texts == [("message", "Hey")]


async def test_content_that_is_no_text_has_a_message_of_its_own(turn: Turn) -> None:
    """It is shown as what it is, and kept raw."""
    image = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
    await turn.hear(chunk("See:"), update("agent_message_chunk", content=image), chunk("Nice."))
    assert turn.texts == [("message", "See:"), ("message", "[image: image/png]"), ("message", "Nice.")]
    assert turn.said[1].metadata == {"raw": image}


async def test_long_text_is_stored_in_pieces_and_folded(turn: Turn) -> None:
    """No row that grows; offsets count characters, also those of more than one byte."""
    text = "é🙂" * MESSAGE_PART_BYTES
    await turn.hear(chunk(text[:5]), chunk(text[5:]))
    sizes = [len(event.payload["text"]) for event in turn.session.events if event.action == "session.message.delta"]
    assert sizes == [MESSAGE_PART_BYTES, MESSAGE_PART_BYTES]
    assert turn.texts == [("message", text)]
    await turn.end()
    assert turn.texts == [("message", text)]
    parts = turn.session.database._connection.execute(
        "SELECT count(*) FROM message_parts WHERE message_id = ?", (turn.said[0].id,)
    )
    assert parts.fetchone()[0] == 0


async def test_subscribers_get_deltas_with_offsets_and_then_the_whole(turn: Turn) -> None:
    """Added empty, then pieces at their places, then the closed message."""
    await turn.hear(chunk("Hé"))
    await turn.hear(chunk("llo"))
    await turn.end()
    actions = [event for event in turn.session.events if event.action.startswith("session.message.")]
    deltas = [(event.payload["offset"], event.payload["text"]) for event in actions if "delta" in event.action]
    assert deltas == [(0, "Hé"), (2, "llo")]
    assert [event.action.removeprefix("session.message.") for event in actions] == [
        "added",
        "delta",
        "delta",
        "updated",
    ]
    assert actions[-1].payload["message"].content == "Héllo"


# ---- tool calls


def call(message: Message) -> dict[str, Any]:
    return {key: message.metadata[key] for key in ("status", "kind", "tool_call_id")}


async def test_a_tool_call_is_one_message_that_is_patched(turn: Turn) -> None:
    """What an update does not tell, or tells as null, stays as it was."""
    await turn.hear(
        update("tool_call", toolCallId="1", title="List", kind="execute", status="pending", rawInput={"a": 1})
    )
    await turn.hear(update("tool_call_update", toolCallId="1", status="in_progress", title=None))
    await turn.hear(update("tool_call_update", toolCallId="1", status="completed", rawOutput="done"))
    (message,) = turn.said
    assert (message.type, message.content) == ("tool_call", "List")
    assert call(message) == {"status": "completed", "kind": "execute", "tool_call_id": "1"}
    assert message.metadata["tool_call"]["rawInput"] == {"a": 1}
    assert message.metadata["tool_call"]["rawOutput"] == "done"


async def test_a_second_tool_call_with_one_id_is_the_same_call(turn: Turn) -> None:
    """Some agents repeat the whole call instead of an update."""
    await turn.hear(update("tool_call", toolCallId="1", title="List", status="pending"))
    await turn.hear(update("tool_call", toolCallId="1", title="List all", status="completed"))
    assert turn.texts == [("tool_call", "List all")]


async def test_wire_3_an_update_without_its_start_is_a_call(turn: Turn) -> None:
    """Nothing that an agent did is hidden because it forgot to announce it."""
    await turn.hear(update("tool_call_update", toolCallId="9", kind="read", status="completed"))
    (message,) = turn.said
    assert message.content == "read"
    assert call(message) == {"status": "completed", "kind": "read", "tool_call_id": "9"}


async def test_wire_3_unknown_values_are_kept_raw(turn: Turn) -> None:
    """A status or kind that nobody knows is told as it came; one of a wrong type counts as untold."""
    await turn.hear(update("tool_call", toolCallId="1", title="T", status="resting", kind="dream", mood="good"))
    await turn.hear(update("tool_call", toolCallId="2", title=["T"], status=7, kind=None))
    first, second = turn.said
    assert call(first) == {"status": "resting", "kind": "dream", "tool_call_id": "1"}
    assert first.metadata["tool_call"]["mood"] == "good"
    assert call(second) == {"status": "", "kind": "other", "tool_call_id": "2"}
    assert second.content == "tool"


async def test_several_updates_in_one_commit_are_one_write(turn: Turn) -> None:
    """A burst costs one row and one event; the last version is the one that is told."""
    lines = [update("tool_call_update", toolCallId="1", status="in_progress", n=n) for n in range(50)]
    await turn.hear(update("tool_call", toolCallId="1", title="T"), *lines)
    told = [event for event in turn.session.events if event.action.startswith("session.message.")]
    assert [event.action for event in told] == ["session.message.added"]
    assert told[0].payload["message"].metadata["tool_call"]["n"] == 49


@pytest.mark.parametrize(("stop_reason", "status"), [("cancelled", "cancelled"), ("end_turn", "in_progress")])
async def test_a_cancelled_turn_closes_its_tool_calls(turn: Turn, stop_reason: str, status: str) -> None:
    """After a cancel nothing goes on; after a usual end the agent may leave work running in the background."""
    await turn.hear(
        update("tool_call", toolCallId="1", title="T", status="in_progress"),
        update("tool_call", toolCallId="2", title="T", status="completed"),
    )
    await turn.end(stop_reason)
    assert [message.metadata["status"] for message in turn.said[:2]] == [status, "completed"]


async def test_a_cancelled_tool_call_stays_cancelled_when_its_agent_ends(turn: Turn) -> None:
    """Only what was still open becomes unknown."""
    await turn.hear(update("tool_call", toolCallId="1", title="T", status="in_progress"))
    await turn.end("cancelled")
    await turn.begin_another()
    await turn.hear(update("tool_call", toolCallId="2", title="T", status="in_progress"))
    turn.reader.agent_ended(stderr="")
    await turn.hear()
    calls = [message for message in turn.said if message.type == "tool_call"]
    assert [message.metadata["status"] for message in calls] == ["cancelled", "unknown"]


async def test_the_end_of_an_agent_that_is_idle_keeps_cancelled_calls(turn: Turn) -> None:
    """The same without a turn between."""
    await turn.hear(update("tool_call", toolCallId="1", title="T", status="in_progress"))
    await turn.end("cancelled")
    turn.reader.agent_ended(stderr="", why="idle")
    await turn.hear()
    assert [message.metadata["status"] for message in turn.said] == ["cancelled"]


async def test_a_tool_call_belongs_to_its_turn(turn: Turn) -> None:
    """An agent may count its calls anew in each turn."""
    await turn.hear(update("tool_call", toolCallId="1", title="First", status="completed"))
    await turn.end()
    await turn.begin_another()
    await turn.hear(update("tool_call", toolCallId="1", title="Second", status="completed"))
    assert turn.texts == [("tool_call", "First"), ("tool_call", "Second")]
    assert len({message.turn_id for message in turn.said}) == 2


# ---- plans, and what nobody knows


async def test_a_plan_is_one_message_a_turn(turn: Turn) -> None:
    """Each update replaces the plan in its place; the next turn has a plan of its own."""
    entries = [{"content": "Dig", "status": "pending", "priority": "high"}]
    done = [{"content": "Dig", "status": "completed", "priority": "high"}, {"content": "Fill", "status": "pending"}]
    await turn.hear(update("plan", entries=entries))
    await turn.hear(chunk("Digging."), update("plan", entries=done))
    assert turn.texts == [("plan", "[completed] Dig\n[pending] Fill"), ("message", "Digging.")]
    assert turn.session.agent_state()["plan"] == done
    await turn.end()
    await turn.begin_another()
    await turn.hear(update("plan", entries=entries))
    assert [message.content for message in turn.said if message.type == "plan"] == [
        "[completed] Dig\n[pending] Fill",
        "[pending] Dig",
    ]


async def test_a_plan_without_sense_harms_nothing(turn: Turn) -> None:
    """Neither a wrong type nor a wrong entry ends the session."""
    await turn.hear(update("plan", entries="none"), update("plan"), update("plan", entries=[7, {"content": None}]))
    assert turn.texts == [("plan", "[?] None")]


async def test_wire_3_an_unknown_update_is_shown_as_unknown(turn: Turn) -> None:
    """With everything that it held; and one that does not even tell its kind."""
    await turn.hear(chunk("So."), update("weather_report", sky="blue"), update("", x=1), chunk("On."))
    assert turn.texts == [("message", "So."), ("unknown", "weather_report"), ("unknown", "?"), ("message", "On.")]
    assert turn.said[1].metadata == {"raw": {"sessionUpdate": "weather_report", "sky": "blue"}}


STATES = [
    (update("current_mode_update", currentModeId="plan"), "mode", "plan", "session.mode_changed"),
    (update("available_commands_update", availableCommands=[{"name": "x"}]), "commands", [{"name": "x"}],
     "session.commands_changed"),
    (update("config_option_update", configOptions=[{"id": "o"}]), "options", [{"id": "o"}], "session.options_changed"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "key", "value", "action"), STATES, ids=["mode", "commands", "options"])
async def test_what_an_agent_says_of_itself_is_kept_and_told(
    turn: Turn, line: bytes, key: str, value: Any, action: str
) -> None:
    """Modes, commands and options are no messages; whoever looks on is told of them."""
    await turn.hear(line)
    assert turn.said == []
    assert turn.session.agent_state()[key] == value
    (event,) = [event for event in turn.session.events if event.action == action]
    assert event.payload == {key: value}


# ---- the end of a turn, and what comes late


async def test_state_7_a_late_tail_loses_no_text_and_ends_nothing_twice(turn: Turn) -> None:
    """What comes behind the answer belongs to the turn that it ended, and is closed by the next one."""
    await turn.hear(chunk("Done"))
    await turn.end()
    await turn.hear(chunk(" now"), chunk("."))
    assert turn.texts == [("message", "Done"), ("message", " now.")]
    assert turn.said[0].turn_id == turn.said[1].turn_id
    await turn.begin_another()
    await turn.hear(chunk("Next"))
    assert turn.texts == [("message", "Done"), ("message", " now."), ("message", "Next")]
    assert [message.metadata for message in turn.said] == [{}, {}, {"streaming": True}]
    completed = [event for event in turn.session.events if event.action == "session.turn.completed"]
    assert len(completed) == 1


async def test_state_4_partial_text_is_kept_once_when_the_agent_dies(turn: Turn) -> None:
    """The open message is closed with what it has."""
    await turn.hear(chunk("I was ab"))
    turn.reader.feed([chunk("out to")])
    turn.reader.agent_ended(stderr="boom")
    await turn.hear()
    assert [message.content for message in turn.said if message.type == "message"] == ["I was about to"]
    assert "streaming" not in turn.said[0].metadata


async def test_closed_messages_are_handed_to_the_history(turn: Turn) -> None:
    """Text when it is whole, a tool call when it begins and when it is done; in order."""
    await turn.hear(chunk("Look"), update("tool_call", toolCallId="1", title="T", status="pending"))
    await turn.hear(update("tool_call_update", toolCallId="1", status="in_progress"))
    await turn.hear(update("tool_call_update", toolCallId="1", status="failed"), chunk("Oh."))
    await turn.end()
    assert [(message.content, message.metadata.get("status")) for message in turn.session.closed] == [
        ("Look", None),
        ("T", "pending"),
        ("T", "failed"),
        ("Oh.", None),
    ]
