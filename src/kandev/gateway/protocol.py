"""The envelope of the WebSocket: a frame in, requests out; answers, errors and notifications as bytes.

`{id?, type, action, payload, timestamp}`; several messages may share a frame, one a line. Nothing here does I/O.
Whatever a client sends gives a request or a refusal, never another exception.
"""

import json
import re
from typing import Annotated, Any, TypeVar

import msgspec

from kandev.domain.constants import FRAME_BYTES
from kandev.domain.models import now
from kandev.errors import BadRequest, Internal, Invalid, KandevError
from kandev.gateway.fields import PATTERN_WORDS

LINES_PER_FRAME = 10_000

RequestId = Annotated[str, msgspec.Meta(max_length=128)] | int | None
T = TypeVar("T")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a client. `payload` is still text: its type depends on the action."""

    action: Annotated[str, msgspec.Meta(max_length=100)]
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    id: RequestId = None
    type: str = "request"


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is no request, with as much of its sender's id and action as could be read."""

    error: KandevError
    id: RequestId = None
    action: str = ""


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    id: str | int | msgspec.UnsetType = msgspec.UNSET
    type: str
    action: str
    payload: Any
    timestamp: str


class _Head(msgspec.Struct):
    id: Any = None
    action: Any = None


_decode_request = msgspec.json.Decoder(Request).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_encode = msgspec.json.Encoder().encode


def decode_frame(data: str | bytes) -> list[Request | Refusal]:
    """Return what one frame holds, in order. Empty lines are skipped."""
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError:
        return [Refusal(error=BadRequest("The frame is not UTF-8."))]
    if text.count("\n") > LINES_PER_FRAME:
        return [Refusal(error=BadRequest(f"The frame has more than {LINES_PER_FRAME} lines."))]
    return [_decode_line(line) for line in text.split("\n") if line.strip()]


def _decode_line(line: str) -> Request | Refusal:
    try:
        request = _decode_request(line)
    except msgspec.ValidationError as error:
        return _refuse(line, f"The message is no request: {error}")
    except (msgspec.DecodeError, UnicodeError) as error:
        return Refusal(error=BadRequest(f"The message is not JSON: {error}. A message is one line."))
    except RecursionError:
        return Refusal(error=BadRequest("The message is nested too deeply."))
    if request.type != "request":
        return _refuse(line, f"A client sends messages of type request, not {request.type[:40]!r}.")
    return request


def _refuse(line: str, message: str) -> Refusal:
    error = BadRequest(message)
    try:
        head = _decode_head(line)
    except (msgspec.DecodeError, RecursionError):  # an array at the top has no id; nor has one that is a maze
        return Refusal(error=error)
    request_id = head.id if isinstance(head.id, int) or (isinstance(head.id, str) and len(head.id) <= 128) else None
    return Refusal(error=error, id=request_id, action=head.action[:100] if isinstance(head.action, str) else "")


def decode_payload(request: Request, decoder: "msgspec.json.Decoder[T]") -> T:
    """Return the typed payload; raises Invalid with `field` (its path) and `expected`. Unknown fields are ignored."""
    raw = bytes(request.payload)
    try:
        return decoder.decode(b"{}" if raw == b"null" else raw)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"The payload cannot be read: {error}") from None


_PLACE = re.compile(r"^(?P<problem>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<field>[^`]*)`")


def _invalid(text: str) -> Invalid:
    place = _PLACE.match(text)
    assert place is not None, "every part of the expression is optional"
    problem, path = place["problem"], place["path"] or ""
    if missing := _MISSING.search(problem):
        field = f"{path}.{missing['field']}" if path else missing["field"]
        return Invalid(f"`{field}` is missing.", field=field, expected="a value")
    expected = problem.removeprefix("Expected ").partition(", got ")[0]
    if words := PATTERN_WORDS.get(expected.removeprefix("`str` matching regex ")):
        problem, expected = f"Expected {words}", words
    return Invalid(f"`{path or 'payload'}`: {problem}", field=path, expected=expected)


def encode(value: Any) -> bytes:
    """Return `value` as JSON on one line. Text that UTF-8 cannot carry (half a surrogate pair) is sent escaped."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, builtin_types=(msgspec.Raw,))
        return json.dumps(plain, separators=(",", ":"), default=lambda raw: json.loads(bytes(raw))).encode()


def response(request: Request, payload: Any) -> bytes:
    """Return the answer to `request`; where it does not fit into a frame, the error that says so."""
    data = _message(request.id, "response", request.action, payload)
    if len(data) <= FRAME_BYTES:
        return data
    hint = "The answer does not fit into a frame of 16 MB. Ask with a smaller `limit`, or use the export."
    return failure(request.id, request.action, Internal(hint, bytes=len(data)))


def failure(request_id: RequestId, action: str, error: KandevError) -> bytes:
    """Return the error frame for `error`."""
    return _message(request_id, "error", action, error.payload())


def notification(action: str, payload: Any, timestamp: str) -> bytes:
    """Return one notification."""
    return encode(_Message(type="notification", action=action, payload=payload, timestamp=timestamp))


def _message(request_id: RequestId, kind: str, action: str, payload: Any) -> bytes:
    shown = msgspec.UNSET if request_id is None else request_id
    return encode(_Message(id=shown, type=kind, action=action, payload=payload, timestamp=now()))
