"""What failures mean: every answer seen from a real agent is a row, and so are the look-alikes that mean nothing."""

from itertools import product
from typing import Any

import pytest

from kandev.domain.failures import (
    FailureCause,
    LoadFailure,
    Outcome,
    PromptFailure,
    TokenFate,
    classify_failure,
    classify_load_failure,
    classify_prompt_failure,
    in_use_owner,
    strings_of,
)
from kandev.domain.models import HoldReason, SessionState, TaskState

ID = "11111111-2222-4333-8444-555555555555"
Error = dict[str, Any]


def internal(details: str) -> Error:
    return {"code": -32603, "message": "Internal error", "data": {"details": details}}


def missing(code: int, message: str, /, **data: Any) -> Error:
    return {"code": code, "message": message, "data": data} if data else {"code": code, "message": message}


CODEX_IN_USE = missing(
    -32600,
    "Invalid request: This Codex session is in use by another Codex client (the Codex app, the CLI or an IDE"
    " extension). Close the session there or quit that client, then try again.",
    reason="thread_active_writer",
    threadId=ID,
    details=f"thread {ID} already has an active writer",
)
FAST_AGENT_IN_USE = missing(
    -32003,
    f"Session is active: {ID}",
    sessionId=ID,
    reason="Session is active",
    details=f"Session '{ID}' is active (host host, pid 4232, surface acp, acquired 2026-11-29T17:21:33+00:00). Wait for"
    f" or close that process, or fork its latest committed checkpoint with 'fast-agent session fork {ID}'.",
    owner={"host": "host", "pid": 4232, "startedAt": "2026-11-29T17:21:33+00:00", "surface": "acp"},
)
CLAUDE_MALFORMED = internal(
    "Claude Code returned an error result: Error: --resume requires a valid session ID or session title when used with"
    f' --print. Usage: claude -p --resume <session-id|title>. Provided value "{ID}" is not a UUID and does not match'
    " any session title."
)

