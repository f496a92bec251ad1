"""Who listens to what: numbers the events of each session, keeps the last of them, and hands them out.

Everything here is synchronous and runs in the loop, so that a snapshot and the number it belongs to cannot drift
apart. An event is encoded once, however many listen.

Two kinds of subscription. A session's: every event of it. A task's, or all tasks' (what a board shows): the events in
`BOARD_ACTIONS`, so without the stream of messages. A subscriber who has both gets each event once. Numbers count a
session's events, so a board sees gaps in them, which mean nothing there.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from kandev.domain.constants import EVENT_BUFFER_BYTES, EVENT_BUFFER_COUNT, FRAME_BYTES
from kandev.domain.models import Event, Message, now
from kandev.gateway import protocol
from kandev.gateway.listener import Listener
from kandev.gateway.outbox import Outbox
from kandev.gateway.ring import Ring

RINGS_TOTAL_BYTES = 128 * 1024 * 1024
RING_IDLE_S = 900.0  # a ring that nobody listens to is dropped this long after its last event
SWEEP_S = 60.0
ENVELOPE_BYTES = 1024  # room that a frame needs beside its payload

BOARD_ACTIONS = frozenset({
    "task.created", "task.state_changed", "task.updated", "task.deleted",
    "session.state_changed", "session.agent_changed",
    "session.resume.progress", "session.resume.completed", "session.resume.failed",
    "session.turn.started", "session.turn.stalled", "session.turn.completed",
    "permission.requested", "permission.resolved", "message.queue.changed",
})  # fmt: skip

Snapshot = Callable[[str], Mapping[str, Any]]
log = structlog.get_logger(__name__)


class Since(msgspec.Struct, frozen=True, kw_only=True):
    """A subscriber's cursor: the last number that it has seen, and the boot that counted it."""

    boot_id: str
    seq: int


