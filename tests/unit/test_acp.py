"""ACP: one event for each line, for any bytes; lenient readings; lines of ours that read back."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kandev.errors import Invalid
from kandev.protocols import acp

ANY_TEXT = st.text(st.characters() | st.characters(categories=["Cs"]))  # lone surrogates too
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KINDS = ("user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "plan", "novelty", None, 5)


def update(session_id: Any = "s", **body: Any) -> bytes:
    return json.dumps(
        {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session_id, "update": body}}
    ).encode()


def holds_surrogate(event: acp.Event) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in repr_raw(event))


def repr_raw(value: Any) -> str:
    """All texts of an event, joined without escapes."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "".join(map(repr_raw, [*value.keys(), *value.values()]))
    if isinstance(value, list | tuple):
        return "".join(map(repr_raw, value))
    fields = getattr(value, "__struct_fields__", ())
    return "".join(repr_raw(getattr(value, field)) for field in fields)


@given(st.binary().filter(lambda line: b"\n" not in line))
@example(b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"plan"')
@example(b'{"method":"session/update","params":' + b"[" * 100_000)
@example(b'{"method":"session/update","params":{"sessionId":"s","update":' + b'{"a":' * 3000 + b"1" + b"}" * 3002)
@settings(deadline=None)
def test_wire_1_any_bytes_are_exactly_one_event(line: bytes) -> None:
    """Reading never raises, whatever the agent prints."""
    assert isinstance(acp.decode(line), acp.Event)


@given(
    kind=st.sampled_from(KINDS),
    session_id=st.text() | JSON,
    content=st.fixed_dictionaries({"type": st.sampled_from(["text", "image", 1]), "text": ANY_TEXT | JSON}) | JSON,
    rest=st.dictionaries(st.sampled_from(["messageId", "_meta", "id", "status"]), JSON),
    cut=st.integers(0, 40),
)
@settings(deadline=None)
def test_wire_3_updates_of_any_shape_are_kept(kind: Any, session_id: Any, content: Any, rest: Any, cut: int) -> None:
    """Near-valid updates, whole and torn: one event, and never a lone surrogate (HIST-6)."""
    line = update(session_id, sessionUpdate=kind, content=content, **rest)
    event = acp.decode(line)
    assert isinstance(event, acp.Chunk | acp.Update)
    assert not holds_surrogate(event)
    assert isinstance(acp.decode(line[: len(line) - cut]), acp.Event)


@given(text=ANY_TEXT, session_id=st.text())
@settings(deadline=None)
def test_a_prompt_reads_back(text: str, session_id: str) -> None:
    """What a builder writes, the reader reads, with lone surrogates replaced."""
    event = acp.decode(acp.prompt(1, session_id, text))
    assert isinstance(event, acp.Request)
    clean = [part.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") for part in (session_id, text)]
    params = {"sessionId": clean[0], "prompt": [{"type": "text", "text": clean[1]}]}
    assert event == acp.Request(1, "session/prompt", params)


@pytest.mark.parametrize("kind", ["user_message_chunk", "agent_message_chunk", "agent_thought_chunk"])
@pytest.mark.parametrize("message_id", [None, "m1"])
def test_text_chunks_are_chunks(kind: str, message_id: str | None) -> None:
    """All three kinds, with and without an id, whatever the order of the keys and the extra fields."""
    content = {"annotations": None, "text": "é😀\n", "type": "text"}
    body = {"content": content, "sessionUpdate": kind, "_meta": {"x": 1}, "new": [1]}
    line = update(**body, **({"messageId": message_id} if message_id else {}))
    assert acp.decode(line) == acp.Chunk("s", kind, "é😀\n", message_id)


@pytest.mark.parametrize(
    ("body", "event"),
    [
        ({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": 42}}, acp.Update),
        ({"sessionUpdate": "agent_message_chunk", "content": {"type": "image", "data": "x"}}, acp.Update),
        ({"sessionUpdate": "agent_message_chunk"}, acp.Update),
        ({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "a"}, "messageId": 5}, acp.Chunk),
        ({"sessionUpdate": "something_new", "content": {"type": "text", "text": "a"}}, acp.Update),
        ({"content": {"type": "text", "text": "a"}}, acp.Update),
        ({}, acp.Update),
    ],
)
def test_wire_3_odd_updates_are_kept_whole(body: dict[str, Any], event: type) -> None:
    """Wrong types, unknown kinds and missing fields keep the whole update; a wrong messageId counts as none."""
    read = acp.decode(update(**body))
    assert isinstance(read, event)
    if isinstance(read, acp.Update):
        assert (read.kind, read.body) == (body.get("sessionUpdate", ""), body)


def test_wire_13_meta_never_overrides_a_field() -> None:
    """Names of fields inside _meta, at every level, change nothing."""
    spoof = {"sessionId": "spoofed", "session_id": "spoofed", "update": {}, "sessionUpdate": "plan", "text": "spoofed"}
    for kind, expected in (("agent_message_chunk", acp.Chunk), ("session_info_update", acp.Update)):
        content = {"type": "text", "text": "true", "_meta": spoof}
        body = {"sessionUpdate": kind, "content": content, "_meta": spoof}
        params = {"_meta": spoof, "sessionId": "s", "update": body}
        event = acp.decode(json.dumps({"_meta": spoof, "method": "session/update", "params": params}).encode())
        assert isinstance(event, expected)
        assert (event.session_id, event.kind) == ("s", kind)


def test_wire_5_an_update_that_wants_an_answer_is_a_request() -> None:
    """session/update with an id is answered like any other request that we do not serve."""
    line = update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "a"})
    for request_id in ("7", "null", '"x"'):
        event = acp.decode(line[:-1] + b',"id":' + request_id.encode() + b"}")
        assert isinstance(event, acp.Request)
        assert event.id == json.loads(request_id)


def test_wire_2_a_line_of_5_mb_is_an_event() -> None:
    """Nothing here limits a line."""
    text = "x" * 5_000_000
    event = acp.decode(update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": text}))
    assert isinstance(event, acp.Chunk)
    assert event.text == text


@given(JSON)
@settings(deadline=None)
def test_every_reading_takes_anything(value: Any) -> None:
    """No answer of an agent, of whatever shape, raises in a reading."""
    acp.AgentInfo.from_initialize(value)
    acp.session_setup(value)
    acp.stop_reason(value)
    acp.usage(value)
    acp.permission(value)
    acp.text_of(value)


def test_capabilities_of_a_wrong_type_are_not_advertised() -> None:
    """Only true, and for sessions only an object, advertises; the version may be text."""
    loose = {"loadSession": "yes", "sessionCapabilities": {"resume": True, "list": None, "close": []}}
    info = acp.AgentInfo.from_initialize({"protocolVersion": "1", "agentCapabilities": loose, "agentInfo": []})
    assert info == acp.AgentInfo(protocol_version=1)
    strict = {"loadSession": True, "sessionCapabilities": {"resume": {}}, "promptCapabilities": {"image": True}}
    info = acp.AgentInfo.from_initialize({"protocolVersion": 1, "agentCapabilities": strict})
    assert info == acp.AgentInfo(protocol_version=1, load_session=True, resume_session=True, image=True)


@pytest.mark.parametrize("answer", [None, {}, {"other": 1}, [], "ok", {"modes": None, "configOptions": {}}])
def test_tok_7_an_empty_answer_to_load_is_a_good_one(answer: Any) -> None:
    """null, {} and other keys: a set-up without a session id, modes or options."""
    assert acp.session_setup(answer) == acp.SessionSetup()


def test_tok_7_another_session_id_is_reported() -> None:
    """What the answer says is told; that identity stays what was asked for is the caller's part."""
    assert acp.session_setup({"sessionId": "other"}).session_id == "other"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"stopReason": "end_turn"}, ("end_turn", True)),
        ({"stopReason": "refusal"}, ("refusal", True)),
        ({"stopReason": "teleported"}, ("teleported", False)),
        (None, ("", False)),
        ({}, ("", False)),
        ({"stopReason": 5}, ("", False)),
    ],
)
def test_state_7_an_unknown_stop_reason_is_a_reason(result: Any, expected: tuple[str, bool]) -> None:
    """Unknown reasons are kept and marked; an answer without one is still an answer."""
    assert acp.stop_reason(result) == expected


