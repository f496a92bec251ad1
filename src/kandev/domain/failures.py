"""What a failure means: whether the agent still knows the session, and what becomes of session, task and token.

Agents have no common code for "I do not know this session" (WIRE-9), so the answer's words count too. The order is
fixed: login (TOK-13), in use (TOK-14), no such method (TOK-8), unknown (WIRE-9); what is left says nothing definite
(TOK-16). Only "unknown" costs the token (TOK-1), so the patterns lean to the side that keeps it.
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any

import msgspec

from kandev.domain.models import HoldReason, SessionState, TaskState

MAX_STRINGS = 64
MAX_DEPTH = 12
MAX_CHARACTERS = 2000
MAX_CHARACTERS_TOGETHER = 16_000  # keeps the patterns below a tenth of a second, whatever an agent writes

AUTH_REQUIRED = -32000
METHOD_NOT_FOUND = -32601
UNKNOWN_CODES = frozenset({-32001, -32002})
IN_USE_CODES = frozenset({-32003, -31002})
HTTP_UNAUTHORIZED = 401  # gemini puts the status of its model's HTTP answer into `code`


class LoadFailure(StrEnum):
    """What an error answer to session/load or session/resume says."""

    UNKNOWN_SESSION = "unknown_session"
    UNSUPPORTED = "unsupported"
    LOGIN = "login"
    IN_USE = "in_use"
    CANNOT_RESTORE = "cannot_restore"


class PromptFailure(StrEnum):
    """What an error answer to session/prompt says."""

    UNKNOWN_SESSION = "unknown_session"
    LOGIN = "login"
    IN_USE = "in_use"
    FAILED = "failed"


def classify_load_failure(error: Mapping[str, Any] | None, *, session_id: str) -> LoadFailure:
    """Classify the error answer to session/load or session/resume of `session_id`. Total: anything gets an answer.

    No answer, or a process that died, is no error answer: that is "not known why", and the caller keeps the token.
    """
    code, texts = _code(error), _texts(error, session_id)
    if _says_login(code, texts):
        return LoadFailure.LOGIN
    if _says_in_use(code, texts):
        return LoadFailure.IN_USE
    if code == METHOD_NOT_FOUND or any(_UNSUPPORTED.search(text) for text in texts):
        return LoadFailure.UNSUPPORTED
    if code in UNKNOWN_CODES or _says_unknown(texts):
        return LoadFailure.UNKNOWN_SESSION
    return LoadFailure.CANNOT_RESTORE


def classify_prompt_failure(error: Mapping[str, Any] | None, *, session_id: str) -> PromptFailure:
    """Classify the error answer to a prompt. UNKNOWN_SESSION costs the token only on the first prompt after a restore.

    -32002 is also ACP's code for a missing file, so here it does not count when the words name another thing.
    """
    code, texts = _code(error), _texts(error, session_id)
    if _says_login(code, texts):
        return PromptFailure.LOGIN
    if _says_in_use(code, texts):
        return PromptFailure.IN_USE
    coded = code in UNKNOWN_CODES and not any(_OTHER_THING.search(text) for text in texts)
    return PromptFailure.UNKNOWN_SESSION if coded or _says_unknown(texts) else PromptFailure.FAILED


def in_use_owner(error: Mapping[str, Any] | None) -> str:
    """Return who holds the session, in words, as far as the agent told (TOK-14); else ''."""
    data = (error or {}).get("data")
    owner = data.get("owner") if isinstance(data, Mapping) else None
    if isinstance(owner, Mapping):
        known = [f"{key} {owner[key]}" for key in ("host", "pid", "surface") if isinstance(owner.get(key), str | int)]
        return ", ".join(known)
    for text in strings_of(error):
        match = _OWNER.search(text)
        if match:
            return match[1].strip()
    return ""


def strings_of(error: Any) -> Iterator[str]:
    """Yield the message of a JSON-RPC error, then every string in its data, at any depth; bounded in all ways."""
    message = error.get("message") if isinstance(error, Mapping) else error
    data = error.get("data") if isinstance(error, Mapping) else None
    pending: list[tuple[Any, int]] = [(data, 0), (message, 0)]
    found = characters = 0
    while pending and found < MAX_STRINGS and characters < MAX_CHARACTERS_TOGETHER:
        value, depth = pending.pop()
        if isinstance(value, str):
            found += 1
            characters += min(len(value), MAX_CHARACTERS)
            yield value[:MAX_CHARACTERS]
        elif depth < MAX_DEPTH:
            pending.extend((item, depth + 1) for item in reversed(_children(value)))


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def _code(error: Mapping[str, Any] | None) -> int | None:
    code = (error or {}).get("code")
    if isinstance(code, str) and re.fullmatch(r"-?\d{1,9}", code):
        return int(code)
    return code if isinstance(code, int) else None


_ID = "THIS-ID"  # stands for our session id, so that words inside the id mean nothing


def _texts(error: Mapping[str, Any] | None, session_id: str) -> list[str]:
    texts = list(strings_of(error))
    return [text.replace(session_id, _ID) for text in texts] if session_id else texts


class _Words:
    """Words to look for, in either case. Compiled when first needed: that takes 30 ms, and most backends never do."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def search(self, text: str) -> re.Match[str] | None:
        return self._compiled.search(text)

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self._pattern, re.IGNORECASE)


