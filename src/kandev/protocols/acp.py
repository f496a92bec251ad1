"""The Agent Client Protocol, version 1: what an agent's line means, and the lines that we send.

`decode` gives exactly one event for a line and never raises. Text chunks, which are nearly all the lines, take a
short path: msgspec reads only the four fields that count. Whatever that path refuses is read in full.
The typed readings of answers are in `answers`, and can be imported from here.

What we advertise: no file system and no terminal, because agents have their own and ids of terminals do not survive.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from kandev.errors import Invalid
from kandev.protocols import jsonrpc
from kandev.protocols.answers import (
    AgentInfo,
    AuthMethod,
    Choice,
    PermissionAsk,
    PermissionOption,
    SessionSetup,
    auto_permission,
    error_text,
    permission,
    session_setup,
    stop_reason,
    text_of,
    tool_output,
    usage,
)
from kandev.protocols.jsonrpc import Noise, Notification, Request, RequestId, Response, error, result

__all__ = [
    "CHUNK_KINDS",
    "PROTOCOL_VERSION",
    "AgentInfo",
    "AuthMethod",
    "Choice",
    "Chunk",
    "Event",
    "Noise",
    "Notification",
    "PermissionAsk",
    "PermissionOption",
    "Request",
    "RequestId",
    "Response",
    "SessionSetup",
    "Update",
    "authenticate",
    "auto_permission",
    "cancel",
    "cancel_request",
    "close_session",
    "decode",
    "error",
    "error_text",
    "initialize",
    "load_session",
    "mcp_entries",
    "new_session",
    "permission",
    "permission_cancelled",
    "permission_selected",
    "prompt",
    "result",
    "resume_session",
    "session_setup",
    "set_config_option",
    "set_mode",
    "set_model",
    "stop_reason",
    "text_of",
    "tool_output",
    "usage",
]

PROTOCOL_VERSION = 1
CHUNK_KINDS = frozenset({"user_message_chunk", "agent_message_chunk", "agent_thought_chunk"})


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """A piece of text of the user (in a replay or an echo), of the agent, or of its thinking; `kind` tells which."""

    session_id: str
    kind: str
    text: str
    message_id: str | None = None


class Update(msgspec.Struct, frozen=True):
    """Every other session/update, also unknown kinds (WIRE-3). `body` is the whole update; `kind` is '' if untold."""

    session_id: str
    kind: str
    body: Mapping[str, Any]


Event = Chunk | Update | Request | Notification | Response | Noise


class _Text(msgspec.Struct, gc=False):
    type: Literal["text"]
    text: str


class _ChunkUpdate(msgspec.Struct, gc=False):
    kind: Literal["user_message_chunk", "agent_message_chunk", "agent_thought_chunk"] = msgspec.field(
        name="sessionUpdate"
    )
    content: _Text
    message_id: str | None = msgspec.field(default=None, name="messageId")


class _ChunkParams(msgspec.Struct, gc=False):
    session_id: str = msgspec.field(name="sessionId")
    update: _ChunkUpdate


class _ChunkLine(msgspec.Struct, gc=False):
    method: Literal["session/update"]
    params: _ChunkParams
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_chunk = msgspec.json.Decoder(_ChunkLine).decode


def decode(line: bytes) -> Event:
    """Return what one line of the agent says. Never raises, for any bytes.

    `_meta` is never read into a field (WIRE-13). Positional arguments, because this runs for every chunk.
    """
    if b"_chunk" in line:  # a refusal costs more than the full reading, so what is surely no chunk is not tried
        try:
            message = _decode_chunk(line)
            if message.id is msgspec.UNSET:
                update = message.params.update
                return Chunk(message.params.session_id, update.kind, update.content.text, update.message_id)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass  # not a plain text chunk; the full reading says what it is
    event = jsonrpc.parse(line)
    return _update(event) if isinstance(event, Notification) and event.method == "session/update" else event


def _update(event: Notification) -> Chunk | Update | Notification:
    params = event.params
    body = params.get("update") if isinstance(params, dict) else None
    if not isinstance(body, dict):
        return event
    session_id = _string(params.get("sessionId"))
    kind = _string(body.get("sessionUpdate"))
    content = body.get("content")
    if kind in CHUNK_KINDS and isinstance(content, dict) and content.get("type") == "text":
        text, message_id = content.get("text"), body.get("messageId")
        if isinstance(text, str):
            return Chunk(session_id, kind, text, message_id if isinstance(message_id, str) else None)
    return Update(session_id, kind, body)


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def initialize(request_id: int, client_version: str) -> bytes:
    """Return `initialize`. Boolean options are read and set, so they are advertised.

    So is the login in a terminal: a person is shown the command. Some agents tell it only then, under either name.
    """
    capabilities = {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
        "session": {"configOptions": {"boolean": {}}},
        "auth": {"terminal": True},
        "_meta": {"terminal-auth": True},
    }
    client = {"name": "kandev", "title": "Kandev", "version": client_version}
    params = {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": capabilities, "clientInfo": client}
    return jsonrpc.request(request_id, "initialize", params)


def authenticate(request_id: int, method_id: str) -> bytes:
    """Return `authenticate`. A good answer to it proves nothing (seen: prompts that hang after one)."""
    return jsonrpc.request(request_id, "authenticate", {"methodId": method_id})


def new_session(request_id: int, cwd: str, mcp_servers: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """Return `session/new`. `cwd` is absolute; `mcpServers` is always there (WIRE-11)."""
    return jsonrpc.request(request_id, "session/new", {"cwd": cwd, "mcpServers": mcp_entries(mcp_servers)})


def load_session(request_id: int, session_id: str, cwd: str, mcp_servers: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """Return `session/load`, with exactly the `cwd` of `session/new` (WIRE-11). The agent replays everything."""
    params = {"sessionId": session_id, "cwd": cwd, "mcpServers": mcp_entries(mcp_servers)}
    return jsonrpc.request(request_id, "session/load", params)


def resume_session(request_id: int, session_id: str, cwd: str, mcp_servers: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """Return `session/resume`: as load, but the agent should replay nothing."""
    params = {"sessionId": session_id, "cwd": cwd, "mcpServers": mcp_entries(mcp_servers)}
    return jsonrpc.request(request_id, "session/resume", params)


def prompt(request_id: int, session_id: str, text: str) -> bytes:
    """Return `session/prompt` with one text block."""
    params = {"sessionId": session_id, "prompt": [{"type": "text", "text": text}]}
    return jsonrpc.request(request_id, "session/prompt", params)


def cancel(session_id: str) -> bytes:
    """Return `session/cancel`. Pending permission requests are to be answered `cancelled` too (WIRE-14)."""
    return jsonrpc.notification("session/cancel", {"sessionId": session_id})


def set_mode(request_id: int, session_id: str, mode_id: str) -> bytes:
    """Return `session/set_mode` (WIRE-12)."""
    return jsonrpc.request(request_id, "session/set_mode", {"sessionId": session_id, "modeId": mode_id})


def set_config_option(request_id: int, session_id: str, config_id: str, value: str | bool) -> bytes:  # noqa: FBT001 - the option's value, of either type
    """Return `session/set_config_option`; a boolean value says so in `type`."""
    params: dict[str, Any] = {"sessionId": session_id, "configId": config_id, "value": value}
    if isinstance(value, bool):
        params["type"] = "boolean"
    return jsonrpc.request(request_id, "session/set_config_option", params)


def set_model(request_id: int, session_id: str, model_id: str) -> bytes:
    """Return `session/set_model`: never stable and gone from the schema, but older agents know only this."""
    return jsonrpc.request(request_id, "session/set_model", {"sessionId": session_id, "modelId": model_id})


def close_session(request_id: int, session_id: str) -> bytes:
    """Return `session/close`: frees what the agent holds; the session can still be loaded."""
    return jsonrpc.request(request_id, "session/close", {"sessionId": session_id})


def permission_selected(request_id: RequestId, option_id: str) -> bytes:
    """Return the answer to `session/request_permission` that chooses an option."""
    return jsonrpc.result(request_id, {"outcome": {"outcome": "selected", "optionId": option_id}})


def permission_cancelled(request_id: RequestId) -> bytes:
    """Return the answer to `session/request_permission` of a cancelled turn (WIRE-14)."""
    return jsonrpc.result(request_id, {"outcome": {"outcome": "cancelled"}})


def cancel_request(request_id: int) -> bytes:
    """Return `$/cancel_request` for a request of ours; the agent answers that one with a result or -32800."""
    return jsonrpc.notification("$/cancel_request", {"requestId": request_id})


def mcp_entries(servers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries as ACP wants them: stdio without `type`, every array present, variables as name and value.

    `env` and `headers` may come as a table. Raises Invalid for an entry that has no name, or neither command nor url:
    agents skip such entries in silence.
    """
    return [_mcp_entry(server) for server in servers]


def _mcp_entry(server: Mapping[str, Any]) -> dict[str, Any]:
    name = server.get("name")
    address = server.get("command") or server.get("url")
    if not (isinstance(name, str) and name and isinstance(address, str)):
        raise Invalid(f"An MCP server needs a name, and a command or a url; got {name!r}.", field="mcp_servers")
    if server.get("command"):
        args = [str(argument) for argument in server.get("args") or ()]
        return {"name": name, "command": address, "args": args, "env": _pairs(server.get("env"))}
    kind = "sse" if server.get("type") == "sse" else "http"
    return {"type": kind, "name": name, "url": address, "headers": _pairs(server.get("headers"))}


def _pairs(value: Any) -> list[dict[str, str]]:
    if isinstance(value, Mapping):
        return [{"name": str(name), "value": str(item)} for name, item in value.items()]
    return [{"name": str(item["name"]), "value": str(item["value"])} for item in value or ()]
