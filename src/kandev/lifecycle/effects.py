"""What the agent did that concerns the session as a whole, and not only its transcript.

The ingest finds these in the journal and hands each to the `EventHandlers`: once inside the transaction that stores
the position, and once after its commit.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from kandev.domain.models import Event
from kandev.store.database import Tx


class ExecutionRef(msgspec.Struct, frozen=True, kw_only=True):
    """Which run of which agent an effect belongs to."""

    session_id: str
    task_id: str
    execution_id: str
    agent: str


class AgentIntroduced(msgspec.Struct, frozen=True, kw_only=True):
    """The agent answered `initialize`: its version, what it offers, and the ways to log in."""

    initialize: Mapping[str, Any]


class AcpSessionCreated(msgspec.Struct, frozen=True, kw_only=True):
    """The agent answered session/new with its session id: the resume token."""

    token: str


class SessionStatusEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The agent confirmed the session it is in: by load or resume (`opened`), or a session_info_update."""

    token: str
    last_message_uuid: str = ""
    opened: bool = False


class PromptAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """The agent took the prompt of a turn: its first update, or an answer without error (PROMPT-6)."""

    turn_id: str
    injected: str


class CompleteStreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt was answered. `known` says whether the protocol knows the stop reason; `silent`: nothing was said.

    `last_message_uuid` is the turn's last message in the agent's own record, where it tells one. `proves`: the agent
    has stored something of it, so that its session can be restored.
    """

    turn_id: str
    token: str
    stop_reason: str
    known: bool
    usage: Mapping[str, Any]
    silent: bool
    restored: bool
    last_message_uuid: str = ""
    proves: bool = True


class PromptFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt was answered with an error. `restored`: it was the first after a load or resume (WIRE-9)."""

    turn_id: str
    error: Mapping[str, Any]
    restored: bool
    accepted: bool


class AgentExited(msgspec.Struct, frozen=True, kw_only=True):
    """The process ended. `delivered` tells of an open turn whether its line may have reached the agent (PROMPT-4)."""

    turn_id: str
    exit_code: int | None
    signal: int | None
    stderr: str
    delivered: bool
    why: str = ""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says in the transcript beside an effect; `type` is status or error."""

    type: str
    content: str
    metadata: dict[str, Any]


Effect = (
    AgentIntroduced
    | AcpSessionCreated
    | SessionStatusEvent
    | PromptAccepted
    | CompleteStreamEvent
    | PromptFailed
    | AgentExited
)


class EventHandlers(Protocol):
    """The orchestrator's side."""

    def notices(self, ref: ExecutionRef, effect: Effect) -> list[Notice]:
        """Return what the transcript says of it; called in the loop, before the commit."""

    def in_commit(self, tx: Tx, ref: ExecutionRef, effect: Effect) -> list[Event]:
        """Change sessions, tasks, turns and tokens; return what is published."""

    def committed(self, ref: ExecutionRef, effect: Effect) -> None:
        """Go on after the commit, in the loop: serve the queue, for instance."""