def test_usage_keeps_numbers_only() -> None:
    """Counts under the agent's own names; texts, flags and objects are left out."""
    counts = {"inputTokens": 5, "cost": 0.5, "model": "x", "cached": True, "_meta": {}}
    assert acp.usage({"usage": counts}) == {"inputTokens": 5, "cost": 0.5}
    assert acp.usage(None) == {}


def options(*kinds: str) -> list[acp.PermissionOption]:
    return [acp.PermissionOption(option_id=f"id-{kind}", name=kind, kind=kind) for kind in kinds]


ALL_KINDS = ("allow_always", "allow_once", "reject_always", "reject_once")


@pytest.mark.parametrize(
    ("offered", "kind", "policy", "chosen"),
    [
        (ALL_KINDS, "edit", "ask", None),
        (ALL_KINDS, "edit", "deny", "id-reject_once"),
        (("allow_once", "reject_always"), "edit", "deny", "id-reject_always"),
        (("allow_once",), "edit", "deny", None),
        (ALL_KINDS, "edit", "allow-once", "id-allow_once"),
        (("allow_always",), "edit", "allow-once", None),
        (ALL_KINDS, "edit", ["read", "edit"], "id-allow_once"),
        (("allow_always",), "edit", ["edit"], "id-allow_always"),
        (ALL_KINDS, "execute", ["read", "edit"], None),
        (ALL_KINDS, "", ["read", ""], None),
        (ALL_KINDS, "edit", [], None),
        (ALL_KINDS, "e", "edit", None),
        (("novelty",), "edit", ["edit"], None),
    ],
)
def test_perm_policies_choose_the_smallest_answer(
    offered: tuple[str, ...], kind: str, policy: Any, chosen: str | None
) -> None:
    """Deny never allows, a list allows only its kinds, once comes before always, and doubt asks a person."""
    assert acp.auto_permission(options(*offered), kind, policy) == chosen