UNKNOWN_SESSION: list[Error] = [
    # Recorded from real agents.
    missing(-32002, "Resource not found", sessionId=ID),  # claude
    missing(-32002, f"Resource not found: {ID}"),  # claude-zed-agent
    missing(-32002, f"Resource not found: Session {ID} not found", uri=f"Session {ID} not found"),  # copilot
    missing(-32602, "Invalid params", details=f"Session not found: {ID}"),  # auggie
    internal("Session not found"),  # claude-zed
    internal(f"no rollout found for thread id {ID}"),  # codex
    internal("No previous sessions found for this project."),  # gemini
    missing(-32602, f"Session not found: {ID}"),  # gemini, to a prompt
    missing(-32602, f"Session {ID} not found", sessionId=ID),  # copilot, to a prompt
    missing(-32602, f"Invalid params: session not found: {ID}", sessionId=ID),  # opencode, to a prompt
    missing(
        *(-32002, f"Session not found: {ID}"),
        uri=ID,
        reason="Session not found",
        details=f"Session {ID} could not be resolved from /work/project",
    ),  # fast-agent
    CLAUDE_MALFORMED,
    # From public reports.
    missing(-32602, "Invalid params", message=f'Session "{ID}" not found'),  # cursor
    internal("ACP session not found"),  # oh-my-pi
    internal('Invalid session identifier "x". Use --list-sessions to see available sessions.'),  # gemini
    missing(-32602, "Unknown session"),  # codex
    internal(f"No conversation found with session ID: {ID}"),  # claude's command line
    # The other shapes that WIRE-9 names.
    missing(-32001, "Server error"),
    missing(-32002, ""),
    missing(0, f"thread {ID} does not exist"),
    missing(1, f"The conversation with id {ID} no longer exists."),
    missing(1, "No such session"),
    missing(1, f"Could not find session {ID}"),
    missing(1, f"Failed to load session {ID}: not found"),
    missing(1, f"session {ID} is unknown"),
    missing(1, "x", a=[{"b": [{"c": f"Rollout {ID} not found"}]}]),
    missing(1, f"{ID} not found"),
    missing(1, "Not found", sessionId=ID),
    missing(1, f"unknown id '{ID}'"),
    {"code": "-32002", "message": "as text"},
    {"message": "sessionId not found"},
]
LOGIN: list[Error] = [
    missing(-32000, "Authentication required"),  # copilot
    missing(-32000, "Sorry, not now."),  # the code alone says it, whatever the words
    missing(
        -32000,
        "Authentication required: Auggie does not currently support authenticating over ACP. Please run `auggie login`"
        " from your terminal then try again.",
    ),
    missing(-32000, "Gemini API key is missing or not configured."),
    missing(
        500,
        "Could not load the default credentials. Browse to https://cloud.google.com/docs/authentication/getting-started"
        " for more information.",
    ),  # gemini
    missing(-32603, "Internal error", details="Invalid API key · Please run /login"),
    missing(-32603, "Your access token has expired. Please log in again."),
    missing(401, "no"),
    missing(-32603, "unexpected status 401 Unauthorized"),
    missing(-32002, "Not logged in: session not found"),  # recognised before the code of a missing session
]
IN_USE: list[Error] = [
    CODEX_IN_USE,
    FAST_AGENT_IN_USE,
    missing(-31002, f"Session is already open: {ID}"),  # vibe
    missing(-31002, ""),
    missing(-32602, f"Session {ID} is already loaded"),  # copilot
    missing(-32603, "Already open in another process"),  # a stale lock
    missing(-32002, f"session {ID} is locked by another process; resource not found"),
]
UNSUPPORTED: list[Error] = [
    missing(-32601, '"Method not found": session/resume', method="session/resume"),  # copilot, auggie, gemini
    missing(-32601, ""),
    missing(-32603, "Method not found"),
    missing(-32603, "session/load is not supported by this agent"),
]
CANNOT_RESTORE: list[Error] = [
    missing(-32603, "Internal error: OpenCode service failure", service="session"),
    internal(
        "invalid session id: invalid character: expected an optional prefix of `urn:uuid:` followed by [0-9a-fA-F-],"
        " found `n` at 1"
    ),  # codex
    internal("Query closed before response received"),  # claude-zed
    missing(-32602, "Invalid params: `cwd` does not exist on the machine running the agent: /work/project"),  # claude
    internal("Directory does not exist: /work/project"),  # gemini
    missing(
        -32603, "Request sessions.open failed with message: session resume failed: Directory does not exist"
    ),  # copilot
    missing(-32603, "Path not found.", code="FS_NOT_FOUND"),  # grok
    missing(-32602, "Invalid params"),
    missing(-32603, "Internal error"),
    # Something else that is not found.
    missing(-32603, "Model gpt-5 not found"),
    missing(-32603, f"Model gpt-5 not found for session {ID}"),
    missing(-32603, f"session {ID}: model gpt-5 not found"),
    missing(-32603, "Session failed: command not found"),
    missing(-32603, f"ENOENT: no such file or directory, open '/home/user/{ID}.jsonl'"),
    missing(-32603, "session file not found"),
    missing(-32603, "Session store does not exist"),
    missing(-32603, "Unknown session mode"),
    missing(-32603, "Tool not found: session_search"),
    missing(-32603, "MCP server 'session' not found"),
    missing(-32603, "Tool not found", sessionId=ID),
    missing(-32603, "The session could not be loaded: unknown error"),
    missing(-32603, "Unknown error in session"),
    missing(-32603, "The session could not start. Module not found"),
    missing(-32603, "listen: address already in use"),
    missing(-32603, "rate limited: too many sessions"),
    {},
]
LOAD_TABLE = [
    *((error, LoadFailure.UNKNOWN_SESSION) for error in UNKNOWN_SESSION),
    *((error, LoadFailure.LOGIN) for error in LOGIN),
    *((error, LoadFailure.IN_USE) for error in IN_USE),
    *((error, LoadFailure.UNSUPPORTED) for error in UNSUPPORTED),
    *((error, LoadFailure.CANNOT_RESTORE) for error in CANNOT_RESTORE),
]


@pytest.mark.parametrize(("error", "expected"), LOAD_TABLE)
def test_wire_9_tok_8_tok_13_tok_14_tok_16_answers_to_load(error: Error, expected: LoadFailure) -> None:
    """Each answer to load or resume means exactly this."""
    assert classify_load_failure(error, session_id=ID) is expected


@pytest.mark.parametrize("error", [*UNKNOWN_SESSION, *CANNOT_RESTORE])
def test_wire_9_the_words_count_whatever_their_case(error: Error) -> None:
    """Capitals and small letters mean the same; so does an error without an id to look for, but for words about it."""
    loud = {**error, "message": str(error.get("message", "")).swapcase()}
    if ID not in str(error.get("message")):
        assert classify_load_failure(loud, session_id=ID) is classify_load_failure(error, session_id=ID)


