"""What agents answer, read leniently into typed values: a wrong type counts as absent, never as an error (WIRE-3)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from kandev.domain.failures import strings_of

ERROR_CHARACTERS = 2000
STOP_REASONS = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"})

_OUTPUT_KEYS = ("output", "content", "formatted_output", "stdout")


class AuthMethod(msgspec.Struct, frozen=True, kw_only=True):
    """One way to log in. `command` is what a person runs in a terminal, where the agent told it; else empty.

    `arguments` stand in place of those with which the agent itself was started, where it told only these.
    """

    id: str
    name: str = ""
    description: str = ""
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `initialize`. What is omitted, null or of a wrong type is not advertised."""

    protocol_version: int = 0
    name: str = ""
    title: str = ""
    version: str = ""
    load_session: bool = False
    resume_session: bool = False
    list_sessions: bool = False
    close_session: bool = False
    fork_session: bool = False
    image: bool = False
    audio: bool = False
    embedded_context: bool = False
    auth_methods: tuple[AuthMethod, ...] = ()

    @classmethod
    def from_initialize(cls, result: Any) -> "AgentInfo":
        """Read the result of `initialize`; anything gives a value."""
        answer = _mapping(result)
        agent = _mapping(answer.get("agentInfo"))
        capabilities = _mapping(answer.get("agentCapabilities"))
        sessions = _mapping(capabilities.get("sessionCapabilities"))
        prompts = _mapping(capabilities.get("promptCapabilities"))
        return cls(
            protocol_version=_integer(answer.get("protocolVersion")),
            name=_string(agent.get("name")),
            title=_string(agent.get("title")),
            version=_string(agent.get("version")),
            load_session=capabilities.get("loadSession") is True,
            resume_session=isinstance(sessions.get("resume"), Mapping),
            list_sessions=isinstance(sessions.get("list"), Mapping),
            close_session=isinstance(sessions.get("close"), Mapping),
            fork_session=isinstance(sessions.get("fork"), Mapping),
            image=prompts.get("image") is True,
            audio=prompts.get("audio") is True,
            embedded_context=prompts.get("embeddedContext") is True,
            auth_methods=tuple(_auth_method(item) for item in _items(answer.get("authMethods"), "id")),
        )


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A mode, or a model of the legacy interface."""

    id: str
    name: str
    description: str = ""


class SessionSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to session/new, load or resume. `config_options` are the agent's own objects."""

    session_id: str | None = None
    current_mode: str | None = None
    modes: tuple[Choice, ...] = ()
    current_model: str | None = None
    models: tuple[Choice, ...] = ()
    config_options: tuple[Mapping[str, Any], ...] = ()


