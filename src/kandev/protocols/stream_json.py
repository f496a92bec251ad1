"""Line-delimited messages as Claude Code speaks them, and Amp after it: what a line means, and the lines that we send.

Claude Code adds control requests both ways: to begin, to interrupt, to set mode and model, to ask for permission. Amp
has none. What is read becomes the events that ACP's lines become, so that everything behind is one code path.
`decode` never raises. What it remembers from line to line is a `StreamState`, stored with the position in the journal.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from kandev.protocols import jsonrpc
from kandev.protocols.acp import Chunk, Notification, Request, Response, Update
from kandev.protocols.dialect import Burst, Event, SessionNamed
from kandev.protocols.stream_answers import control_answer, prompt_answer, started
from kandev.protocols.stream_permissions import permission, permission_answer
from kandev.protocols.stream_tools import items, mapping, plan, text, tool_call, tool_result

OURS = "kandev-"
"""Begins the ids of our control requests, so that no id of the agent is taken for one of them."""
REMEMBERED = 64
"""So many tool calls with a shown difference, and blocks of one message, are remembered: it is all written often."""
ID_CHARACTERS = 200
"""An id that is longer is not remembered."""
NOTHING = Notification("", None)
CANCELLED = -32800
_TEXTS = {"text": ("agent_message_chunk", "text"), "thinking": ("agent_thought_chunk", "thinking")}
_AMP_ENDS = frozenset({"end_turn", "max_tokens", "refusal", "stop_sequence"})


class Block(msgspec.Struct, kw_only=True):
    """A block of text that is being streamed, or was: `said` counts its characters so far."""

    kind: str
    index: int
    said: int = 0


class StreamState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the reader of this protocol remembers. `opening` and `prompt` are ids of requests of ours, 0: none.

    `taken`: the agent has repeated the prompt. `spoke`: it has said something since. `message` is the message of the
    model that is being streamed, `blocks` what of it was not repeated whole yet. `uuid` is the last whole message of
    the turn. `owed`: a turn ended by its last message, and the line that says so too may still come (Amp).
    """

    protocol: Literal["stream-json", "amp"]
    opening: int = 0
    prompt: int = 0
    taken: bool = False
    spoke: bool = False
    cancelled: bool = False
    owed: bool = False
    interrupts: int = 0
    messages: int = 0
    message: str = ""
    uuid: str = ""
    blocks: list[Block] = []
    edits: list[str] = []


class _TextDelta(msgspec.Struct, tag="text_delta", gc=False):
    text: str


class _ThinkingDelta(msgspec.Struct, tag="thinking_delta", gc=False):
    thinking: str


class _InputDelta(msgspec.Struct, tag="input_json_delta", gc=False):
    pass


class _DeltaEvent(msgspec.Struct, gc=False):
    type: Literal["content_block_delta"]
    index: int
    delta: _TextDelta | _ThinkingDelta | _InputDelta


class _DeltaLine(msgspec.Struct, gc=False):
    type: Literal["stream_event"]
    event: _DeltaEvent
    session_id: str = ""
    parent_tool_use_id: str | None = None


_decode_delta = msgspec.json.Decoder(_DeltaLine).decode


