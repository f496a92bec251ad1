"""Every line that we send, against ACP's published schema, as the official package carries it.

Two checks: jsonschema on the schema that the package's models give, and the models themselves, which drop what they
do not know. So a field of ours that the schema does not have is found as well.
"""

import json
from collections.abc import Sequence
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships no types
import pytest
from acp import schema
from acp.meta import AGENT_METHODS, CLIENT_METHODS
from pydantic import BaseModel

from kandev.protocols import acp

STDIO = {"name": "files", "command": "/bin/mcp"}
STDIO_FULL = {"name": "files", "command": "/bin/mcp", "args": ["-v"], "env": {"KEY": "value"}}
HTTP = {"name": "web", "url": "http://127.0.0.1:1/mcp", "headers": {"X-Key": "1"}}
SSE = {"name": "events", "type": "sse", "url": "http://127.0.0.1:1/sse", "headers": [{"name": "X", "value": "1"}]}
SERVERS: Sequence[dict[str, Any]] = (STDIO, STDIO_FULL, HTTP, SSE)

SENT: list[tuple[bytes, str, type[BaseModel]]] = [
    (acp.initialize(1, "0.1"), "initialize", schema.InitializeRequest),
    (acp.authenticate(1, "api-key"), "authenticate", schema.AuthenticateRequest),
    (acp.new_session(1, "/work"), "session/new", schema.NewSessionRequest),
    (acp.new_session(1, "/work", SERVERS), "session/new", schema.NewSessionRequest),
    (acp.load_session(1, "s", "/work", SERVERS), "session/load", schema.LoadSessionRequest),
    (acp.resume_session(1, "s", "/work", SERVERS), "session/resume", schema.ResumeSessionRequest),
    (acp.prompt(1, "s", "text"), "session/prompt", schema.PromptRequest),
    (acp.cancel("s"), "session/cancel", schema.CancelNotification),
    (acp.set_mode(1, "s", "plan"), "session/set_mode", schema.SetSessionModeRequest),
    (
        acp.set_config_option(1, "s", "model", "big"),
        "session/set_config_option",
        schema.SetSessionConfigOptionSelectRequest,
    ),
    (
        acp.set_config_option(1, "s", "fast", value=True),
        "session/set_config_option",
        schema.SetSessionConfigOptionBooleanRequest,
    ),
    (acp.close_session(1, "s"), "session/close", schema.CloseSessionRequest),
    (acp.cancel_request(7), "$/cancel_request", schema.CancelRequestNotification),
]
ANSWERED: list[tuple[bytes, type[BaseModel]]] = [
    (acp.permission_selected(0, "yes"), schema.RequestPermissionResponse),
    (acp.permission_cancelled("a"), schema.RequestPermissionResponse),
]


def check(value: Any, model: type[BaseModel]) -> None:
    jsonschema.validate(value, model.model_json_schema(by_alias=True))
    kept = model.model_validate(value).model_dump(by_alias=True, exclude_unset=True, mode="json")
    assert kept == value, "the schema does not know a field that we send"


@pytest.mark.parametrize(("line", "method", "model"), SENT)
def test_requests_and_notifications_follow_the_schema(line: bytes, method: str, model: type[BaseModel]) -> None:
    """Each is one line, JSON-RPC 2.0, a method that the protocol has, and params that its schema knows wholly."""
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    message = json.loads(line)
    assert message["jsonrpc"] == "2.0"
    assert message["method"] == method
    assert method in {*AGENT_METHODS.values(), *CLIENT_METHODS.values(), "$/cancel_request"}
    assert ("id" in message) is not (model.__name__.endswith("Notification"))
    check(message["params"], model)


@pytest.mark.parametrize(("line", "model"), ANSWERED)
def test_answers_follow_the_schema(line: bytes, model: type[BaseModel]) -> None:
    """Each answer has a result that the schema knows wholly."""
    message = json.loads(line)
    assert set(message) == {"jsonrpc", "id", "result"}
    check(message["result"], model)


def test_wire_5_refusals_follow_the_schema() -> None:
    """A refusal has the agent's id as it was, and an error that the schema knows."""
    message = json.loads(acp.error("abc", -32601, "Method not found"))
    assert message["id"] == "abc"
    check(message["error"], schema.Error)


def test_wire_11_arrays_are_there_even_when_empty() -> None:
    """New, load and resume carry mcpServers, args and env whether there are any or not; stdio has no type."""
    for build in (acp.load_session, acp.resume_session):
        assert json.loads(build(1, "s", "/w"))["params"] == {"sessionId": "s", "cwd": "/w", "mcpServers": []}
    assert json.loads(acp.new_session(1, "/w"))["params"] == {"cwd": "/w", "mcpServers": []}
    (entry,) = json.loads(acp.new_session(1, "/w", [STDIO]))["params"]["mcpServers"]
    assert entry == {"name": "files", "command": "/bin/mcp", "args": [], "env": []}


def test_the_legacy_model_call_is_not_of_the_schema() -> None:
    """session/set_model has no schema any more; the day it has one again, it belongs into the table above."""
    assert json.loads(acp.set_model(1, "s", "big"))["params"] == {"sessionId": "s", "modelId": "big"}
    assert "session/set_model" not in AGENT_METHODS.values()