class PermissionOption(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that the agent offers. `kind` is allow_once, allow_always, reject_once, reject_always, or raw."""

    option_id: str
    name: str
    kind: str = ""


class PermissionAsk(msgspec.Struct, frozen=True, kw_only=True):
    """The params of session/request_permission. `kind` is '' where this message does not repeat the tool's kind."""

    session_id: str
    tool_call: Mapping[str, Any]
    tool_call_id: str
    title: str
    kind: str
    options: tuple[PermissionOption, ...]


def session_setup(result: Any) -> SessionSetup:
    """Read the answer to session/new, load or resume: null, {} and an object with other keys are all good (TOK-7)."""
    answer = _mapping(result)
    modes = _mapping(answer.get("modes"))
    models = _mapping(answer.get("models"))
    return SessionSetup(
        session_id=_string(answer.get("sessionId")) or None,
        current_mode=_string(modes.get("currentModeId")) or None,
        modes=_choices(modes.get("availableModes"), "id"),
        current_model=_string(models.get("currentModelId")) or None,
        models=_choices(models.get("availableModels"), "modelId"),
        config_options=tuple(_items(answer.get("configOptions"), "id")),
    )


def stop_reason(result: Any) -> tuple[str, bool]:
    """Return the stop reason of a prompt, '' where there is none, and whether the protocol knows it (STATE-7)."""
    reason = _string(_mapping(result).get("stopReason"))
    return reason, reason in STOP_REASONS


def usage(result: Any) -> Mapping[str, int | float]:
    """Return the numbers of a prompt's `usage`, under the agent's names."""
    counts = _mapping(_mapping(result).get("usage"))
    return {name: n for name, n in counts.items() if isinstance(n, int | float) and not isinstance(n, bool)}


def permission(params: Any) -> PermissionAsk:
    """Read the params of session/request_permission; options without an id cannot be chosen and are left out."""
    request = _mapping(params)
    call = _mapping(request.get("toolCall"))
    return PermissionAsk(
        session_id=_string(request.get("sessionId")),
        tool_call=call,
        tool_call_id=_string(call.get("toolCallId")),
        title=_string(call.get("title")),
        kind=_string(call.get("kind")),
        options=tuple(
            PermissionOption(
                option_id=item["optionId"],
                name=_string(item.get("name")) or item["optionId"],
                kind=_string(item.get("kind")),
            )
            for item in _items(request.get("options"), "optionId")
        ),
    )


def auto_permission(options: Sequence[PermissionOption], kind: str, policy: str | Sequence[str]) -> str | None:
    """Return the option that the policy chooses without asking, or None: ask a person.

    `policy` is "ask", "deny", "allow-once", or the kinds of tools to allow. An option for once is preferred;
    "allow-once" takes no other. A call without a kind is never allowed by a list.
    """
    if policy == "deny":
        return _option(options, "reject_once", "reject_always")
    if policy == "allow-once":
        return _option(options, "allow_once")
    if not isinstance(policy, str) and kind and kind in policy:
        return _option(options, "allow_once", "allow_always")
    return None


def _option(options: Sequence[PermissionOption], *kinds: str) -> str | None:
    return next((option.option_id for kind in kinds for option in options if option.kind == kind), None)


def text_of(content: Any) -> str:
    """Render the content of a tool call, or one content block, as text for transcript and history (HIST-10).

    A diff becomes its path, a terminal or an image a placeholder (pitfall: ids of terminals are dead after a restart),
    an unknown block its type. One block a line.
    """
    blocks = content if isinstance(content, list | tuple) else [content]
    return "\n".join(text for text in map(_block_text, blocks) if text)


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    if not isinstance(block, Mapping):
        return ""
    kind = _string(block.get("type"))
    if kind == "content":
        return _block_text(block.get("content"))
    if isinstance(block.get("text"), str):
        return _string(block["text"])
    if kind == "resource":
        resource = _mapping(block.get("resource"))
        return _string(resource.get("text")) or _placeholder("resource", resource.get("uri"))
    detail = {
        "diff": "path",
        "terminal": "terminalId",
        "resource_link": "uri",
        "image": "mimeType",
        "audio": "mimeType",
    }
    return _placeholder(kind or "unknown", block.get(detail.get(kind, "")))


def _placeholder(kind: str, detail: Any) -> str:
    return f"[{kind}: {detail}]" if isinstance(detail, str) and detail else f"[{kind}]"


def tool_output(update: Mapping[str, Any]) -> str:
    """Return what a tool call gave, as text: its content, or `rawOutput` where the content is empty (HIST-10)."""
    raw = update.get("rawOutput")
    texts = [text_of(update.get("content")), _string(raw), *(_string(_mapping(raw).get(key)) for key in _OUTPUT_KEYS)]
    return next((text for text in texts if text), "")


def error_text(error: Mapping[str, Any] | None, *, hide: str = "") -> str:
    """Return an error's message and all strings in its data, at any depth, bounded; `hide` is the token (TOK-9)."""
    parts: list[str] = []
    for text in strings_of(error):
        shown = text.strip()
        if shown and not any(shown in part for part in parts):
            parts.append(shown)
    text = " / ".join(parts) or "the agent gave no reason"
    return (text.replace(hide, "…") if hide else text)[:ERROR_CHARACTERS]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _integer(value: Any) -> int:
    """Some agents answer the protocol version as text."""
    if isinstance(value, str):
        return int(value) if len(value) < 6 and value.isdecimal() else 0
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _items(value: Any, key: str) -> Iterable[Mapping[str, Any]]:
    """Return the objects of an array that have a text under `key`; a bad entry costs only itself."""
    entries = value if isinstance(value, list | tuple) else ()
    return [item for item in entries if isinstance(item, Mapping) and _string(item.get(key))]


def _choices(value: Any, key: str) -> tuple[Choice, ...]:
    return tuple(
        Choice(id=item[key], name=_string(item.get("name")) or item[key], description=_string(item.get("description")))
        for item in _items(value, key)
    )


def _auth_method(item: Mapping[str, Any]) -> AuthMethod:
    terminal = _mapping(_mapping(item.get("_meta")).get("terminal-auth"))
    command = _string(terminal.get("command"))
    return AuthMethod(
        id=item["id"],
        name=_string(item.get("name")),
        description=_string(item.get("description")),
        command=(command, *_strings(terminal.get("args"))) if command else (),
        arguments=_strings(item.get("args")) if item.get("type") == "terminal" else (),
    )


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list | tuple) else ()
