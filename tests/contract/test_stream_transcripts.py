"""What Claude Code wrote on its own command line, in November 2026: read as expected, and the same after any cut."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kandev.protocols import acp
from kandev.protocols.dialect import Event, SessionNamed
from kandev.protocols.stream_json import StreamJson, StreamState
from streamed import NAMES, encoded, flat, lines, said

PROMPTS = 100
"""The first id of a prompt; requests before it have the ids of the recording."""


def read(name: str, *, cuts: frozenset[int] | None = frozenset()) -> list[Event]:
    """Every event of a dialogue. Behind each line of `cuts` (None: every one) only the stored state is kept."""
    dialect, prompts, events = StreamJson(StreamState(protocol="stream-json")), PROMPTS, []
    for number, (way, message) in enumerate(lines(name)):
        if way == "in":
            events += flat(dialect.decode(encoded(message)))
        elif message["type"] == "user":
            dialect.prompt(prompts, "", message["message"]["content"][0]["text"])
            prompts += 1
        elif message["type"] == "control_request":
            write(dialect, message)
        if cuts is None or number in cuts:
            state = msgspec.json.decode(msgspec.json.encode(dialect._state), type=StreamState)
            dialect = StreamJson(state)
    return events


def write(dialect: StreamJson, message: dict[str, Any]) -> None:
    if message["request"]["subtype"] == "initialize":
        dialect.initialize(1)
    elif message["request"]["subtype"] == "interrupt":
        dialect.cancel("")


def kind_of(event: Event) -> str:
    if isinstance(event, acp.Chunk | acp.Update):
        return event.kind
    return type(event).__name__ if not isinstance(event, acp.Notification) or event.method else "nothing"


def texts(events: list[Event], kind: str = "agent_message_chunk") -> list[str]:
    """The messages of one kind, as the transcript joins them."""
    found: dict[str | None, str] = {}
    for event in events:
        if isinstance(event, acp.Chunk) and event.kind == kind:
            found[event.message_id] = found.get(event.message_id, "") + event.text
    return list(found.values())


def ends(events: list[Event]) -> list[acp.Response]:
    """The answers to prompts."""
    return [e for e in events if isinstance(e, acp.Response) and e.id is not None and e.id >= PROMPTS]


KINDS = {
    "asks": "Response 6, available_commands_update 1, SessionNamed 5, current_mode_update 6, user_message_chunk 5,"
    " tool_call 10, tool_call_update 5, agent_message_chunk 16, Request 4, Notification 1",
    "background": "Response 3, available_commands_update 1, SessionNamed 4, current_mode_update 3,"
    " user_message_chunk 2, tool_call 2, tool_call_update 1, agent_message_chunk 16",
    "commands": "Response 7, available_commands_update 1, SessionNamed 6, current_mode_update 6, user_message_chunk 4,"
    " agent_message_chunk 8",
    "errors": "Response 4, available_commands_update 1, SessionNamed 3, current_mode_update 3, user_message_chunk 2,"
    " agent_message_chunk 1",
    "first": "Response 4, available_commands_update 1, SessionNamed 4, current_mode_update 4, user_message_chunk 4,"
    " agent_message_chunk 21, tool_call 2, tool_call_update 1, Request 1",
    "fork": "SessionNamed 1, current_mode_update 1, user_message_chunk 1, agent_message_chunk 4, Response 1",
    "login": "Response 2, available_commands_update 1, SessionNamed 1, current_mode_update 1, user_message_chunk 1",
    "resume": "SessionNamed 1, current_mode_update 1, user_message_chunk 1, agent_message_chunk 3, Response 1",
    "resume-at": "SessionNamed 1, current_mode_update 1, user_message_chunk 1, agent_message_chunk 3, Response 1",
    "settings": "Response 6, available_commands_update 1, SessionNamed 1, current_mode_update 2,"
    " user_message_chunk 1, agent_message_chunk 2",
    "task": "Response 2, available_commands_update 1, SessionNamed 1, current_mode_update 1, user_message_chunk 1,"
    " tool_call 2, tool_call_update 1, agent_message_chunk 6",
    "unknown": "Response 1",
    "unknown-message": "Response 1",
    "unknown-prompted": "Response 1",
}


@pytest.mark.parametrize("name", NAMES)
def test_each_line_becomes_the_expected_events_and_none_is_noise(name: str) -> None:
    """Counts by kind, from a reading by eye; a transcript without its row fails. What is of no interest is left out."""
    counted = Counter(kind_of(event) for event in read(name))
    del counted["nothing"]
    assert counted == {kind: int(n) for kind, n in (part.split() for part in KINDS[name].split(", "))}


@pytest.mark.parametrize("name", NAMES)
def test_text_that_was_streamed_is_not_said_again(name: str) -> None:
    """Whole messages, which follow their own pieces, are the texts: each once, and nothing else."""
    whole = [
        block["text"]
        for message in said(name, "assistant")
        for block in message["message"]["content"]
        if block["type"] == "text" and message["parent_tool_use_id"] is None and not message.get("error")
    ]
    streamed = texts(read(name))
    if name == "first":
        assert streamed.pop().startswith("slow0 slow1 ")  # killed while it spoke
    assert streamed == whole


@pytest.mark.parametrize("name", NAMES)
def test_a_reading_that_is_cut_behind_every_line_says_the_same(name: str) -> None:
    """All that is remembered from line to line is in the stored state."""
    assert read(name, cuts=None) == read(name)


@given(name=st.sampled_from(NAMES), cuts=st.frozensets(st.integers(0, 140), max_size=8))
@settings(deadline=None)
def test_a_reading_that_is_cut_anywhere_says_the_same(name: str, cuts: frozenset[int]) -> None:
    """The same for any choice of lines."""
    assert read(name, cuts=cuts) == read(name)


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("first", ["end_turn", "end_turn", "cancelled"]),
        ("asks", ["end_turn"] * 4 + ["cancelled"]),
        ("background", ["end_turn"] * 2),
        ("commands", ["end_turn"] * 6),
        ("errors", ["", "end_turn", ""]),
        ("login", [""]),
        ("unknown-prompted", [""]),
    ],
)
def test_turns_end_once_each_and_for_a_known_reason(name: str, reasons: list[str]) -> None:
    """One end for each prompt: not for a turn that the agent began by itself, and not one missing for its commands."""
    answers = ends(read(name))
    assert [answer.id for answer in answers] == list(range(PROMPTS, PROMPTS + len(reasons)))
    assert [acp.stop_reason(answer.result)[0] for answer in answers] == reasons
    assert all(answer.error is None for answer, reason in zip(answers, reasons, strict=True) if reason)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("errors", "API Error: 400 fake model failure 400"),
        ("login", "Not logged in · Please run /login"),
        ("unknown-prompted", "No conversation found with session ID: 11111111-2222-4333-8444-555555555555"),
    ],
)
def test_errors_are_in_the_agents_own_words(name: str, message: str) -> None:
    """The same words are not also said as a text of the agent."""
    events = read(name)
    error = ends(events)[0].error
    assert error is not None
    assert error["message"] == message
    assert not any(message in text for text in texts(events))


@pytest.mark.parametrize("name", ["unknown", "unknown-message"])
def test_a_session_that_could_not_be_restored_answers_the_first_request(name: str) -> None:
    """It ends without an answer to it; what it says at its end is that answer."""
    (answer,) = [event for event in read(name) if isinstance(event, acp.Response)]
    assert (answer.id, answer.result) == (1, None)
    assert answer.error is not None
    assert answer.error["message"].startswith("No ")


def test_tools_are_shown_with_what_they_do_and_what_came_of_it() -> None:
    """Title, kind and difference stand with the call; the result of an edit leaves its difference where it is."""
    events = read("asks")
    calls = {e.body["toolCallId"]: e.body for e in events if isinstance(e, acp.Update) and e.kind == "tool_call"}
    assert [(call["title"], call["kind"]) for call in calls.values()][:4] == [
        ("Write /work/project/x.txt", "edit"),
        ("Read /work/project/x.txt", "read"),
        ("Edit /work/project/x.txt", "edit"),
        ("curl -s http://127.0.0.1:9/; true", "execute"),
    ]
    edit = list(calls.values())[2]
    assert edit["content"] == [{"type": "diff", "path": "/work/project/x.txt", "oldText": "hi", "newText": "ho"}]
    results = [e.body for e in events if isinstance(e, acp.Update) and e.kind == "tool_call_update"]
    assert [result["status"] for result in results] == ["completed", "completed", "completed", "failed", "failed"]
    assert ["content" in result for result in results] == [False, True, False, True, True]
    assert acp.tool_output(results[1]) == "1\thi"
    assert acp.tool_output(results[2]).startswith("The file /work/project/x.txt has been updated")


def test_permission_is_asked_for_in_the_words_of_acp() -> None:
    """What "always" would mean is told by the agent; the answer needs what is in the tool call."""
    asked = [acp.permission(e.params) for e in read("asks") if isinstance(e, acp.Request)]
    assert [option.kind for option in asked[0].options] == ["allow_once", "allow_always", "reject_once"]
    assert [ask.options[1].name for ask in asked[:2]] == ["Always allow: mode acceptEdits"] * 2
    assert (asked[2].title, asked[2].kind) == ("curl -s http://127.0.0.1:9/; true", "execute")
    assert asked[0].tool_call_id.startswith("toolu_")


def test_the_first_answer_tells_version_modes_models_and_commands() -> None:
    """In the shape that ACP's answers have."""
    events = read("settings")
    setup = next(e.result for e in events if isinstance(e, acp.Response))
    assert acp.AgentInfo.from_initialize(setup).version == "2.1.318"
    read_setup = acp.session_setup(setup)
    assert read_setup.current_mode == "default"
    assert "plan" in {mode.id for mode in read_setup.modes}
    assert [model.id for model in read_setup.models] == ["default", "opus"]
    answers = [e for e in events if isinstance(e, acp.Response) and e.id in {2, 3, 4, 5}]
    assert [answer.error is None for answer in answers] == [True, False, True, True]
    assert "must be one of" in str(answers[1].error)


def test_tok_6_the_last_message_of_a_turn_is_told_at_its_end() -> None:
    """The agent's own commands tell none, and say that they prove nothing."""
    results = [end.result or {} for end in ends(read("commands"))]
    known = {message["uuid"] for message in said("commands", "assistant")}
    assert [result.get("lastMessageUuid") in known for result in results] == [True, True, False, False, False, True]
    assert [result.get("turns") for result in results] == [None, None, 0, 0, 0, None]


def test_what_is_said_outside_of_a_turn_moves_the_last_message() -> None:
    """A task in the background ended between two turns: the agent's record goes on, and the next resume keeps that."""
    named = [e.last_message_uuid for e in read("background") if isinstance(e, SessionNamed) and e.last_message_uuid]
    assert named == [said("background", "assistant")[2]["uuid"]]


def test_a_subagents_words_are_not_the_agents() -> None:
    """They belong to the call that it runs in, which has a result of its own."""
    assert all("n=2" not in text for text in texts(read("task")))