_OTHER = (
    r"(?:models?|commands?|files?|director(?:y|ies)|folders?|paths?|tools?|servers?|cwd|projects?|workspaces?|modules?"
    r"|packages?|methods?|endpoints?|providers?|plugins?|modes?|branch(?:es)?|repositor(?:y|ies)|binary|executables?"
    r"|programs?|hosts?|ports?|keys?|credentials?|users?|accounts?|functions?|agents?|urls?|https?|options?|configs?)"
)
_OTHER_THING = _Words(rf"\b{_OTHER}\b")
# A session, and not a part of one ("session mode"), a method ("session/load"), a file or a name ("server 'session'").
_SESSION = (
    r"\b(?!(?<=['\"`])\w+['\"`])(?:sessions?|threads?|conversations?|rollouts?)(?:[ _-]?id(?:entifier)?s?)?\b(?![/.]\w)"
    rf"(?!\s+(?:{_OTHER}|updates?|kinds?|types?|parameters?|state|stor(?:e|age)|manager|service)\b)"
)
# What may stand between: neither another thing, nor the end of a sentence, nor the colon before a cause.
_GAP = rf"(?:(?!\b{_OTHER}\b|[.:]\s)[^\n;]){{0,120}}?"
_MISSING = (
    r"(?:not (?:be )?(?:found|resolved|located)|not (?:actually )?exist|n't exist|no longer (?:exists?|available|known)"
    r"|(?:not known|unknown)(?!\s+\w)|(?:been|was) deleted)"
)
_UNKNOWN = _Words(
    "|".join(
        (
            rf"{_SESSION}{_GAP}(?::\s*)?\b{_MISSING}",
            rf"\b(?:no such|unknown|non-?existent) (?:\w+ )?{_SESSION}",
            rf"\bno (?:(?!{_OTHER}\b)\w+ ){{0,3}}?{_SESSION}{_GAP}\b(?:found|exists?|with|for|match\w*)\b",
            rf"(?:not|n't|unable to|failed to) (?:find|locate) (?:(?!{_OTHER}\b)\S+ ){{0,3}}?{_SESSION}",
            rf"(?:^|\bresource )not found:? (?:\w+ )?{_SESSION}",
            rf"not match any {_SESSION}",
            r"\binvalid session identifier\b",
        )
    ),
)
# Beside our own id, so "unknown id X" counts and "unknown error" does not.
_BESIDE_ID = _Words(rf"\bno such\b|{_MISSING}|\bunknown\b(?! (?:error|reason|failure|problem|issue|exception|cause)\b)")
_UNSUPPORTED = _Words(
    r"\bmethod not found\b|\b(?:session/(?:load|resume)|loadSession|(?:load|resum)ing (?:a |of )?sessions?)\b"
    r"[^.\n]{0,40}\b(?:unsupported|not (?:supported|implemented|available))",
)
_IN_USE = _Words(
    r"(?:\b|_)active[ _]writer\b"
    rf"|{_SESSION}{_GAP}\b(?:in use|is (?:active|open|locked)|already (?:active|open(?:ed)?|loaded"
    r"|running|locked))\b|\b(?:in use|open(?:ed)?|loaded|running|locked|held|owned) (?:in|by) another\b",
)
_OWNER = _Words(r"\b(?:in use|open(?:ed)?|locked|held|owned) (?:in|by) ([^.\n]{1,200})")
_LOGIN = _Words(
    r"\bauth(?:entication|orization)? (?:is )?required\b|\bnot (?:logged|signed) ?in\b|\bnot authenticated\b"
    r"|\b(?:please|must|need to|have to) (?:log|sign) ?in\b|\b(?:log|sign) ?in (?:is |again )?(?:required|expired)\b"
    r"|\bunauthori[sz]ed\b|\bunauthenticated\b|\bplease run \W?/?(?:[\w-]+ (?:auth )?)?login\b|\blog ?in failed\b"
    r"|\b(?:invalid|incorrect|missing|no) (?:api[ _-]?key|credentials)\b"
    r"|\bapi[ _-]?key (?:is |was )?(?:missing|invalid|required|not (?:configured|set|found|valid))\b"
    r"|\b(?:oauth|access|refresh|auth|login) ?(?:token|session) (?:has |is )?(?:expired|revoked|invalid)\b"
    r"|\b(?:load|find) the default credentials\b|\bcredentials (?:have |are )?(?:expired|invalid|missing)\b",
)