@pytest.mark.parametrize("odd", [None, {}, {"code": None, "message": 5, "data": 7}, {"data": [None, {"a": 1.5}]}])
def test_tok_16_an_answer_that_says_nothing_is_cannot_restore(odd: Any) -> None:
    """Any shape of error gets an answer, and it is not the one that costs the token."""
    assert classify_load_failure(odd, session_id="") is LoadFailure.CANNOT_RESTORE
    assert classify_prompt_failure(odd, session_id="") is PromptFailure.FAILED


@pytest.mark.parametrize("word", ["not found", "unknown", "session not found", "model"])
def test_wire_9_words_inside_our_own_id_mean_nothing(word: str) -> None:
    """An agent may choose an id that reads like an answer."""
    error = missing(-32603, f"Internal error in {word}")
    assert classify_load_failure(error, session_id=word) is LoadFailure.CANNOT_RESTORE


PROMPT_TABLE: list[tuple[Error, PromptFailure]] = [
    (missing(-32002, "Resource not found", sessionId=ID), PromptFailure.UNKNOWN_SESSION),  # claude
    (missing(-32002, f"Session {ID} not found", sessionId=ID), PromptFailure.UNKNOWN_SESSION),  # codex
    (missing(-32602, f"Session {ID} not found", sessionId=ID), PromptFailure.UNKNOWN_SESSION),  # copilot
    (missing(-32602, f"Session not found: {ID}"), PromptFailure.UNKNOWN_SESSION),  # gemini
    (missing(-32602, f"Invalid params: session not found: {ID}"), PromptFailure.UNKNOWN_SESSION),  # opencode
    (internal(f"Session not found: {ID}"), PromptFailure.UNKNOWN_SESSION),  # auggie, qwen
    (missing(-32001, ""), PromptFailure.UNKNOWN_SESSION),
    (missing(-32002, "Resource not found: file /work/a.txt"), PromptFailure.FAILED),
    (
        missing(400, '{"error":{"code":400,"message":"fake model failure 400","status":"INTERNAL"}}'),
        PromptFailure.FAILED,
    ),
    (internal("Error code: 400 - {'error': {'message': 'fake model failure 400'}}"), PromptFailure.FAILED),
    (
        missing(
            *(-32603, "Internal error: HTTP error: 400 Bad Request"),
            httpStatus=400,
            apiStatus="invalidArgument",
            httpUrl="http://127.0.0.1:18080/chat-stream",
        ),
        PromptFailure.FAILED,
    ),  # auggie
    (missing(-32603, "Internal error: API Error: 400 fake model failure"), PromptFailure.FAILED),  # claude
    (missing(-32603, "The model gpt-9 does not exist"), PromptFailure.FAILED),
    (missing(-32600, "Prompt already in progress"), PromptFailure.FAILED),
    (missing(-32601, "Method not found"), PromptFailure.FAILED),
    (missing(500, "Could not load the default credentials."), PromptFailure.LOGIN),  # gemini
    (missing(-32000, "Authentication required"), PromptFailure.LOGIN),
    (CODEX_IN_USE, PromptFailure.IN_USE),
]


@pytest.mark.parametrize(("error", "expected"), PROMPT_TABLE)
def test_tok_1_answers_to_the_first_prompt(error: Error, expected: PromptFailure) -> None:
    """Each answer to a prompt means exactly this; a failing model is not a lost session."""
    assert classify_prompt_failure(error, session_id=ID) is expected


@pytest.mark.parametrize(
    ("error", "owner"),
    [
        (CODEX_IN_USE, "another Codex client (the Codex app, the CLI or an IDE extension)"),
        (FAST_AGENT_IN_USE, "host host, pid 4232, surface acp"),
        (missing(-32603, "Already open in another process"), "another process"),
        (missing(-31002, f"Session is already open: {ID}"), ""),
        (missing(-31002, "", owner={"pid": 7}), "pid 7"),
        (missing(-31002, "", owner="me"), ""),
        ({}, ""),
    ],
)
def test_tok_14_the_owner_is_named_where_the_agent_told(error: Error, owner: str) -> None:
    """From data.owner, else from the words, else nothing."""
    assert in_use_owner(error) == owner


