"""JSON-RPC 2.0 over lines: a liberal reader and a strict writer.

`parse` takes one line as the agent wrote it and never raises: what is no message is `Noise`.
Everything that it returns can be stored and sent on: no lone surrogate, no NaN, no infinity (HIST-6).
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

RequestId = int | str | None

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REQUEST_CANCELLED = -32800

SAMPLE_CHARACTERS = 200
NOT_JSON = "not JSON"
TOO_DEEP = "nested too deeply"
MAX_NESTING = 400
"""Whoever stores, renders or sends on a message recurses into it, from a deeper stack than the reader's."""

# Node's readline and Python's splitlines end a line at these too, although JSON allows them in a string.
_LINE_SEPARATORS = re.compile(b"\xe2\x80[\xa8\xa9]|\xc2\x85")
_ESCAPES = {b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029", b"\xc2\x85": rb"\u0085"}
_OPENING = b'{"jsonrpc"'
_decode = msgspec.json.Decoder().decode
_SURROGATE = re.compile("[\ud800-\udfff]")


class Request(msgspec.Struct, frozen=True):
    """A request of the agent. `id` is echoed in the answer as it is, type included (WIRE-5)."""

    id: RequestId
    method: str
    params: Any


class Notification(msgspec.Struct, frozen=True):
    """A message that wants no answer."""

    method: str
    params: Any


class Response(msgspec.Struct, frozen=True):
    """An answer to one of our requests. `id` is None when it cannot be one of ours; `raw_id` is what was sent."""

    id: int | None
    result: Any
    error: Mapping[str, Any] | None
    raw_id: Any = None


class Noise(msgspec.Struct, frozen=True):
    """A line that is no message (WIRE-1). `sample` is its beginning, printable enough for a log."""

    reason: str
    sample: str


Message = Request | Notification | Response | Noise


def parse(line: bytes) -> Message:
    """Read one line, with or without its newline. Never raises.

    An answer behind a prompt or a control sequence on the same line counts (seen: Gemini, "Enter the authorization
    code: {...}"). Only an answer, and one that comes twice is for nobody the second time; a request there would be
    our own, quoted by a log or echoed by a terminal.
    """
    message = _read(line)
    if isinstance(message, Noise) and message.reason == NOT_JSON and (at := line.find(_OPENING, 1)) > 0:
        behind = _read(line[at:])
        return behind if isinstance(behind, Response) else message
    return message


def _read(line: bytes) -> Message:
    value = parse_object(line)
    if isinstance(value, Noise):
        return value
    return _message(value) or Noise("not a JSON-RPC message", sample(line))


def parse_object(line: bytes) -> dict[str, Any] | Noise:
    """Read one line that is to be a JSON object, whatever its protocol. Never raises."""
    try:
        value = _loads(line)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        reason = TOO_DEEP if isinstance(error, RecursionError) else NOT_JSON
        return Noise(reason if line.strip() else "empty", sample(line))
    if not isinstance(value, dict):
        return Noise("not a JSON object", sample(line))
    if len(line) > 2 * MAX_NESTING and _may_be_deep(line) and _is_deep(value):
        return Noise(TOO_DEEP, sample(line))
    return value


def _may_be_deep(line: bytes) -> bool:
    """Look for so many openers; by `find`, which takes a long text in one step."""
    left = MAX_NESTING
    for opener in (b"[", b"{"):
        at = line.find(opener)
        while at >= 0:
            left -= 1
            if left < 0:
                return True
            at = line.find(opener, at + 1)
    return False


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_NESTING):
        level = [item for one in level for item in _children(one)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _message(value: dict[str, Any]) -> Message | None:
    method = value.get("method")
    if isinstance(method, str):
        params = value.get("params")
        return Request(_request_id(value["id"]), method, params) if "id" in value else Notification(method, params)
    # An agent in JavaScript that answers `undefined` leaves `result` out; "jsonrpc" tells it from a line of a log.
    if "id" in value and ("result" in value or "error" in value or "jsonrpc" in value):
        return Response(_response_id(value["id"]), value.get("result"), _error(value.get("error")), value["id"])
    if value.get("error") is not None and "jsonrpc" in value:
        return Response(None, None, _error(value["error"]))
    return None


def _error(value: Any) -> Mapping[str, Any] | None:
    if value is None or isinstance(value, dict):
        return value
    return {"code": INTERNAL_ERROR, "message": value if isinstance(value, str) else "", "data": value}


def _request_id(value: Any) -> RequestId:
    """Any other id is invalid, and JSON-RPC answers those with null."""
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _response_id(value: Any) -> int | None:
    """WIRE-4: the decimal string of an id of ours is that id."""
    if isinstance(value, str):
        return int(value) if len(value) < 20 and value.isdecimal() and str(int(value)) == value else None
    known = _request_id(value)
    return known if isinstance(known, int) else None


def _loads(line: bytes) -> Any:
    """Decode strictly; where that refuses, leniently: bad UTF-8, lone surrogates, raw control characters, NaN."""
    try:
        return _decode(line)
    except (msgspec.MsgspecError, UnicodeError):
        pass  # the lenient reading decides
    text = line.decode("utf-8-sig", "replace")
    return clean(json.loads(text, strict=False, parse_constant=_no_constant, parse_float=_finite))


def _no_constant(_: str) -> None:
    """NaN and the infinities are no JSON; nothing that we send may hold them."""


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def clean(value: Any) -> Any:
    """Return the value with every lone surrogate in it replaced by U+FFFD (HIST-6); halves that meet are joined."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def clean_text(text: str) -> str:
    """Return the text without lone surrogates (HIST-6)."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def sample(line: bytes) -> str:
    """Return the beginning of a line, printable enough for a log."""
    return line[: 4 * SAMPLE_CHARACTERS].decode("utf-8", "replace").strip()[:SAMPLE_CHARACTERS]


def encode(value: Any) -> bytes:
    """Return one line that every reader takes for one line, ending in a newline."""
    try:
        line = msgspec.json.encode(value)
    except UnicodeEncodeError:
        line = msgspec.json.encode(clean(value))
    return _LINE_SEPARATORS.sub(lambda match: _ESCAPES[match[0]], line) + b"\n"


def request(request_id: int, method: str, params: Mapping[str, Any]) -> bytes:
    """Return a request of ours; its ids are integers."""
    return encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def notification(method: str, params: Mapping[str, Any]) -> bytes:
    """Return a notification of ours."""
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def result(request_id: RequestId, value: Any) -> bytes:
    """Return the answer to a request of the agent."""
    return encode({"jsonrpc": "2.0", "id": request_id, "result": value})


def error(request_id: RequestId, code: int, message: str) -> bytes:
    """Return the refusal of a request of the agent."""
    return encode({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}})
