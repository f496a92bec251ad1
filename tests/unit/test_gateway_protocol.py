"""The envelope and the typed requests: whatever a client sends gets an answer that says what was wrong."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kandev.domain.constants import FRAME_BYTES
from kandev.errors import BadRequest, Conflict, Invalid, UnknownAction
from kandev.gateway import protocol
from kandev.gateway.actions import ACTIONS, perform
from kandev.gateway.protocol import Refusal, Request, decode_frame

CONTRACT = {
    "health": ["check"],
    "agent": ["list", "check"],
    "runtime": ["list"],
    "id": ["resolve"],
    "task": ["create", "list", "get", "board", "update", "complete", "delete", "subscribe", "unsubscribe"],
    "task.session": ["create", "list", "get", "start", "status", "resume", "recover", "cancel", "stop", "delete"],
    "session": ["set_mode", "set_config_option", "logs", "recap.preview", "subscribe", "unsubscribe"],
    "workspace": ["rebuild"],
    "message": ["add", "list", "get", "search", "queue.list", "queue.cancel", "queue.resume"],
    "turn": ["send_again"],
    "permission": ["list", "respond"],
}

IDS = {"task_id": "t1", "session_id": "s1"}


def payload_of(action: str, /, **payload: Any) -> Any:
    """The typed payload of a request as it comes off the wire."""
    (request,) = decode_frame(json.dumps({"action": action, "payload": payload}))
    assert isinstance(request, Request)
    return protocol.decode_payload(request, ACTIONS[action].decoder)


def refused(action: str, /, **payload: Any) -> Invalid:
    """The error of a payload that must be refused."""
    with pytest.raises(Invalid) as error:
        payload_of(action, **payload)
    return error.value


def test_every_action_of_the_contract_is_there() -> None:
    """The table has the contract's actions, and nothing that the contract's documents do not name."""
    assert set(ACTIONS) == {f"{room}.{name}" for room, names in CONTRACT.items() for name in names}


def test_several_requests_share_a_frame_one_a_line() -> None:
    """They come out in order; empty lines and the end of the frame are nothing."""
    frame = '{"id": "1", "action": "a"}\n\r\n{"id": 2, "action": "b", "type": "request", "payload": {"x": "\\n"}}\n'
    assert [(item.id, item.action) for item in decode_frame(frame)] == [("1", "a"), (2, "b")]


def test_a_line_separator_inside_a_text_does_not_split_a_message() -> None:
    """Only a newline does; U+2028 and U+0085 are text."""
    (request,) = decode_frame('{"action": "a", "payload": {"x": "\u2028\x85"}}')
    assert isinstance(request, Request)


@pytest.mark.parametrize(
    "frame",
    ["{", "[]", "5", '"x"', "null", "{}", '{"action": 5}', '{"action": null}', '{"action": "a"} x', b"\xff", "\ufeff{}",
     '{"action": "a", "payload": {"x": "\x01"}}', '{"action": "a", "payload": NaN}',
     '{"action": "a", "type": "response"}',
     '{"action": "a", "id": {"x": 1}}', '{"action": "a", "payload": ' + "[" * 100_000 + "]" * 100_000 + "}",
     "\n" * 20_000],
    ids=lambda frame: repr(frame)[:40],
)  # fmt: skip
def test_what_is_no_request_is_one_bad_request(frame: str | bytes) -> None:
    """Rubbish of every kind gives exactly one refusal, and no other exception."""
    (item,) = decode_frame(frame)
    assert isinstance(item, Refusal)
    assert isinstance(item.error, BadRequest)


def test_a_bad_line_costs_one_line() -> None:
    """Its neighbours in the frame are answered."""
    items = decode_frame('{"action": "a"}\nrubbish\n{"action": "b"}')
    assert [type(item) for item in items] == [Request, Refusal, Request]


def test_a_refusal_goes_to_the_request_that_it_is_about() -> None:
    """The id and action of a wrong envelope are kept where they can be read."""
    (item,) = decode_frame('{"id": "7", "action": "task.get", "type": "notification"}')
    assert (item.id, item.action) == ("7", "task.get")


@given(st.text() | st.binary())
def test_no_frame_raises(frame: str | bytes) -> None:
    """Whatever comes in, requests or refusals come out."""
    for item in decode_frame(frame):
        assert isinstance(item, Request | Refusal)


def test_a_missing_field_is_named() -> None:
    """The error names the field that is missing, at its place."""
    error = refused("task.session.status", task_id="t1")
    assert (error.message, error.details["field"]) == ("`session_id` is missing.", "session_id")
    error = refused("session.subscribe", session_id="s1", since={"boot_id": "b1"})
    assert error.details["field"] == "since.seq"


@pytest.mark.parametrize(
    ("action", "payload", "field", "expected"),
    [
        ("task.get", {"task_id": 5}, "task_id", "`str`"),
        ("session.subscribe", {"session_id": "s", "since": {"boot_id": "b", "seq": "x"}}, "since.seq", "`int`"),
        ("message.list", {"session_id": "s", "limit": 201}, "limit", "`int` <= 200"),
        ("message.list", {"session_id": "s", "limit": 0}, "limit", "`int` >= 1"),
        ("message.list", {"session_id": "s", "limit": True}, "limit", "`int | null`"),
        ("task.session.resume", {**IDS, "wait": "yes"}, "wait", "`bool | null`"),
        ("message.add", {**IDS, "content": "x" * (4 * 2**20 + 1)}, "content", "`str` of length <= 4194304"),
        ("message.add", {**IDS, "content": ""}, "content", "`str` of length >= 1"),
        ("message.add", {**IDS, "content": "a\0b"}, "content", "text without NUL characters"),
        ("task.update", {"task_id": "t", "title": "a\x1b[2Jb"}, "title",
         "text on one line, without control characters"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_what_was_expected(
    action: str, payload: dict[str, Any], field: str, expected: str
) -> None:
    """VALIDATION_ERROR carries the path of the field and what it should be."""
    error = refused(action, **payload)
    assert (error.code, error.details) == ("VALIDATION_ERROR", {"field": field, "expected": expected})
    assert field in error.message


def test_an_unknown_choice_is_refused() -> None:
    """Recover takes four actions and no other."""
    assert refused("task.session.recover", **IDS, action="explode").details["field"] == "action"


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\n", "x" * 65, "a b", "é", "a.b", "%2e"])
def test_sec_2_what_is_no_id_is_refused(name: str) -> None:
    """An id has 1 to 64 harmless characters, so it can be part of no path but its own."""
    error = refused("task.get", task_id=name)
    assert error.details == {"field": "task_id", "expected": "an id: 1 to 64 letters, digits, - or _"}


def test_unknown_fields_are_ignored_and_null_is_nothing() -> None:
    """A newer client's field and an explicit null do no harm; no payload at all is an empty one."""
    request = payload_of("message.list", session_id="s1", limit=None, colour="red")
    assert (request.session_id, request.limit) == ("s1", None)
    for frame in ('{"action": "health.check"}', '{"action": "health.check", "payload": null}'):
        (item,) = decode_frame(frame)
        assert isinstance(item, Request)
        protocol.decode_payload(item, ACTIONS["health.check"].decoder)


