"""From the agent's updates to messages: text is streamed in pieces, tool calls and plans are kept as one message each.

It decides nothing about sessions. Everything it changes goes into the batch that it was given.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kandev.domain.constants import MESSAGE_PART_BYTES
from kandev.domain.models import Event, Message, SessionId, TurnId, new_message_id, now
from kandev.lifecycle.batch import TOOL_DONE, Batch, Change, close_change, text_change
from kandev.lifecycle.effects import ExecutionRef
from kandev.lifecycle.protocol_state import OpenMessage, ProtocolState
from kandev.protocols import acp
from kandev.store.rows import to_json

TEXT_TYPES: Mapping[str, str] = {"agent_message_chunk": "message", "agent_thought_chunk": "thinking"}
AGENT_STATE: Mapping[str, tuple[str, str, str]] = {
    # update kind: (key in agent_state, field of the update, notification)
    "available_commands_update": ("commands", "availableCommands", "session.commands_changed"),
    "current_mode_update": ("mode", "currentModeId", "session.mode_changed"),
    "config_option_update": ("options", "configOptions", "session.options_changed"),
}

KNOWN_TOOLS = 256
"""Tool calls of a turn that an update may still come for. They are written with each commit, so they are bounded:
ended ones are forgotten beyond so many, open ones beyond twice as many."""
TOOL_OPEN = frozenset({"pending", "in_progress", ""})


class Transcript:
    """Writes one session's messages. `next_seq` gives places; `load_message` brings back an open tool call."""

    def __init__(
        self,
        ref: ExecutionRef,
        state: ProtocolState,
        *,
        next_seq: Callable[[], int],
        load_message: Callable[[str], Message | None],
    ) -> None:
        self.batch = Batch()
        self._ref = ref
        self._state = state
        self._next_seq = next_seq
        self._load_message = load_message
        self._text: list[str] = []
        self._begun: Message | None = None  # the open message, while it is in no batch
        self._tools: dict[str, Message] = {}

    def chunk(self, chunk: acp.Chunk) -> None:
        """Append text to the open message, or begin a new one."""
        kind = TEXT_TYPES.get(chunk.kind)
        if kind is None or not chunk.text:
            return  # an echo of the user's text, which is stored already; or nothing
        opened = self._state.open_message
        if opened is None or opened.kind != chunk.kind or opened.acp_id != chunk.message_id:
            self.close_text()
            self._begun = self._make(author_type="agent", type_=kind, content="", metadata={"streaming": True})
            self._state.open_message = OpenMessage(id=self._begun.id, kind=chunk.kind, acp_id=chunk.message_id)
        self._text.append(chunk.text)

    def continues(self, chunk: acp.Chunk) -> bool:
        """Append the chunk where it goes on with the open message; the answer says whether it did."""
        opened = self._state.open_message
        if opened is None or opened.kind != chunk.kind or opened.acp_id != chunk.message_id:
            return False
        self._text.append(chunk.text)
        return True

    def flush_text(self) -> None:
        """Turn the text that has gathered into changes of the batch."""
        opened = self._state.open_message
        if not self._text or opened is None:
            return
        if self._begun is not None:
            self.batch.put(self._begun, self._ref.task_id, "message_insert")
            self._begun = None
        text = "".join(self._text)
        self._text.clear()
        for start in range(0, len(text), MESSAGE_PART_BYTES):
            piece = text[start : start + MESSAGE_PART_BYTES]
            self.batch.add(text_change(opened.id, opened.length, piece, self._ref.session_id, self._ref.task_id))
            opened.length += len(piece)

    def close_text(self) -> None:
        """End the open message: its pieces are folded into it. One that began in this batch is written whole."""
        opened = self._state.open_message
        if opened is None:
            return
        if self._begun is not None:
            self.batch.put_streamed(self._begun, "".join(self._text), self._ref.task_id)
            self._begun = None
            self._text.clear()
        else:
            self.flush_text()
            self.batch.add(close_change(opened.id, self._ref.task_id))
        self._state.open_message = None

    def update(self, update: acp.Update) -> None:
        """Apply any other session/update of a live session."""
        body = dict(update.body)
        match update.kind:
            case "tool_call" | "tool_call_update":
                self._tool(body)
            case "plan":
                self.plan(body)
            case "agent_message_chunk" | "agent_thought_chunk":
                self.close_text()
                content = body.get("content")
                kind = TEXT_TYPES[update.kind]
                self.message(author_type="agent", type_=kind, content=acp.text_of(content), metadata={"raw": content})
            case "user_message_chunk" | "usage_update" | "session_info_update":
                pass
            case kind if kind in AGENT_STATE:
                self.agent_state(kind, body)
            case _:
                self.close_text()
                metadata = {"raw": body}
                self.message(author_type="agent", type_="unknown", content=update.kind or "?", metadata=metadata)

    def agent_state(self, kind: str, body: Mapping[str, Any]) -> None:
        """Keep what the agent said of its commands, mode or options, and tell subscribers."""
        key, field, action = AGENT_STATE[kind]
        self.set_agent_state(key, body.get(field), action)

    def set_up(self, setup: acp.SessionSetup) -> None:
        """Keep what an answer says of modes and options; what it does not tell stays."""
        if setup.current_mode or setup.modes:
            modes = [{"id": mode.id, "name": mode.name, "description": mode.description} for mode in setup.modes]
            self.set_agent_state("modes", modes, "session.mode_changed")
            self.set_agent_state("mode", setup.current_mode, "session.mode_changed")
        if setup.config_options:
            self.set_agent_state("options", list(setup.config_options), "session.options_changed")

    def set_agent_state(self, key: str, value: Any, action: str) -> None:
        """Store one entry of `agent_state` and publish it under `action`."""
        session_id, task_id = self._ref.session_id, self._ref.task_id
        event = Event(action=action, session_id=session_id, task_id=task_id, payload={key: value})
        self.batch.add(_store_agent_state(session_id, key, value, event))

    def plan(self, body: Mapping[str, Any]) -> None:
        """Replace the plan: one message a turn, and the session's current plan."""
        entries = body.get("entries")
        self.set_agent_state("plan", entries, "session.plan_changed")
        content = _plan_text(entries)
        known = self._tools.get("plan") or self._load(self._state.plan_message)
        if known is None:
            self.close_text()
            message = self.message(author_type="agent", type_="plan", content=content, metadata={"entries": entries})
            self._state.plan_message = message.id
        else:
            message = msgspec.structs.replace(known, content=content, metadata={"entries": entries}, updated_at=now())
            self.batch.put(message, self._ref.task_id, "message_update")
        self._tools["plan"] = message

    def _tool(self, body: dict[str, Any]) -> None:
        body.pop("sessionUpdate", None)
        call_id = body.get("toolCallId")
        key = f"call {call_id}"
        known = self._tools.get(key) or self._load(self._state.open_tools.get(str(call_id), ""))
        if known is None:
            self.close_text()
            message = self.message(
                author_type="agent", type_="tool_call", content=_title(body), metadata=_tool_metadata(body)
            )
        else:
            merged = {**known.metadata["tool_call"], **{k: v for k, v in body.items() if v is not None}}
            message = msgspec.structs.replace(
                known, content=_title(merged), metadata=_tool_metadata(merged), updated_at=now()
            )
            self.batch.put(message, self._ref.task_id, "message_update")
        self._tools[key] = message
        self._state.open_tools[str(call_id)] = message.id
        if len(self._state.open_tools) > KNOWN_TOOLS:
            self._forget_oldest_tool()

    def _forget_oldest_tool(self) -> None:
        """Drop the oldest tool call if it has ended; one that is open goes behind the others, while there is room."""
        call_id = next(iter(self._state.open_tools))
        message_id = self._state.open_tools.pop(call_id)
        message = self._tools.get(f"call {call_id}") or self._load(message_id)
        is_open = message is not None and message.metadata.get("status") not in TOOL_DONE
        if is_open and len(self._state.open_tools) < 2 * KNOWN_TOOLS:
            self._state.open_tools[call_id] = message_id
            return
        if message is not None:
            self._end_tool(call_id, message, "unknown")
        self._tools.pop(f"call {call_id}", None)

    def tool_kind(self, call_id: str) -> str:
        """Return the kind of an open tool call, '' where it is not known: a permission request may not repeat it."""
        message = self._tools.get(f"call {call_id}") or self._load(self._state.open_tools.get(call_id, ""))
        return str(message.metadata.get("kind", "")) if message else ""

    def end_turn(self, *, tools: str) -> None:
        """Close what a turn leaves open; tool calls without an end get the status `tools` ('' leaves them)."""
        self.close_text()
        for call_id, message_id in self._state.open_tools.items() if tools else ():
            message = self._tools.get(f"call {call_id}") or self._load(message_id)
            if message is not None:
                self._end_tool(call_id, message, tools)

    def _end_tool(self, call_id: str, message: Message, status: str) -> None:
        if message.metadata.get("status") not in TOOL_OPEN:
            return
        ended = msgspec.structs.replace(message, metadata={**message.metadata, "status": status}, updated_at=now())
        self._tools[f"call {call_id}"] = ended
        self.batch.put(ended, self._ref.task_id, "message_update")

    def begin_turn(self, turn_id: str) -> None:
        """Forget the tool calls and the plan of the turn before; a late tail of it ends here."""
        self.close_text()
        self._tools.clear()
        self._state.open_tools = {}
        self._state.plan_message = ""
        self._state.turn_id = turn_id

    def message(self, *, author_type: str, type_: str, content: str, metadata: dict[str, Any]) -> Message:
        """Append a new message at the next place and return it."""
        self.flush_text()
        message = self._make(author_type=author_type, type_=type_, content=content, metadata=metadata)
        self.batch.put(message, self._ref.task_id, "message_insert")
        return message

    def _make(self, *, author_type: str, type_: str, content: str, metadata: dict[str, Any]) -> Message:
        stamp = now()
        return Message(
            id=new_message_id(),
            session_id=SessionId(self._ref.session_id),
            turn_id=TurnId(self._state.turn_id) if self._state.turn_id else None,
            seq=self._next_seq(),
            author_type=author_type,
            type=type_,
            content=content,
            metadata=metadata,
            created_at=stamp,
            updated_at=stamp,
        )

    def _load(self, message_id: str) -> Message | None:
        return self._load_message(message_id) if message_id else None


def _store_agent_state(session_id: str, key: str, value: Any, event: Event) -> Change:
    def change(tx: Any, applied: Any) -> None:
        tx.run("session_set_agent_state", id=session_id, key=key, value=to_json(value))
        applied.events.append(event)

    return change


def _title(call: Mapping[str, Any]) -> str:
    title = call.get("title") or call.get("name") or call.get("kind") or "tool"
    return title if isinstance(title, str) else "tool"


def _tool_metadata(call: dict[str, Any]) -> dict[str, Any]:
    status = call.get("status")
    kind = call.get("kind")
    return {
        "tool_call_id": call.get("toolCallId"),
        "status": status if isinstance(status, str) else "",
        "kind": kind if isinstance(kind, str) else "other",
        "tool_call": call,
    }


def _plan_text(entries: Any) -> str:
    lines = entries if isinstance(entries, list) else []
    return "\n".join(
        f"[{entry.get('status', '?')}] {entry.get('content', '')}" for entry in lines if isinstance(entry, dict)
    )