def _says_login(code: int | None, texts: list[str]) -> bool:
    return code in (AUTH_REQUIRED, HTTP_UNAUTHORIZED) or any(_LOGIN.search(text) for text in texts)


def _says_in_use(code: int | None, texts: list[str]) -> bool:
    return code in IN_USE_CODES or any(_IN_USE.search(text) for text in texts)


def _says_unknown(texts: list[str]) -> bool:
    """WIRE-9: the words name a session, or our id stands together with such words and no other thing is named."""
    if any(_UNKNOWN.search(text) for text in texts):
        return True
    together = "\n".join(texts)
    return _ID in together and bool(_BESIDE_ID.search(together)) and not _OTHER_THING.search(together)


class FailureCause(StrEnum):
    """Why an execution failed or could not begin: the rows of the table in design, section 4."""

    UNKNOWN_SESSION = "unknown_session"  # to load, resume, or the first prompt after one
    CANNOT_RESTORE = "cannot_restore"  # for the second time, in a fresh process (TOK-16)
    LOGIN_NEEDED = "login_required"
    IN_USE = "in_use"
    UNREACHABLE = "unreachable"
    INACTIVE = "inactive"
    BACKEND_STOPPING = "stopping"
    USER_CANCELLED = "cancelled"
    AGENT_DIED = "agent_died"
    START_FAILED = "start_failed"  # before `initialize` was answered
    PARKED = "parked"


class TokenFate(StrEnum):
    """What becomes of the resume token: it is never destroyed, only set aside (TOK-1)."""

    KEEP = "keep"
    SET_ASIDE = "set_aside"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be stored after a failure.

    `task_state` None leaves the task as it is. `hold` is OPEN where the queue may go on by itself. `actions` are those
    of `task.session.recover` that help, the best one first.
    """

    session_state: SessionState
    task_state: TaskState | None = None
    token: TokenFate = TokenFate.KEEP
    hold: HoldReason = HoldReason.OPEN
    actions: tuple[str, ...] = ("resume",)


_C = FailureCause
_H = HoldReason
_HOLD: Mapping[FailureCause, HoldReason] = {
    _C.UNKNOWN_SESSION: _H.TOKEN_REJECTED,
    _C.CANNOT_RESTORE: _H.TOKEN_REJECTED,
    _C.LOGIN_NEEDED: _H.LOGIN,
    _C.IN_USE: _H.SEND_FAILED,
    _C.UNREACHABLE: _H.SEND_FAILED,
    _C.INACTIVE: _H.SEND_FAILED,
    _C.BACKEND_STOPPING: _H.OPEN,  # open queues are served after the start
    _C.USER_CANCELLED: _H.CANCELLED,
    _C.AGENT_DIED: _H.OPEN,  # with a turn open: INTERRUPTED
    _C.START_FAILED: _H.SEND_FAILED,
    _C.PARKED: _H.PARKED,
}
_ACTIONS: Mapping[FailureCause, tuple[str, ...]] = {
    _C.UNKNOWN_SESSION: ("recap", "fresh_start", "retry_token"),
    _C.CANNOT_RESTORE: ("retry_token", "recap", "fresh_start"),
    _C.START_FAILED: ("resume", "recap", "fresh_start"),
    _C.PARKED: ("resume", "recap", "fresh_start"),
}
_TO_REVIEW = frozenset({_C.UNKNOWN_SESSION, _C.CANNOT_RESTORE, _C.PARKED})


def classify_failure(cause: FailureCause, *, turn_open: bool, other_session_lives: bool) -> Outcome:
    """Return what becomes of session, task, token and queue (design, section 4). Total over the causes.

    "As before" is WAITING_FOR_INPUT for the session: STARTING and RUNNING must not stay (STATE-2), and a terminal
    session that a person brought back waits. `other_session_lives`: another session of the task is active (STATE-8).
    """
    if cause is FailureCause.START_FAILED:
        task = None if other_session_lives else TaskState.FAILED
        return Outcome(session_state=SessionState.FAILED, task_state=task, hold=_HOLD[cause], actions=_ACTIONS[cause])
    set_aside = cause in (FailureCause.UNKNOWN_SESSION, FailureCause.CANNOT_RESTORE)
    interrupted = cause is FailureCause.AGENT_DIED and turn_open
    return Outcome(
        session_state=SessionState.WAITING_FOR_INPUT,
        task_state=TaskState.REVIEW if turn_open or cause in _TO_REVIEW else None,
        token=TokenFate.SET_ASIDE if set_aside else TokenFate.KEEP,
        hold=HoldReason.INTERRUPTED if interrupted else _HOLD[cause],
        actions=_ACTIONS.get(cause, ("resume",)),
    )