def test_strings_are_found_at_any_depth_and_bounded() -> None:
    """Message first, then data in its order; depth, number and length have ends."""
    error = {"message": "m", "data": {"a": "1", "b": [{"c": "2"}, 5, "3"], "d": "4"}}
    assert list(strings_of(error)) == ["m", "1", "2", "3", "4"]
    deep: Any = "bottom"
    for _ in range(5000):
        deep = [deep]
    assert list(strings_of({"message": "x" * 9000, "data": deep})) == ["x" * 2000]
    assert len(list(strings_of({"data": ["s"] * 500}))) == 64
    assert sum(map(len, strings_of({"data": ["s" * 3000] * 500}))) == 16_000


WAITING, FAILED = SessionState.WAITING_FOR_INPUT, SessionState.FAILED
KEEP, ASIDE = TokenFate.KEEP, TokenFate.SET_ASIDE
HOLD = HoldReason
Row = tuple[SessionState, TaskState | None, TokenFate, HoldReason, str]
OUTCOMES: dict[FailureCause, Row] = {
    FailureCause.UNKNOWN_SESSION: (WAITING, TaskState.REVIEW, ASIDE, HOLD.TOKEN_REJECTED, "recap"),
    FailureCause.CANNOT_RESTORE: (WAITING, TaskState.REVIEW, ASIDE, HOLD.TOKEN_REJECTED, "retry_token"),
    FailureCause.LOGIN_NEEDED: (WAITING, None, KEEP, HOLD.LOGIN, "resume"),
    FailureCause.IN_USE: (WAITING, None, KEEP, HOLD.SEND_FAILED, "resume"),
    FailureCause.UNREACHABLE: (WAITING, None, KEEP, HOLD.SEND_FAILED, "resume"),
    FailureCause.INACTIVE: (WAITING, None, KEEP, HOLD.SEND_FAILED, "resume"),
    FailureCause.BACKEND_STOPPING: (WAITING, None, KEEP, HOLD.OPEN, "resume"),
    FailureCause.USER_CANCELLED: (WAITING, None, KEEP, HOLD.CANCELLED, "resume"),
    FailureCause.AGENT_DIED: (WAITING, None, KEEP, HOLD.OPEN, "resume"),
    FailureCause.START_FAILED: (FAILED, TaskState.FAILED, KEEP, HOLD.SEND_FAILED, "resume"),
    FailureCause.PARKED: (WAITING, TaskState.REVIEW, KEEP, HOLD.PARKED, "resume"),
}


@pytest.mark.parametrize(("cause", "row"), OUTCOMES.items())
def test_tok_1_tok_2_outcomes_follow_the_table(cause: FailureCause, row: Row) -> None:
    """With no turn open and no other session: session, task, token, queue, and the action offered first."""
    out = classify_failure(cause, turn_open=False, other_session_lives=False)
    assert (out.session_state, out.task_state, out.token, out.hold, out.actions[0]) == row


def test_the_table_of_outcomes_is_total() -> None:
    """Every cause has a row, and every combination an outcome that leaves nothing STARTING or RUNNING (STATE-2)."""
    assert set(OUTCOMES) == set(FailureCause)
    for cause, turn_open, other in product(FailureCause, (False, True), (False, True)):
        outcome = classify_failure(cause, turn_open=turn_open, other_session_lives=other)
        assert isinstance(outcome, Outcome)
        assert outcome.session_state in (WAITING, FAILED)


def test_state_8_a_failed_secondary_session_does_not_fail_the_task() -> None:
    """While another session of the task lives, the task stays as it is; the session fails all the same."""
    outcome = classify_failure(FailureCause.START_FAILED, turn_open=False, other_session_lives=True)
    assert (outcome.session_state, outcome.task_state) == (FAILED, None)


def test_state_4_a_death_in_a_turn_is_an_interruption() -> None:
    """The task goes to REVIEW and the queue waits for a person; the token stays."""
    outcome = classify_failure(FailureCause.AGENT_DIED, turn_open=True, other_session_lives=False)
    assert (outcome.session_state, outcome.task_state) == (WAITING, TaskState.REVIEW)
    assert (outcome.token, outcome.hold) == (KEEP, HOLD.INTERRUPTED)


def test_tok_1_only_what_the_agent_said_costs_the_token() -> None:
    """No other cause, in no combination, sets the token aside; and what sets it aside offers it again."""
    for cause, turn_open, other in product(FailureCause, (False, True), (False, True)):
        outcome = classify_failure(cause, turn_open=turn_open, other_session_lives=other)
        rejected = cause in (FailureCause.UNKNOWN_SESSION, FailureCause.CANNOT_RESTORE)
        assert (outcome.token is ASIDE) is rejected
        assert ("retry_token" in outcome.actions) is rejected
