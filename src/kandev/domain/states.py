"""Both state machines, as total tables, and the one function that moves.

The diagram in docs/architecture.md is made from these tables (`python -m kandev.domain.states`).
A pair that a table does not name cannot happen on purpose: `advance` answers None, and the caller changes nothing.
So a late event of a finished session loses, which is an answer and not an error.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from kandev.domain.models import SessionState, TaskState

S = SessionState
T = TaskState


class SessionEvent(StrEnum):
    """What can happen to a session."""

    LAUNCH = "launch"  # a first start, or a start by `recover`
    RESUME = "resume"  # persist_resume_state: STARTING before anything runs
    READY = "ready"  # the agent can take a prompt
    PROMPT_SENT = "prompt_sent"  # a turn began
    TURN_ENDED = "turn_ended"
    AGENT_LOST = "agent_lost"  # died, or its backend did; the session waits for the next prompt
    TOKEN_REJECTED = "token_rejected"  # noqa: S105 - an event, not a secret
    START_FAILED = "start_failed"  # before `initialize` was answered
    START_UNDONE = "start_undone"  # login needed, in use, unreachable, cancelled: as before
    STOP = "stop"
    COMPLETE = "complete"
    RECOVER = "recover"  # a person brings a failed or cancelled session back


class TaskEvent(StrEnum):
    """What can happen to a task."""

    LAUNCHED = "launched"
    TURN_STARTED = "turn_started"
    SESSION_WAITING = "session_waiting"  # and no other session of the task runs
    SESSION_FAILED = "session_failed"  # and no other session of the task lives (STATE-8)
    SESSION_STOPPED = "session_stopped"
    COMPLETE = "complete"


_E = SessionEvent
SESSION_TABLE: Mapping[tuple[SessionState, SessionEvent], SessionState] = {
    (S.CREATED, _E.LAUNCH): S.STARTING,
    (S.CREATED, _E.START_FAILED): S.FAILED,
    (S.CREATED, _E.STOP): S.CANCELLED,
    (S.CREATED, _E.COMPLETE): S.COMPLETED,
    (S.STARTING, _E.READY): S.WAITING_FOR_INPUT,
    (S.STARTING, _E.AGENT_LOST): S.WAITING_FOR_INPUT,
    (S.STARTING, _E.TOKEN_REJECTED): S.WAITING_FOR_INPUT,
    (S.STARTING, _E.START_FAILED): S.FAILED,
    (S.STARTING, _E.START_UNDONE): S.WAITING_FOR_INPUT,
    (S.STARTING, _E.RESUME): S.STARTING,
    (S.STARTING, _E.STOP): S.CANCELLED,
    (S.STARTING, _E.COMPLETE): S.COMPLETED,
    (S.WAITING_FOR_INPUT, _E.RESUME): S.STARTING,
    (S.WAITING_FOR_INPUT, _E.PROMPT_SENT): S.RUNNING,
    (S.WAITING_FOR_INPUT, _E.START_FAILED): S.FAILED,
    (S.WAITING_FOR_INPUT, _E.STOP): S.CANCELLED,
    (S.WAITING_FOR_INPUT, _E.COMPLETE): S.COMPLETED,
    (S.RUNNING, _E.TURN_ENDED): S.WAITING_FOR_INPUT,
    (S.RUNNING, _E.AGENT_LOST): S.WAITING_FOR_INPUT,
    (S.RUNNING, _E.TOKEN_REJECTED): S.WAITING_FOR_INPUT,
    (S.RUNNING, _E.RESUME): S.STARTING,
    (S.RUNNING, _E.STOP): S.CANCELLED,
    (S.RUNNING, _E.COMPLETE): S.COMPLETED,
    (S.FAILED, _E.RECOVER): S.WAITING_FOR_INPUT,
    (S.FAILED, _E.COMPLETE): S.COMPLETED,
    (S.CANCELLED, _E.RECOVER): S.WAITING_FOR_INPUT,
    (S.CANCELLED, _E.COMPLETE): S.COMPLETED,
}

_F = TaskEvent
TASK_TABLE: Mapping[tuple[TaskState, TaskEvent], TaskState] = {
    **{
        (state, event): target
        for state in (T.CREATED, T.IN_PROGRESS, T.REVIEW, T.FAILED, T.CANCELLED)
        for event, target in (
            (_F.LAUNCHED, T.IN_PROGRESS),
            (_F.TURN_STARTED, T.IN_PROGRESS),
            (_F.SESSION_WAITING, T.REVIEW),
            (_F.COMPLETE, T.COMPLETED),
        )
    },
    **{
        (state, event): target
        for state in (T.CREATED, T.IN_PROGRESS, T.REVIEW)
        for event, target in ((_F.SESSION_FAILED, T.FAILED), (_F.SESSION_STOPPED, T.REVIEW))
    },
}

State = TypeVar("State", SessionState, TaskState)


def advance_session(state: SessionState, event: SessionEvent) -> SessionState | None:
    """Return the next state of a session, or None where the event changes nothing."""
    return SESSION_TABLE.get((state, event))


def advance_task(state: TaskState, event: TaskEvent) -> TaskState | None:
    """Return the next state of a task, or None where the event changes nothing (COMPLETED is final)."""
    return TASK_TABLE.get((state, event))


def diagram() -> str:
    """Return both machines as Mermaid state diagrams."""
    parts = []
    for title, pairs in (("Session", SESSION_TABLE.items()), ("Task", TASK_TABLE.items())):
        lines = [f"    {old!s} --> {new!s}: {event!s}" for (old, event), new in pairs if old is not new]
        parts.append("\n".join([f"### {title}", "", "```mermaid", "stateDiagram-v2", *lines, "```"]))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(diagram())  # noqa: T201 - it is asked for on the command line
