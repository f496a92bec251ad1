"""What answers of Claude Code and Amp say, in the words of ACP's answers: the end of a turn, a beginning, a setting."""

from collections.abc import Mapping
from typing import Any

from kandev.protocols.jsonrpc import INTERNAL_ERROR
from kandev.protocols.stream_tools import items, mapping, text

AUTH_REQUIRED = -32000
HTTP_UNAUTHORIZED = 401
DESCRIPTION_CHARACTERS = 200

_STOP: Mapping[str, str] = {"max_tokens": "max_tokens", "refusal": "refusal", "error_max_turns": "max_turn_requests"}
_USAGE: Mapping[str, str] = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_input_tokens": "cachedReadTokens",
    "cache_creation_input_tokens": "cachedWriteTokens",
}
_MODES = (
    ("default", "Default", "Asks before it changes anything"),
    ("acceptEdits", "Accept edits", "Changes files without asking"),
    ("plan", "Plan", "Reads and plans, changes nothing"),
    ("auto", "Auto", "Decides by itself what needs a question"),
    ("dontAsk", "Do not ask", "Denies what is not allowed already"),
)

Answer = tuple[dict[str, Any] | None, dict[str, Any] | None]


def prompt_answer(value: Mapping[str, Any], *, cancelled: bool) -> Answer:
    """Return result and error of a prompt, one of them None, from the line that ends a turn.

    `cancelled`: the turn was interrupted by us. An interrupted turn ends with an error that says nothing to a person.
    """
    subtype, why = text(value.get("subtype")), text(value.get("terminal_reason"))
    if why.startswith("aborted") or (cancelled and subtype == "error_during_execution"):
        return {"stopReason": "cancelled", "usage": _usage(value)}, None
    if subtype == "error_max_turns":
        return {"stopReason": _STOP[subtype], "usage": _usage(value)}, None
    if value.get("is_error") is True or subtype.startswith("error"):
        return None, _error(value, subtype)
    reason = text(value.get("stop_reason"))
    result = {"stopReason": _STOP.get(reason, "end_turn"), "usage": _usage(value)}
    # Its own commands ("/cost", "/clear") take no turn of the model, and it may have stored nothing.
    return {**result, "turns": 0} if value.get("num_turns") == 0 else result, None


def _error(value: Mapping[str, Any], subtype: str) -> dict[str, Any]:
    errors = value.get("errors")
    texts = [error for error in errors if isinstance(error, str)] if isinstance(errors, list | tuple) else []
    message = "\n".join(texts) or text(value.get("result")) or text(value.get("error")) or subtype
    login = value.get("api_error_status") == HTTP_UNAUTHORIZED
    return {"code": AUTH_REQUIRED if login else INTERNAL_ERROR, "message": message}


def _usage(value: Mapping[str, Any]) -> dict[str, Any]:
    counts = mapping(value.get("usage"))
    usage = {ours: counts[theirs] for theirs, ours in _USAGE.items() if theirs in counts}
    cost = value.get("total_cost_usd")
    return {**usage, "totalCostUsd": cost} if isinstance(cost, int | float) else usage


def control_answer(response: Mapping[str, Any]) -> Answer:
    """Return result and error of a control request, one of them None."""
    if response.get("subtype") == "success":
        return mapping(response.get("response")), None
    return None, {"code": INTERNAL_ERROR, "message": text(response.get("error")) or "refused"}


def started(answer: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the answer to the first request in ACP's shape (agent, modes, models), and the commands that it offers."""
    models = [
        {
            "modelId": model["value"],
            "name": text(model.get("displayName")),
            "description": text(model.get("description")),
        }
        for model in items(answer.get("models"))
        if text(model.get("value"))
    ]
    setup: dict[str, Any] = {
        "agentInfo": {"name": "claude-code", "version": text(answer.get("claude_code_version"))},
        "modes": {
            "currentModeId": text(answer.get("current_permission_mode")) or "default",
            "availableModes": [{"id": id_, "name": name, "description": what} for id_, name, what in _MODES],
        },
    }
    if models:
        setup["models"] = {"availableModels": models}
    commands = [
        {"name": command["name"], "description": text(command.get("description"))[:DESCRIPTION_CHARACTERS]}
        for command in items(answer.get("commands"))
        if text(command.get("name"))
    ]
    return setup, commands