def test_a_payload_that_is_no_object_is_a_validation_error() -> None:
    """The error says that an object was expected."""
    (request,) = decode_frame('{"action": "task.get", "payload": [1]}')
    assert isinstance(request, Request)
    with pytest.raises(Invalid) as error:
        protocol.decode_payload(request, ACTIONS["task.get"].decoder)
    assert error.value.details["expected"] == "`object`"


async def test_an_unknown_action_is_named() -> None:
    """UNKNOWN_ACTION says which."""
    with pytest.raises(UnknownAction) as error:
        await perform(None, Request(action="task.explode"))  # type: ignore[arg-type] # nothing is asked of it
    assert error.value.details == {"action": "task.explode"}


@pytest.mark.parametrize("answer", [{}, {"option_id": "a", "cancelled": True}, {"cancelled": False}])
async def test_a_permission_is_answered_or_cancelled_and_not_both(answer: dict[str, Any]) -> None:
    """Neither and both are refused before anything is asked of the backend."""
    payload = msgspec.json.encode({"session_id": "s1", "request_id": "r1", **answer})
    request = Request(action="permission.respond", payload=msgspec.Raw(payload))
    with pytest.raises(Invalid):
        await perform(None, request)  # type: ignore[arg-type] # the same


def test_frames_have_the_contract_s_fields() -> None:
    """An answer repeats id and action; an error has code, message and details; a notification has no id."""
    request = Request(action="task.get", id=7)
    answer = json.loads(protocol.response(request, {"x": 1}))
    assert {**answer, "timestamp": ""} == {
        "id": 7, "type": "response", "action": "task.get", "payload": {"x": 1}, "timestamp": "",
    }  # fmt: skip
    error = json.loads(protocol.failure(None, "task.get", Conflict("No.", reason="in_use", owner="x")))
    assert (error["type"], "id" in error) == ("error", False)
    assert error["payload"] == {"code": "CONFLICT", "message": "No.", "details": {"reason": "in_use", "owner": "x"}}
    notification = json.loads(protocol.notification("task.created", {}, "now"))
    assert notification == {"type": "notification", "action": "task.created", "payload": {}, "timestamp": "now"}


def test_an_answer_too_large_for_a_frame_is_an_error_that_says_what_to_do() -> None:
    """No frame is larger than the limit."""
    answer = protocol.response(Request(action="message.list", id="1"), {"messages": ["x" * FRAME_BYTES]})
    assert len(answer) < 1000
    assert "limit" in json.loads(answer)["payload"]["message"]