def test_perm_requests_are_read_leniently() -> None:
    """Options without an id are left out, names fall back to the id, everything else may be missing."""
    offered = [
        {"optionId": "a"},
        {"name": "no id"},
        "x",
        {"optionId": "b", "name": "B", "kind": "allow_once"},
        {"optionId": 5},
    ]
    ask = acp.permission({"sessionId": "s", "toolCall": {"toolCallId": "t", "title": 5}, "options": offered})
    assert (ask.session_id, ask.tool_call_id, ask.title, ask.kind) == ("s", "t", "", "")
    assert [(o.option_id, o.name, o.kind) for o in ask.options] == [("a", "a", ""), ("b", "B", "allow_once")]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ([{"type": "content", "content": {"type": "text", "text": "a"}}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "diff", "path": "/a.py", "oldText": None, "newText": "x"}], "[diff: /a.py]"),
        ([{"type": "terminal", "terminalId": "t1"}], "[terminal: t1]"),
        (
            [{"type": "content", "content": {"type": "image", "mimeType": "image/png", "data": "…"}}],
            "[image: image/png]",
        ),
        ({"type": "resource_link", "uri": "file:///a"}, "[resource_link: file:///a]"),
        ({"type": "resource", "resource": {"uri": "file:///a", "text": "body"}}, "body"),
        ({"type": "resource", "resource": {"uri": "file:///a", "blob": "…"}}, "[resource: file:///a]"),
        ({"type": "hologram"}, "[hologram]"),
        ([{}, None, 5, {"type": "text", "text": ""}], "[unknown]"),
        (None, ""),
    ],
)
def test_hist_10_contents_become_text(content: Any, text: str) -> None:
    """Text as it is, a diff as its path, the rest as a placeholder."""
    assert acp.text_of(content) == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"content": [{"type": "text", "text": "a"}], "rawOutput": "b"}, "a"),
        ({"content": [], "rawOutput": "b"}, "b"),
        ({"rawOutput": {"output": "c"}}, "c"),
        ({"rawOutput": {"exit": 0}}, ""),
        ({}, ""),
    ],
)
def test_hist_10_raw_output_stands_in_for_content(body: dict[str, Any], text: str) -> None:
    """Some agents give the output of a tool only in rawOutput."""
    assert acp.tool_output(body) == text


def test_tok_9_error_text_hides_the_token() -> None:
    """Message and all strings of data, each once, bounded, without the session id."""
    error = {"code": 1, "message": "Internal error", "data": {"a": [{"b": "no thread t-1"}], "c": "Internal error"}}
    assert acp.error_text(error, hide="t-1") == "Internal error / no thread …"
    assert len(acp.error_text({"message": "x" * 9000})) == 2000
    assert acp.error_text(None) == acp.error_text({}) == "the agent gave no reason"


def test_wire_11_mcp_entries_are_normalised() -> None:
    """Tables become arrays of name and value, and a stdio entry loses its type."""
    stdio = {"type": "stdio", "name": "a", "command": "x", "args": ["1"], "env": {"K": "v"}}
    web = {"name": "b", "url": "http://127.0.0.1/", "headers": [{"name": "H", "value": "1"}]}
    assert acp.mcp_entries([stdio, web]) == [
        {"name": "a", "command": "x", "args": ["1"], "env": [{"name": "K", "value": "v"}]},
        {"type": "http", "name": "b", "url": "http://127.0.0.1/", "headers": [{"name": "H", "value": "1"}]},
    ]


@pytest.mark.parametrize(
    "server", [{}, {"name": "a"}, {"command": "x"}, {"name": "", "url": "u"}, {"name": "a", "url": 5}]
)
def test_wire_11_half_an_mcp_entry_is_refused(server: dict[str, Any]) -> None:
    """Agents skip such an entry in silence, so it is refused before it is sent."""
    with pytest.raises(Invalid, match="MCP server"):
        acp.new_session(1, "/w", [server])
