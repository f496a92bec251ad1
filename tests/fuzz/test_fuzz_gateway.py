"""Whatever a client sends gives a request or a refusal; whatever a request holds is typed or refused (SEC-2)."""

import functools
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fuzzed import DEEP, HOSTILE, NUMBERS, QUIET, TEXTS, damaged, ends, fuzz, near, peak_bytes, to_json, to_raw_json
from kandev.errors import BadRequest, Invalid
from kandev.gateway import protocol
from kandev.gateway.actions import ACTIONS
from kandev.gateway.protocol import Refusal, Request, decode_frame, decode_payload

pytestmark = QUIET

VALUES: dict[str, Any] = {
    "content": "Hello", "description": "Hello", "text": "Hello", "limit": 5, "before": 3, "after": 3, "wait": True,
    "start": False, "force": True, "since": {"boot_id": "b", "seq": 4}, "action": "resume", "cancelled": True,
}  # fmt: skip
"""Values that fit the fields of those names; the others take an id."""

OTHERS_IDS = {"client_message_id", "client_task_id", "mode_id", "config_id", "option_id"}
"""Fields that hold what a client or an agent calls its own things: they are looked up, and never made into a path."""

ID = re.compile(r"[0-9a-zA-Z_-]{1,64}")


def fields_of(action: str) -> list[str]:
    kind: Any = ACTIONS[action].decoder.type
    return [field.encode_name for field in msgspec.structs.fields(kind)]


@st.composite
def envelopes(draw: st.DrawFn) -> dict[str, Any]:
    """A request of any action with all its fields."""
    action = draw(st.sampled_from(sorted(ACTIONS)))
    payload = {name: VALUES.get(name, "abc-1") for name in fields_of(action)}
    return {"id": "7", "type": "request", "action": action, "payload": payload, "timestamp": "now"}


WRONG = near(envelopes(), changes=2)
MESSAGES = st.one_of(
    envelopes().map(to_json),
    WRONG.map(to_json),
    WRONG.map(to_raw_json),
    WRONG.flatmap(lambda value: damaged(to_json(value))),
    HOSTILE.map(to_json),
    st.builds(
        lambda deep, action: to_json({"id": deep, "action": action, "payload": deep}), DEEP, st.sampled_from(["a", 5])
    ),
    st.builds(lambda number: to_json({"id": number, "action": "task.get"}), NUMBERS),
)
FRAMES = st.lists(MESSAGES, max_size=4).map(b"\n".join)


def strings(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            pending += [*one, *one.values()]
        elif isinstance(one, list | tuple):
            pending += one


@fuzz(800)
@given(frame=FRAMES, as_text=st.booleans())
def test_sec_2_any_frame_gives_requests_and_refusals_that_can_be_answered(frame: bytes, as_text: bool) -> None:  # noqa: FBT001 - drawn by hypothesis
    """A payload is typed or refused; ids are ids, nothing holds NUL or half a character, and each gets a frame back."""
    data = frame.decode(errors="surrogateescape") if as_text else frame
    with ends():
        items = decode_frame(data)
    assert len(items) <= frame.count(b"\n") + 1
    for item in items:
        if isinstance(item, Refusal):
            protocol.failure(item.id, item.action, item.error).decode()
        elif item.action in ACTIONS:
            check(item)


def check(request: Request) -> None:
    try:
        with ends():
            typed = decode_payload(request, ACTIONS[request.action].decoder)
    except (Invalid, BadRequest) as error:
        protocol.failure(request.id, request.action, error).decode()
        return
    plain = msgspec.to_builtins(typed)
    for name, value in plain.items():
        if isinstance(value, str) and name not in OTHERS_IDS and (name == "id" or name.endswith("_id")):
            assert ID.fullmatch(value)
    for text in strings(plain):
        text.encode()
        assert "\0" not in text
    protocol.response(request, plain).decode()


@fuzz(200)
@given(payload=st.dictionaries(TEXTS, HOSTILE, max_size=3))
def test_every_action_refuses_or_reads_a_payload_of_anything(payload: dict[str, Any]) -> None:
    """The same payload for each action: unknown fields are ignored, wrong ones refused, nothing else is raised."""
    raw = to_json(payload)
    for action, entry in ACTIONS.items():
        with ends():
            try:
                decode_payload(Request(action=action, payload=msgspec.Raw(raw)), entry.decoder)
            except (Invalid, BadRequest) as error:
                protocol.failure(None, action, error).decode()


def test_a_frame_costs_memory_in_proportion_to_its_length() -> None:
    """Whatever stands in 4 MB: lines without end, a maze, or ids by the thousand."""
    size = 4 << 20
    maze, text = b"[" * size, b'{"action":"a","payload":"' + b"x" * size + b'"}'
    for frame in (b"\n" * size, maze, b"{}\n" * 9_999, text, b"\xff" * size):
        assert peak_bytes(functools.partial(decode_frame, frame)) < 12 * size
