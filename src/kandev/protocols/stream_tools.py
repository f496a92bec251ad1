"""Tools of Claude Code and Amp, as ACP describes tool calls: title, kind, places, differences, results."""

from collections.abc import Mapping, Sequence
from typing import Any

TITLE_CHARACTERS = 300

_KINDS: Mapping[str, str] = {
    "bash": "execute", "killshell": "execute", "bashoutput": "execute", "monitor": "execute",
    "read": "read", "notebookread": "read", "look_at": "read", "read_thread": "read",
    "edit": "edit", "multiedit": "edit", "write": "edit", "notebookedit": "edit",
    "create_file": "edit", "edit_file": "edit", "undo_edit": "edit",
    "glob": "search", "grep": "search", "ls": "search", "finder": "search", "toolsearch": "search",
    "webfetch": "fetch", "websearch": "fetch", "read_web_page": "fetch", "web_search": "fetch",
    "task": "think", "agent": "think", "todowrite": "think", "oracle": "think", "skill": "think",
    "enterplanmode": "switch_mode", "exitplanmode": "switch_mode",
}  # fmt: skip
_SHOWN = ("file_path", "path", "notebook_path", "pattern", "query", "url", "description", "skill")
_PLAN_STATUS = frozenset({"pending", "in_progress", "completed"})


def tool_call(block: Mapping[str, Any], *, parent: str = "") -> dict[str, Any]:
    """Return the body of a `tool_call` update from a tool_use block; `parent` is the call that a subagent runs in."""
    name, given = text(block.get("name")) or "tool", mapping(block.get("input"))
    body: dict[str, Any] = {
        "sessionUpdate": "tool_call",
        "toolCallId": text(block.get("id")),
        "title": title(name, given),
        "name": name,
        "kind": kind(name),
        "status": "pending",
    }
    if given:
        body["rawInput"] = given
    if content := differences(name, given):
        body["content"] = content
    if path := text(given.get("file_path")) or text(given.get("path")):
        body["locations"] = [{"path": path}]
    if parent:
        body["parentToolCallId"] = parent
    return body


def tool_result(block: Mapping[str, Any], *, keep_content: bool) -> dict[str, Any]:
    """Return the body of a `tool_call_update` from a tool_result block; `keep_content` spares a shown difference."""
    said = block.get("content")
    body: dict[str, Any] = {
        "sessionUpdate": "tool_call_update",
        "toolCallId": text(block.get("tool_use_id")),
        "status": "failed" if block.get("is_error") is True else "completed",
    }
    if keep_content:
        body["rawOutput"] = said if isinstance(said, str) else "\n".join(map(_text_of, items(said)))
    else:
        parts = [{"type": "text", "text": said}] if isinstance(said, str) else items(said)
        body["content"] = [{"type": "content", "content": _block(part)} for part in parts]
    return body


def _text_of(part: Mapping[str, Any]) -> str:
    return text(part.get("text")) or f"[{text(part.get('type')) or 'unknown'}]"


def _block(part: dict[str, Any]) -> dict[str, Any]:
    """An image's bytes are not kept: they stand in no transcript."""
    source = mapping(part.get("source"))
    return {"type": "image", "mimeType": source.get("media_type", "")} if part.get("type") == "image" else part


def kind(name: str) -> str:
    """Return ACP's kind of a tool, "other" for one that is not known."""
    return _KINDS.get(name.lower(), "other")


def title(name: str, given: Mapping[str, Any]) -> str:
    """Return a line for a person: the command, or the tool and what it is about."""
    command = text(given.get("command")) or text(given.get("cmd"))
    if command:
        return command[:TITLE_CHARACTERS]
    if questions := items(given.get("questions")):
        return " ".join(text(one.get("question")) for one in questions)[:TITLE_CHARACTERS]
    about = next((text(given[key]) for key in _SHOWN if text(given.get(key))), "")
    return f"{name} {about}"[:TITLE_CHARACTERS].strip()


def differences(name: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the differences that an editing tool is about to make, as ACP's content; [] for another tool."""
    path = text(given.get("file_path")) or text(given.get("path"))
    if kind(name) != "edit" or not path:
        return []
    edits: Sequence[Mapping[str, Any]] = [*items(given.get("edits"))] or [given]
    return [
        {"type": "diff", "path": path, "oldText": old, "newText": new}
        for old, new in map(_change, edits)
        if new is not None
    ]


def _change(edit: Mapping[str, Any]) -> tuple[str | None, str | None]:
    new = next((edit[key] for key in ("new_string", "new_str", "content") if isinstance(edit.get(key), str)), None)
    old = next((edit[key] for key in ("old_string", "old_str") if isinstance(edit.get(key), str)), None)
    return old, new


def plan(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the plan that a to-do tool writes; [] for another tool."""
    if text(block.get("name")).lower() != "todowrite":
        return []
    return [
        {
            "content": text(entry.get("content")),
            "status": status if (status := entry.get("status")) in _PLAN_STATUS else "pending",
            "priority": text(entry.get("priority")) or "medium",
        }
        for entry in items(mapping(block.get("input")).get("todos"))
    ]


def mapping(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one: a wrong type counts as absent (WIRE-3)."""
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str:
    """Return the value if it is text, else ''."""
    return value if isinstance(value, str) else ""


def items(value: Any) -> list[dict[str, Any]]:
    """Return the objects of an array, [] for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list | tuple) else []