class StreamJson:
    """One agent's dialogue. Every change of `state` is made by a line, read or written."""

    def __init__(self, state: StreamState) -> None:
        self._state = state

    def decode(self, line: bytes) -> Event:
        """Return what one line says; several things come as one `Burst`."""
        if b'"content_block_delta"' in line:
            try:
                return self._delta(_decode_delta(line))
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                pass  # not a plain piece of text; the full reading says what it is
        value = jsonrpc.parse_object(line)
        if isinstance(value, jsonrpc.Noise):
            return value
        events = tuple(self._events(value))
        if len(events) == 1:
            return events[0]
        return Burst(events) if events else NOTHING

    def _delta(self, line: _DeltaLine) -> Event:
        delta = line.event.delta
        if line.parent_tool_use_id is not None or isinstance(delta, _InputDelta):
            return NOTHING  # a subagent's text is its own; its result comes as that of the tool call
        if isinstance(delta, _TextDelta):
            return self._piece("text", line.event.index, delta.text, line.session_id)
        return self._piece("thinking", line.event.index, delta.thinking, line.session_id)

    def _piece(self, kind: str, index: int, piece: str, session_id: str) -> Chunk:
        state = self._state
        blocks = state.blocks
        if not blocks or blocks[-1].index != index or blocks[-1].kind != kind:
            self._begin_block(kind, index)
        blocks[-1].said += len(piece)
        state.spoke = True
        return Chunk(session_id, _TEXTS[kind][0], piece, f"{state.message}/{index}")

    def _begin_block(self, kind: str, index: int) -> None:
        blocks = self._state.blocks
        blocks.append(Block(kind=kind, index=index))
        del blocks[:-REMEMBERED]

    def _events(self, value: dict[str, Any]) -> Iterator[Event]:
        match value.get("type"):
            case "stream_event":
                yield from self._streamed(value)
            case "assistant":
                yield from self._assistant(value)
            case "user":
                yield from self._user(value)
            case "system":
                yield from self._system(value)
            case "result":
                yield from self._result(value)
            case "control_request":
                yield _request(value)
            case "control_response":
                yield from self._answered(mapping(value.get("response")))
            case "control_cancel_request":
                yield Notification("$/cancel_request", {"requestId": value.get("request_id")})
            case str():
                pass  # the agent's notices for its own terminal: progress, limits, suggestions
            case _:
                yield jsonrpc.Noise("not a message of this protocol", str(value)[: jsonrpc.SAMPLE_CHARACTERS])

    def _streamed(self, value: dict[str, Any]) -> Iterator[Event]:
        if value.get("parent_tool_use_id") is not None:
            return
        event = mapping(value.get("event"))
        block, index = mapping(event.get("content_block")), event.get("index")
        match event.get("type"):
            case "message_start":
                self._state.message = text(mapping(event.get("message")).get("id"))[:ID_CHARACTERS]
                self._state.blocks.clear()
            case "content_block_start" if isinstance(index, int):
                yield from self._block_started(block, index, text(value.get("session_id")))
            case "content_block_delta" if isinstance(index, int):
                yield from self._odd_delta(mapping(event.get("delta")), index, text(value.get("session_id")))
            case _:
                pass

    def _block_started(self, block: dict[str, Any], index: int, session_id: str) -> Iterator[Event]:
        kind = text(block.get("type"))
        if kind in _TEXTS:
            self._begin_block(kind, index)
            if piece := text(block.get(_TEXTS[kind][1])):
                yield self._piece(kind, index, piece, session_id)
        elif kind == "tool_use":
            self._state.spoke = True
            yield Update(session_id, "tool_call", tool_call(block))

    def _odd_delta(self, delta: dict[str, Any], index: int, session_id: str) -> Iterator[Event]:
        """A piece that the short path refused: its text may need mending, or it has none (a signature, a citation)."""
        for kind in _TEXTS:
            if delta.get("type") == f"{kind}_delta" and (piece := text(delta.get(_TEXTS[kind][1]))):
                yield self._piece(kind, index, piece, session_id)

    def _assistant(self, value: dict[str, Any]) -> Iterator[Event]:
        message, session_id = mapping(value.get("message")), text(value.get("session_id"))
        parent = text(value.get("parent_tool_use_id"))
        blocks = items(message.get("content"))
        if parent:
            for block in blocks:
                if block.get("type") == "tool_use":
                    yield Update(session_id, "tool_call", tool_call(block, parent=parent))
            return
        if value.get("error") or value.get("is_api_error_message") is True:
            return  # the result says the same, as an error
        uuid = text(value.get("uuid"))
        if message.get("model") != "<synthetic>" and 0 < len(uuid) <= ID_CHARACTERS:
            self._state.uuid = uuid
            if not self._state.prompt and session_id:
                yield SessionNamed(session_id, uuid)
        for block in blocks:
            yield from self._whole(block, text(message.get("id"))[:ID_CHARACTERS], session_id)
        calls = any(block.get("type") == "tool_use" for block in blocks)
        if self._state.protocol == "amp" and not calls and message.get("stop_reason") in _AMP_ENDS:
            yield from self._ended({"stop_reason": message.get("stop_reason"), "usage": message.get("usage")})
            self._state.owed = True

    def _whole(self, block: dict[str, Any], message_id: str, session_id: str) -> Iterator[Event]:
        """A block as a whole: text that was streamed is not said again."""
        kind = text(block.get("type"))
        if kind in _TEXTS:
            yield from self._whole_text(kind, text(block.get(_TEXTS[kind][1])), message_id, session_id)
        elif kind == "tool_use":
            body = tool_call(block)
            if "content" in body and len(body["toolCallId"]) <= ID_CHARACTERS:
                self._state.edits.append(body["toolCallId"])
                del self._state.edits[:-REMEMBERED]
            self._state.spoke = True
            yield Update(session_id, "tool_call", body)
            if entries := plan(block):
                yield Update(session_id, "plan", {"sessionUpdate": "plan", "entries": entries})
        elif kind not in {"redacted_thinking", ""}:
            self._state.spoke = True
            yield Update(session_id, kind, block)  # shown as unknown (WIRE-3)

    def _whole_text(self, kind: str, whole: str, message_id: str, session_id: str) -> Iterator[Event]:
        state = self._state
        known = next((b for b in state.blocks if b.kind == kind), None) if message_id == state.message else None
        if known is not None:
            state.blocks.remove(known)
            rest, place = whole[known.said :], f"{message_id}/{known.index}"
            if kind == "thinking" and known.said:
                rest = ""  # what is streamed of it may be a shorter telling
        else:
            state.messages += 1
            rest, place = whole, f"{message_id}/whole {state.messages}"
        if rest:
            state.spoke = True
            yield Chunk(session_id, _TEXTS[kind][0], rest, place)

    def _user(self, value: dict[str, Any]) -> Iterator[Event]:
        """Results of tools; or the prompt again, which says that the agent took it."""
        session_id = text(value.get("session_id"))
        content = mapping(value.get("message")).get("content")
        results = [block for block in items(content) if block.get("type") == "tool_result"]
        for block in results:
            call_id = text(block.get("tool_use_id"))
            shown = call_id in self._state.edits
            if shown:
                self._state.edits.remove(call_id)
            yield Update(session_id, "tool_call_update", tool_result(block, keep_content=shown))
        if results or value.get("parent_tool_use_id") is not None or not self._state.prompt:
            return
        if value.get("isReplay") is True or self._state.protocol == "amp":
            self._state.taken, self._state.owed = True, False
            said = content if isinstance(content, str) else "\n".join(text(b.get("text")) for b in items(content))
            yield Chunk(session_id, "user_message_chunk", said)

    def _system(self, value: dict[str, Any]) -> Iterator[Event]:
        session_id = text(value.get("session_id"))
        if value.get("subtype") == "init" and session_id:
            yield SessionNamed(session_id)
        if mode := text(value.get("permissionMode")):
            body = {"sessionUpdate": "current_mode_update", "currentModeId": mode}
            yield Update(session_id, "current_mode_update", body)

    def _result(self, value: dict[str, Any]) -> Iterator[Event]:
        state = self._state
        if state.opening and not state.prompt:
            # It could not begin: it ends behind this, without an answer to our request.
            opening, state.opening = state.opening, 0
            error = prompt_answer(value, cancelled=False)[1]
            yield Response(opening, None, error or {"code": jsonrpc.INTERNAL_ERROR, "message": "it ended at once"})
            return
        if (state.owed and not state.taken) or mapping(value.get("origin")):
            state.owed = False
            return  # said before by its last message; or of a turn that the agent began by itself
        yield from self._ended(value)

    def _ended(self, value: dict[str, Any]) -> Iterator[Event]:
        state = self._state
        if not state.prompt:
            return  # an end that came twice
        result, error = prompt_answer(value, cancelled=state.cancelled)
        said = text(value.get("result"))
        if said and not state.spoke and error is None:
            yield Chunk(text(value.get("session_id")), "agent_message_chunk", said)
        if result is not None and state.uuid and result["stopReason"] != "cancelled":
            result["lastMessageUuid"] = state.uuid
        prompt, state.prompt = state.prompt, 0
        state.blocks.clear()
        state.edits.clear()
        yield Response(prompt, result, error)

    def _answered(self, response: dict[str, Any]) -> Iterator[Event]:
        number = text(response.get("request_id")).removeprefix(OURS)
        if not text(response.get("request_id")).startswith(OURS) or not (number.isdecimal() and len(number) < 18):
            return  # of an interrupt, or an answer of ours that is repeated
        result, error = control_answer(response)
        request_id = int(number)
        if request_id != self._state.opening:
            yield Response(request_id, result, error)
            return
        self._state.opening = 0
        setup, commands = started(result or {})
        yield Response(request_id, setup if error is None else None, error)
        if commands:
            yield Update("", "available_commands_update", {"availableCommands": commands})

    def initialize(self, request_id: int) -> bytes:
        """Return the request that Claude Code answers once it has started, and restored a session where it is to."""
        self._state.opening = request_id
        return _control(request_id, {"subtype": "initialize", "hooks": None})

    def prompt(self, request_id: int, session_id: str, text: str) -> bytes:  # noqa: ARG002 - a process has one session
        """Return the user's message."""
        state = self._state
        state.prompt, state.uuid = request_id, ""
        state.taken = state.spoke = state.cancelled = False
        content = [{"type": "text", "text": text}]
        return jsonrpc.encode({"type": "user", "message": {"role": "user", "content": content}})

    def cancel(self, session_id: str) -> bytes:  # noqa: ARG002 - a process has one session
        """Return the request to interrupt; '' where there is none: then only the process can be ended."""
        state = self._state
        if state.protocol == "amp":
            return b""
        state.cancelled = True
        state.interrupts += 1
        request = {"subtype": "interrupt"}
        return jsonrpc.encode(
            {"type": "control_request", "request_id": f"interrupt-{state.interrupts}", "request": request}
        )

    def answer_permission(self, request_id: Any, option_id: str | None, tool_call: Mapping[str, Any]) -> bytes:
        """Return the answer to a can_use_tool request."""
        answer = permission_answer(option_id, tool_call)
        response = {"subtype": "success", "request_id": request_id, "response": answer}
        return jsonrpc.encode({"type": "control_response", "response": response})

    def refuse(self, request_id: Any, code: int, message: str) -> bytes:  # noqa: ARG002 - errors have no code here
        """Return the refusal of a control request."""
        response = {"subtype": "error", "request_id": request_id, "error": message}
        return jsonrpc.encode({"type": "control_response", "response": response})

    def setting(self, request_id: int, session_id: str, method: str, *values: Any) -> bytes:  # noqa: ARG002 - see above
        """Return the control request that sets mode, model or tool servers; Claude Code refuses any other."""
        match method:
            case "session/set_mode":
                return _control(request_id, {"subtype": "set_permission_mode", "mode": values[0]})
            case "session/set_model":
                return _control(request_id, {"subtype": "set_model", "model": values[0]})
            case "mcp/set_servers":
                return _control(request_id, {"subtype": "mcp_set_servers", "servers": values[0]})
            case _:
                return _control(request_id, {"subtype": method, "values": list(values)})


def _control(request_id: int, request: dict[str, Any]) -> bytes:
    return jsonrpc.encode({"type": "control_request", "request_id": f"{OURS}{request_id}", "request": request})


def _request(value: dict[str, Any]) -> Request:
    request = mapping(value.get("request"))
    given = value.get("request_id")
    request_id = given if isinstance(given, str | int) and not isinstance(given, bool) else None
    subtype = text(request.get("subtype"))
    if subtype == "can_use_tool":
        return Request(request_id, "session/request_permission", permission(request))
    return Request(request_id, subtype, request)
