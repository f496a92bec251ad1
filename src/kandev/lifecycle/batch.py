"""What one commit of the ingest holds: the position, the reader's state, and the changes that came before it.

The changes run in the order of the journal, on the writer's thread, in one transaction with the position. What they
publish is published after the commit, in the same order. A batch may be applied again after a failed commit.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from kandev.domain.models import Event, Message, now
from kandev.errors import KandevError
from kandev.store.database import Tx
from kandev.store.rows import message_args, message_from_row

TOOL_DONE = frozenset({"completed", "failed"})
SEARCHED = frozenset({"message", "thinking"})
"""Types of messages that a search finds, once they are closed."""


class Superseded(KandevError):
    """Raised when another execution owns the session now: nothing of this batch was applied (RACE-5)."""


class Applied(msgspec.Struct):
    """What the changes of one batch leave behind: events to publish, closed messages for the history file."""

    events: list[Event] = msgspec.field(default_factory=list)
    closed: list[Message] = msgspec.field(default_factory=list)


class Change(Protocol):
    """One change inside the transaction."""

    def __call__(self, tx: Tx, applied: Applied, /) -> None:
        """Make the change; add what it publishes to `applied`."""


class PutMessages:
    """Messages that follow one another: new ones, or new versions of stored ones. One statement runs for all.

    Those in `streamed` are text that began and ended in this batch: stored once, and published as any stream.
    """

    __slots__ = ("messages", "statement", "streamed", "task_id")

    def __init__(self, task_id: str, statement: str) -> None:
        self.messages: dict[str, Message] = {}
        self.streamed: dict[str, Message] = {}
        self.task_id = task_id
        self.statement = statement

    def __call__(self, tx: Tx, applied: Applied) -> None:
        """Write them and publish each."""
        tx.many(self.statement, map(message_args, self.messages.values()))
        if noted := [{"message_id": message.id} for message in self.messages.values() if _is_searched(message)]:
            tx.many("search_note", noted)
        for message in self.messages.values():
            if message.id in self.streamed:
                self._tell_stream(message, applied)
            else:
                self._tell(message, applied)

    def _tell(self, message: Message, applied: Applied) -> None:
        is_new = self.statement == "message_insert"
        action = "session.message.added" if is_new else "session.message.updated"
        applied.events.append(message_event(action, message, self.task_id))
        if message.type == "tool_call" and (is_new or message.metadata.get("status") in TOOL_DONE):
            applied.closed.append(message)

    def _tell_stream(self, message: Message, applied: Applied) -> None:
        begun = self.streamed[message.id]
        applied.events += (
            message_event("session.message.added", begun, self.task_id),
            delta_event(message.id, 0, message.content, message.session_id, self.task_id),
            message_event("session.message.updated", message, self.task_id),
        )
        applied.closed.append(message)


def _is_searched(message: Message) -> bool:
    return message.type in SEARCHED and "streaming" not in message.metadata


def message_event(action: str, message: Message, task_id: str) -> Event:
    """Return the notification that carries a whole message."""
    return Event(action=action, session_id=message.session_id, task_id=task_id, payload={"message": message})


def delta_event(message_id: str, position: int, text: str, session_id: str, task_id: str) -> Event:
    """Return the notification that carries streamed text, `position` characters into its message."""
    payload = {"message_id": message_id, "offset": position, "text": text}
    return Event(action="session.message.delta", session_id=session_id, task_id=task_id, payload=payload)


def text_change(message_id: str, position: int, text: str, session_id: str, task_id: str) -> Change:
    """Return the change that appends streamed text, `position` characters into its message."""

    def append(tx: Tx, applied: Applied) -> None:
        tx.run("message_part_insert", message_id=message_id, position=position, content=text)
        applied.events.append(delta_event(message_id, position, text, session_id, task_id))

    return append


def close_change(message_id: str, task_id: str) -> Change:
    """Return the change that folds a message's streamed text into it, and publishes it whole."""

    def close(tx: Tx, applied: Applied) -> None:
        row = tx.one("message_fold", id=message_id, now=now())
        tx.run("message_parts_delete", message_id=message_id)
        if row is None:
            return
        tx.run("search_note", message_id=message_id)
        message = message_from_row(row)
        applied.closed.append(message)
        applied.events.append(message_event("session.message.updated", message, task_id))

    return close


class Batch:
    """Changes on their way to one commit. `size` counts bytes of the journal; `urgent` ones do not wait."""

    __slots__ = ("after", "changes", "lines", "position", "puts", "size", "state", "urgent")

    def __init__(self) -> None:
        self.position = 0
        self.state = ""
        self.changes: list[Change] = []
        self.puts: dict[str, PutMessages] = {}
        self.lines: list[tuple[int, bytes]] = []
        self.after: list[Callable[[], None]] = []
        self.size = 0
        self.urgent = False

    def add(self, *changes: Change) -> None:
        """Append changes."""
        self.changes.extend(changes)

    def put(self, message: Message, task_id: str, statement: str) -> None:
        """Append a message or its new version; one row is written once a batch, at its first place."""
        puts = self.puts.get(message.id)
        if puts is None:
            puts = self.puts[message.id] = self._last_puts(task_id, statement)
        puts.messages[message.id] = message

    def put_streamed(self, begun: Message, text: str, task_id: str) -> None:
        """Append a message whose whole text came in this batch; `begun` is the message before its text."""
        whole = msgspec.structs.replace(begun, content=text, metadata={}, updated_at=now())
        self.put(whole, task_id, "message_insert")
        self.puts[begun.id].streamed[begun.id] = begun

    def _last_puts(self, task_id: str, statement: str) -> PutMessages:
        last = self.changes[-1] if self.changes else None
        if isinstance(last, PutMessages) and last.statement == statement:
            return last
        puts = PutMessages(task_id, statement)
        self.changes.append(puts)
        return puts

    def apply(self, tx: Tx, *, session_id: str, execution_id: str) -> Applied:
        """Run inside the transaction. Raises Superseded when the row belongs to another execution."""
        owner = tx.one(
            "executor_advance",
            session_id=session_id,
            agent_execution_id=execution_id,
            last_event_seq=self.position,
            protocol_state=self.state,
            now=now(),
        )
        if owner is None:
            raise Superseded("Another execution owns the session; these late events change nothing.")
        applied = Applied()
        for change in self.changes:
            change(tx, applied)
        return applied