class Hub:
    """Fan-out of one backend. `published` counts events, for the metrics."""

    def __init__(
        self, boot_id: str, *, ring_events: int = EVENT_BUFFER_COUNT, ring_bytes: int = EVENT_BUFFER_BYTES
    ) -> None:
        self.boot_id = boot_id
        self.published = 0
        self._ring_events = ring_events
        self._ring_bytes = ring_bytes
        self._seqs: dict[str, int] = {}  # goes on when a ring is dropped
        self._rings: dict[str, Ring] = {}  # the least recently used first
        self._rings_bytes = 0
        self._sessions: dict[str, dict[Outbox, None]] = {}
        self._boards: dict[str, dict[Outbox, None]] = {}  # by task; "" is all tasks
        self._watchers: defaultdict[str, list[Callable[[Event], None]]] = defaultdict(list)
        self._swept_at = time.monotonic()

    def publish(self, events: Sequence[Event]) -> None:
        """Number, keep and hand out what a commit has changed. Never waits and never raises for a subscriber.

        The payload that goes out is the event's, with `session_id`, `task_id` and `seq` of the event itself.
        """
        timestamp = now()
        for event in events:
            data = self._encode(event, timestamp)
            for outbox in self._targets(event):
                outbox.push(data)
            for watcher in self._watchers.get(event.action, ()):
                _tell(watcher, event)
        self.published += len(events)
        if time.monotonic() - self._swept_at > SWEEP_S:
            self._sweep()

    def watch(self, action: str, watcher: Callable[[Event], None]) -> None:
        """Call `watcher` with each event of this kind, for as long as the backend runs (metrics, hooks)."""
        self._watchers[action].append(watcher)

    def seq(self, session_id: str) -> int:
        """Return the number of the session's last event in this boot; 0 before the first."""
        return self._seqs.get(session_id, 0)

    def subscribe(self, outbox: Outbox, session_id: str, since: Since | None, snapshot: Snapshot) -> msgspec.Raw:
        """Subscribe to a session and return the payload of the answer, as JSON.

        Either {boot_id, seq, gap: false, events: [notifications after `since`]}, or, where the cursor is of another
        boot or too old (UI-5), {boot_id, seq, gap: true} with the snapshot. The caller must push the answer before it
        awaits anything: what is published afterwards has a larger number. Raises what `snapshot` raises (NotFound).
        """
        missed = self._missed(session_id, since)
        head = {"boot_id": self.boot_id, "seq": self.seq(session_id)}
        if missed is None:
            answer = _fitting({**head, "gap": True, **snapshot(session_id)})
        else:
            start = protocol.encode({**head, "gap": False})[:-1]
            answer = start + b',"events":[' + b",".join(missed) + b"]}"
        self._sessions.setdefault(session_id, {})[outbox] = None
        return msgspec.Raw(answer)

    def unsubscribe(self, outbox: Outbox, session_id: str) -> None:
        """End one session's subscription; none is no error."""
        _remove(self._sessions, session_id, outbox)

    def subscribe_board(self, outbox: Outbox, task_id: str | None) -> None:
        """Subscribe to a task's `BOARD_ACTIONS`, or to every task's."""
        self._boards.setdefault(task_id or "", {})[outbox] = None

    def unsubscribe_board(self, outbox: Outbox, task_id: str | None) -> None:
        """End such a subscription; none is no error."""
        _remove(self._boards, task_id or "", outbox)

    def drop(self, outbox: Outbox) -> None:
        """End all subscriptions of a subscriber that went away."""
        for table in (self._sessions, self._boards):
            for key in [key for key, outboxes in table.items() if outbox in outboxes]:
                _remove(table, key, outbox)

    def listen(self, session_id: str) -> Listener:
        """Return an async iterator over the session's events from now on, as dicts, for use inside this process.

        It is registered at once. Leave it by `async with`, or by `aclose()`.
        """
        outbox = Outbox()
        self._sessions.setdefault(session_id, {})[outbox] = None
        return Listener(outbox, lambda: self.unsubscribe(outbox, session_id))

    def _encode(self, event: Event, timestamp: str) -> bytes:
        payload = dict(event.payload)
        if event.task_id:
            payload["task_id"] = event.task_id
        if not event.session_id:
            return protocol.notification(event.action, payload, timestamp)
        seq = self._seqs.get(event.session_id, 0) + 1
        payload["session_id"] = event.session_id
        payload["seq"] = seq
        data = protocol.notification(event.action, payload, timestamp)
        if len(data) > FRAME_BYTES:
            data = protocol.notification(event.action, _stub(payload, len(data)), timestamp)
        self._seqs[event.session_id] = seq
        self._keep(event.session_id, data)
        return data

    def _keep(self, session_id: str, data: bytes) -> None:
        ring = self._rings.pop(session_id, None) or Ring(self._ring_events, self._ring_bytes)
        self._rings[session_id] = ring
        self._rings_bytes += ring.append(data)
        while self._rings_bytes > RINGS_TOTAL_BYTES:
            self._drop_ring(next(iter(self._rings)))

    def _drop_ring(self, session_id: str) -> None:
        self._rings_bytes -= self._rings.pop(session_id).size

    def _sweep(self) -> None:
        self._swept_at = time.monotonic()
        idle = [key for key, ring in self._rings.items() if self._swept_at - ring.used_at > RING_IDLE_S]
        for session_id in idle:
            if session_id not in self._sessions:
                self._drop_ring(session_id)

    def _missed(self, session_id: str, since: Since | None) -> list[bytes] | None:
        if since is None or since.boot_id != self.boot_id:
            return None
        count = self.seq(session_id) - since.seq
        if count == 0:
            return []
        ring = self._rings.get(session_id)
        return ring.last(count) if ring and count > 0 else None

    def _targets(self, event: Event) -> Iterator[Outbox]:
        listening = self._sessions.get(event.session_id, {}) if event.session_id else {}
        yield from listening
        if not self._boards or event.action not in BOARD_ACTIONS:
            return
        everything = self._boards.get("", {})
        yield from (outbox for outbox in everything if outbox not in listening)
        of_task = self._boards.get(event.task_id, {}) if event.task_id else {}
        yield from (outbox for outbox in of_task if outbox not in listening and outbox not in everything)


def _remove(table: dict[str, dict[Outbox, None]], key: str, outbox: Outbox) -> None:
    outboxes = table.get(key)
    if outboxes is None:
        return
    outboxes.pop(outbox, None)
    if not outboxes:
        del table[key]


def _tell(watcher: Callable[[Event], None], event: Event) -> None:
    try:
        watcher(event)
    except Exception:
        log.exception("a watcher failed", action=event.action)


def _stub(payload: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return what fits into a frame: the ids, and that the rest is to be fetched or exported."""
    ids = {name: payload[name] for name in ("session_id", "task_id", "message_id", "seq") if name in payload}
    if isinstance(message := payload.get("message"), Message):
        ids["message_id"] = message.id
    return {**ids, "too_large": True, "bytes": size}


def _fitting(answer: dict[str, Any]) -> bytes:
    """Return the snapshot as JSON; one that does not fit into a frame loses its oldest messages."""
    data = protocol.encode(answer)
    while len(data) > FRAME_BYTES - ENVELOPE_BYTES and answer.get("messages"):
        kept = answer["messages"][len(answer["messages"]) // 2 + 1 :]
        answer = {**answer, "messages": kept, "messages_left_out": True}
        data = protocol.encode(answer)
    return data
