"""Messages and the queue: what a person wrote is durable before it is acknowledged (PROMPT-1)."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.domain.models import (
    TERMINAL_STATES,
    Event,
    HoldReason,
    Message,
    QueuedPrompt,
    ResumeOutcome,
    SessionState,
    TaskSession,
    TurnState,
    new_message_id,
    now,
)
from kandev.errors import Conflict, NotFound, SessionEnded
from kandev.orchestrator.transitions import hold_queue, queue_event, rest_task
from kandev.orchestrator.views import InterruptedTurn, UnknownToolCall
from kandev.protocols.jsonrpc import clean_text
from kandev.store.database import Tx
from kandev.store.rows import from_row, message_args
from kandev.store.store import Store

EXPORT_PAGE = 200
NEWEST = 1 << 62
AGAIN = "again-"
"""Before the id of a turn: the client id of the message that sends its prompt again."""
INTERRUPTED_LIMIT = 10
TOOL_CALLS_LIMIT = 50
PROMPT_CHARS = 500
SENDABLE_AGAIN = frozenset({TurnState.INTERRUPTED, TurnState.FAILED, TurnState.CANCELLED})


class Page(NamedTuple):
    """A page of a transcript. `resumes` are the starts that belong behind its messages, newest first."""

    messages: Sequence[Message]
    has_more: bool
    resumes: Sequence[ResumeOutcome]


class MessageService:
    """Adds prompts and reads transcripts. `kick` makes the queue look at a session."""

    def __init__(
        self, store: Store, *, kick: Callable[[str], None], publish: Callable[[Sequence[Event]], None]
    ) -> None:
        self._store = store
        self._kick = kick
        self._publish = publish

    async def add(self, task_id: str, session_id: str, content: str, client_message_id: str | None = None) -> Message:
        """Store a prompt and its place in the queue in one transaction; the same client id gives the stored one.

        A new message opens a queue that waited for a person. Raises SessionEnded, NotFound, StorageFull.
        """
        session = self._store.session(session_id, task_id=task_id)
        known = self._known(session_id, client_message_id)
        if known is not None:
            return known
        refuse_ended(session)
        message = new_prompt(session_id, content, client_message_id)
        failpoint("message.before_add")
        stored, events = await self._store.write(lambda tx: _add_job(tx, session, message))
        failpoint("message.after_add")
        self._publish(events)
        self._kick(session_id)
        return stored

    def _known(self, session_id: str, client_message_id: str | None) -> Message | None:
        return self._store.message_by_client(session_id, client_message_id) if client_message_id else None

    async def list(self, session_id: str, *, before: int | None, after: int | None, limit: int) -> Page:
        """Return messages ascending, and whether more lie in that direction. Without a cursor: the newest page."""
        session = self._store.session(session_id)
        if after is not None:
            found = self._store.messages_after(session.id, after=after, limit=limit + 1)
            page, has_more = found[:limit], len(found) > limit
            first, last = after, _place(page[-1]) - 1 if has_more else NEWEST
        else:
            end = NEWEST if before is None else before
            found = self._store.messages_before(session.id, before=end, limit=limit + 1)
            page, has_more = found[-limit:], len(found) > limit
            first, last = _place(page[0]) if has_more else 0, end - 1
        resumes = self._store.resumes_behind(session.id, first=first, last=last)
        return Page(messages=page, has_more=has_more, resumes=resumes)

    async def get(self, message_id: str) -> Message:
        """Return one message whole."""
        return self._store.message(message_id)

    async def queue(self, session_id: str) -> tuple[Sequence[QueuedPrompt], str]:
        """Return what is queued, and why the queue is held ('' is open)."""
        session = self._store.session(session_id)
        return self._store.queue(session.id), session.queue_held

    async def cancel_queued(self, session_id: str, message_id: str) -> None:
        """Withdraw a prompt that no turn has taken; it leaves no trace (PROMPT-8)."""
        session = self._store.session(session_id)

        def job(tx: Tx) -> list[Event]:
            if tx.one("queue_take", message_id=message_id, session_id=session_id) is None:
                raise Conflict("This prompt was sent already, or is not in the queue.", reason="already_sent")
            tx.run("message_delete", id=message_id)
            return [queue_event(tx, session_id, session.task_id), *rest_task(tx, session_id)]

        failpoint("queue.before_withdraw")
        events = await self._store.write(job)
        failpoint("queue.after_withdraw")
        self._publish(events)

    async def resume_queue(self, session_id: str) -> None:
        """Open the queue: a person says that it goes on."""
        session = self._store.session(session_id)
        refuse_ended(session)
        failpoint("queue.before_open")
        events = await self._store.write(lambda tx: hold_queue(tx, session_id, HoldReason.OPEN))
        failpoint("queue.after_open")
        self._publish(events)
        self._kick(session_id)

    async def send_again(self, session_id: str, turn_id: str) -> Message:
        """Send the prompt of a turn that was cut, as a new message: a person's decision, never automatic (PROMPT-4).

        Raises Conflict: not_possible for a turn that ended in order, already_sent (with the message_id) for one that
        was sent again before, unless that message was withdrawn since.
        """
        turn = self._store.turn(turn_id)
        if turn.session_id != session_id:
            raise NotFound(f"There is no turn {turn_id} in this session.", id=turn_id)
        if turn.state not in SENDABLE_AGAIN:
            raise Conflict(f"The turn is {turn.state}; there is nothing to send again.", reason="not_possible")
        prompt = self._store.message(turn.message_id)
        session = self._store.session(session_id)
        again = f"{AGAIN}{turn_id}"
        if (sent := self._known(session_id, again)) is not None:
            raise Conflict("This prompt was sent again already.", reason="already_sent", message_id=sent.id)
        # Two at once: the id makes one message of them.
        return await self.add(session.task_id, session_id, prompt.content, again)

    async def interrupted(self, session_id: str) -> Sequence[InterruptedTurn]:
        """Return the turns that were cut, newest first, at most ten: what was asked, and what may have run."""
        database = self._store.database
        rows = await database.scan("turns_interrupted", session_id=session_id, again=AGAIN, limit=INTERRUPTED_LIMIT)
        return [
            InterruptedTurn(
                turn_id=row["turn_id"],
                started_at=row["started_at"],
                ended_at=row["ended_at"],
                message_id=row["message_id"],
                prompt=row["prompt"][:PROMPT_CHARS],
                tool_calls=[
                    from_row(UnknownToolCall, call)
                    for call in await database.scan(
                        "turn_tool_calls_unknown",
                        session_id=session_id,
                        turn_id=row["turn_id"],
                        place=row["place"] or 0,
                        limit=TOOL_CALLS_LIMIT,
                    )
                ],
                sent_again=row["sent_again"],
            )
            for row in rows
        ]

    async def export(self, session_id: str) -> AsyncIterator[bytes]:
        """Yield a session as JSON lines: the session, then its messages in order."""
        session = self._store.session(session_id)
        yield msgspec.json.encode({"kind": "session", "session": session}) + b"\n"
        after = 0
        while page := self._store.messages_after(session_id, after=after, limit=EXPORT_PAGE):
            for message in page:
                yield msgspec.json.encode({"kind": "message", "message": message}) + b"\n"
                after = message.seq or after


def _place(message: Message) -> int:
    return message.seq or 0


def refuse_ended(session: TaskSession) -> None:
    """Raise SessionEnded for a session that takes no prompt."""
    if session.state in TERMINAL_STATES or session.intent:
        reason = "session_completed" if session.state is SessionState.COMPLETED else "session_ended"
        raise SessionEnded(
            f"The session is {session.state} and takes no prompt. `recover` brings it back, unless it is COMPLETED.",
            reason=reason,
        )


def new_prompt(session_id: str, content: str, client_message_id: str | None) -> Message:
    """Return a prompt that has no place yet (PROMPT-8). Lone surrogates are replaced (HIST-6)."""
    stamp = now()
    return Message(
        id=new_message_id(),
        session_id=session_id,  # type: ignore[arg-type]  # a SessionId by where it came from
        seq=None,
        author_type="user",
        type="message",
        content=clean_text(content),
        created_at=stamp,
        updated_at=stamp,
        client_message_id=client_message_id,
    )


def queue_prompt(tx: Tx, message: Message) -> None:
    """Store a new prompt as the last of its queue."""
    tx.run("message_insert", **message_args(message))
    tx.run("search_note", message_id=message.id)
    tx.run("queue_insert_last", message_id=message.id, session_id=message.session_id, created_at=message.created_at)


def _add_job(tx: Tx, session: TaskSession, message: Message) -> tuple[Message, list[Event]]:
    """Store message and queue entry. Two requests with one client id: the second finds the first (PROMPT-2)."""
    if message.client_message_id:
        stored = tx.one("message_by_client", session_id=session.id, client_message_id=message.client_message_id)
        if stored is not None:
            return Message(**{**msgspec.structs.asdict(message), "id": stored["id"], "seq": stored["seq"]}), []
    current = tx.one("session_get", id=session.id)
    if current is None:
        raise NotFound(f"There is no session {session.id}.", id=session.id)
    refuse_ended(msgspec.structs.replace(session, state=SessionState(current["state"]), intent=current["intent"]))
    queue_prompt(tx, message)
    events = hold_queue(tx, session.id, HoldReason.OPEN) if current["queue_held"] != HoldReason.PARKED else []
    return message, events or [queue_event(tx, session.id, session.task_id)]
