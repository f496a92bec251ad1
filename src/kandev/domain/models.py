"""What is stored: tasks, sessions, the executor row, turns, messages, queued prompts, permission requests, resumes.

Every value is frozen; a change is a new value (`msgspec.structs.replace`) and, in the database, a compare-and-set.
Times are UTC in ISO 8601 with milliseconds and a trailing Z, so that they sort as text and read well in a shell.
"""

import hashlib
import random
import time
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, NewType

import msgspec

TaskId = NewType("TaskId", str)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
MessageId = NewType("MessageId", str)
ExecutionId = NewType("ExecutionId", str)
InstanceId = NewType("InstanceId", str)


# Ids are no secrets, and one is made for each message: the system is asked for randomness once.
_random = random.Random()  # noqa: S311 - ids are names, not secrets


def new_id() -> str:
    """Return a random id of 20 hexadecimal digits; safe in paths, URLs and container names."""
    return f"{_random.getrandbits(80):020x}"


class _MessageIds:
    """Ids that grow: a millisecond and a random number, which is counted on within the same millisecond."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        millisecond = time.time_ns() // 1_000_000 << 36
        self._last = self._last + 1 if millisecond <= self._last else millisecond + _random.getrandbits(35)
        return self._last


_message_ids = _MessageIds()


def new_message_id() -> MessageId:
    """Return an id like `new_id`, larger than every one before.

    So messages are appended to their index: with random ids each one of a burst rewrites a page of its own.
    """
    return MessageId(f"{_message_ids.next():020x}")


def now() -> str:
    """Return the time now as stored and sent: 2026-11-29T18:45:11.123Z."""
    return _stamp(time.time_ns() // 1_000_000)


@lru_cache(maxsize=1)  # a burst of messages has one millisecond in common
def _stamp(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC).replace(microsecond=milliseconds % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"


def seconds_since(stamp: str) -> float:
    """Return how many seconds ago `stamp` was; infinity for an empty one."""
    if not stamp:
        return float("inf")
    return (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()


def fingerprint(token: str) -> str:
    """Return what logs and answers show of a resume token (TOK-9): eight digits of its hash, or ''."""
    return hashlib.sha256(token.encode()).hexdigest()[:8] if token else ""


class SessionState(StrEnum):
    """States of a session, as the specification names them."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    WAITING_FOR_INPUT = "WAITING_FOR_INPUT"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


ACTIVE_STATES = frozenset({SessionState.WAITING_FOR_INPUT, SessionState.STARTING, SessionState.RUNNING})
TERMINAL_STATES = frozenset({SessionState.FAILED, SessionState.COMPLETED, SessionState.CANCELLED})


class TaskState(StrEnum):
    """States of a task."""

    CREATED = "CREATED"
    IN_PROGRESS = "IN_PROGRESS"
    REVIEW = "REVIEW"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class TurnState(StrEnum):
    """States of a turn. `unknown`: the instance may live, but nobody can ask it now."""

    OPEN = "open"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    UNKNOWN = "unknown"


class RowStatus(StrEnum):
    """Status of the row in `executors_running`."""

    CREATING = "creating"
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"


class PermissionState(StrEnum):
    """States of a permission request."""

    PENDING = "pending"
    ANSWERED = "answered"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class HoldReason(StrEnum):
    """Why a session's queue waits for a person. The empty string is an open queue."""

    OPEN = ""
    NOT_STARTED = "not_started"
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    TOKEN_REJECTED = "token_rejected"  # noqa: S105 - a state, not a secret
    PARKED = "parked"
    LOGIN = "login_required"
    SEND_FAILED = "send_failed"
    MODE = "mode_not_restored"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work; its sessions are attempts at it."""

    id: TaskId
    title: str
    description: str
    state: TaskState
    created_at: str
    updated_at: str
    client_task_id: str | None = None
    intent: str = ""


class TaskSession(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation with one agent. `intent` is what a stop, complete or delete has promised (CRASH-13)."""

    id: SessionId
    task_id: TaskId
    agent: str
    runtime: str
    state: SessionState
    created_at: str
    updated_at: str
    model: str = ""
    mode: str = ""
    config_options: dict[str, Any] = {}
    repository_path: str = ""
    error_message: str = ""
    interrupted: bool = False
    queue_held: str = ""
    parked_reason: str = ""
    failures: list[str] = []
    intent: str = ""
    recap_pending: bool = False


class ExecutorRunning(msgspec.Struct, frozen=True, kw_only=True):
    """What survives of a session's executor: the specification's fields, and the proof of who owned the processes.

    `last_event_seq` is the byte offset behind the last journal line that was applied; it and `protocol_state`
    belong to `agent_execution_id` and to no other. Never logged: it holds the token (TOK-9).
    """

    session_id: SessionId
    task_id: TaskId
    runtime: str
    status: RowStatus
    resume_token: str = ""
    last_message_uuid: str = ""
    container_id: str = ""
    agentctl_url: str = ""
    agentctl_port: int = 0
    worktree_id: str = ""
    worktree_path: str = ""
    worktree_branch: str = ""
    agent_execution_id: str = ""
    instance_id: str = ""
    instance: dict[str, Any] = {}
    agentctl_pid: int = 0
    agentctl_start_time: int = 0
    agent_pid: int = 0
    agent_start_time: int = 0
    process_group: int = 0
    boot_id: str = ""
    last_seen_at: str = ""
    last_event_seq: int = 0
    protocol_state: str = ""
    metadata: dict[str, Any] = {}
    created_at: str = ""
    updated_at: str = ""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and everything until its stop reason. `line` is the number of its line to the agent's stdin."""

    id: TurnId
    session_id: SessionId
    agent_execution_id: str
    message_id: MessageId
    state: TurnState
    started_at: str
    line: int = 0
    stop_reason: str = ""
    ended_at: str = ""
    cancel_requested_at: str = ""
    usage: dict[str, Any] = {}
    error: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the transcript. `seq` is its place for ever; null while its prompt is queued (PROMPT-8)."""

    id: MessageId
    session_id: SessionId
    turn_id: TurnId | None = None
    seq: int | None = None
    author_type: str
    type: str
    content: str
    metadata: dict[str, Any] = {}
    created_at: str
    updated_at: str
    client_message_id: str | None = None


class QueuedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that no turn has taken yet; `position` orders the queue of a session."""

    message_id: MessageId
    session_id: SessionId
    position: int
    content: str
    created_at: str


class PermissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A question of the agent. `rpc_id` is the agent's own request id as JSON; `execution` the process that asked."""

    id: str
    session_id: SessionId
    turn_id: TurnId | None
    agent_execution_id: str
    rpc_id: str
    tool_call: dict[str, Any]
    options: list[dict[str, Any]]
    state: PermissionState
    created_at: str
    answer: str = ""
    resolved_at: str = ""


class ResumeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one resume went: `how` is native, injection, recap, fresh, idle, attached or already_running; or it failed.

    `stages` maps a stage's name to its duration in milliseconds; `replayed` a kind of update to how many of it the
    agent repeated while it restored. `after_seq` is the place in the transcript behind which the start belongs.
    """

    id: str
    session_id: SessionId
    agent_execution_id: str
    started_at: str
    ended_at: str = ""
    how: str = ""
    reason: str = ""
    lost: str = ""
    error: str = ""
    stages: dict[str, float] = {}
    replayed: dict[str, int] = {}
    after_seq: int = 0


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A notification, derived from a commit. With a session it gets that session's next `seq` when published."""

    action: str
    payload: dict[str, Any]
    session_id: str = ""
    task_id: str = ""
