"""What a client knows of a session: a snapshot, and every event since. It must end up with what the store has.

Strict where the contract is: numbers follow one another, a delta continues the text, a message is added once. Only
behind a snapshot an event may tell again what the snapshot holds already; then both must agree.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]


class Mirror:
    """One session as a client sees it. `problems` is what contradicted the contract."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.boot_id = ""
        self.seq = 0
        self.snapshot_seq = -1
        self.gaps = 0
        self.state = ""
        self.turn = ""
        self.messages: dict[str, Json] = {}
        self.queue: list[str] = []
        self.held = ""
        self.permissions: set[str] = set()
        self.problems: list[str] = []

    @property
    def cursor(self) -> Json | None:
        """What is given as `since`; None before the first snapshot."""
        return {"boot_id": self.boot_id, "seq": self.seq} if self.boot_id else None

    def take_answer(self, answer: Json) -> None:
        """Take the answer of session.subscribe."""
        if not answer["gap"]:
            if answer["boot_id"] != self.boot_id:
                self.problems.append("events of another boot were given without a gap")
            for event in answer["events"]:
                self.take(event)
            if self.seq != answer["seq"]:
                self.problems.append(f"the events end with {self.seq}, the answer says {answer['seq']}")
            return
        self.gaps += 1
        self.boot_id, self.seq, self.snapshot_seq = answer["boot_id"], answer["seq"], answer["seq"]
        self.state = answer["session"]["state"]
        self.turn = (answer["turn"] or {}).get("id", "")
        self.messages = {message["id"]: message for message in answer["messages"]}
        self.queue = [entry["message_id"] for entry in answer["queue"]]
        self.held = answer["session"]["queue_held"]
        self.permissions = {asked["id"] for asked in answer["permissions"]}

    def add_older(self, messages: Sequence[Json]) -> None:
        """Take messages that stood before the snapshot."""
        for message in messages:
            self.messages.setdefault(message["id"], message)

    @property
    def oldest(self) -> int:
        """The place of the oldest message that is known."""
        return min((message["seq"] for message in self.messages.values()), default=0)

    def take(self, event: Json) -> None:
        """Take one notification about this session."""
        payload = event["payload"]
        if payload["seq"] != self.seq + 1:
            self.problems.append(f"event {payload['seq']} ({event['action']}) follows {self.seq}")
        self.seq = payload["seq"]
        handler = getattr(self, "_" + event["action"].replace(".", "_"), None)
        if handler is not None:
            handler(payload)

    def _may_repeat(self) -> bool:
        """A commit may be in the snapshot while its events are just about to go out."""
        return self.snapshot_seq >= 0 and self.seq <= self.snapshot_seq + 60

    def _session_state_changed(self, payload: Json) -> None:
        if payload["old_state"] != self.state and not self._may_repeat():
            self.problems.append(f"{self.state} became {payload['new_state']} from {payload['old_state']}")
        self.state = payload["new_state"]

    def _session_message_added(self, payload: Json) -> None:
        message = payload["message"]
        if message["id"] in self.messages and not self._may_repeat():
            self.problems.append(f"message {message['id']} was added twice")
        known = self.messages.get(message["id"])
        if known is None or len(known["content"]) <= len(message["content"]):
            self.messages[message["id"]] = message

    def _session_message_delta(self, payload: Json) -> None:
        message = self.messages.get(payload["message_id"])
        if message is None:
            self.problems.append(f"a delta for message {payload['message_id']}, which nobody added")
            return
        content, at, text = message["content"], payload["offset"], payload["text"]
        known = content[at : at + len(text)]
        if at > len(content) or (known and (not self._may_repeat() or not text.startswith(known))):
            self.problems.append(f"a delta at {at} for message {message['id']} of {len(content)} characters")
            return
        self.messages[message["id"]] = {**message, "content": content + text[len(known) :]}

    def _session_message_updated(self, payload: Json) -> None:
        message = payload["message"]
        if message["seq"] is None:
            self.messages.pop(message["id"], None)
        elif message["id"] in self.messages:
            self.messages[message["id"]] = message
        else:
            self.problems.append(f"message {message['id']} was updated and never added")

    def _session_turn_started(self, payload: Json) -> None:
        self.turn = payload["turn"]["id"]

    def _session_turn_completed(self, payload: Json) -> None:
        if self.turn != payload["turn"]["id"] and not self._may_repeat():
            self.problems.append(f"turn {payload['turn']['id']} ended while {self.turn or 'none'} was open")
        self.turn = ""

    def _message_queue_changed(self, payload: Json) -> None:
        self.queue = [entry["message_id"] for entry in payload["queue"]]
        self.held = payload["held"]

    def _permission_requested(self, payload: Json) -> None:
        self.permissions.add(payload["request"]["id"])

    def _permission_resolved(self, payload: Json) -> None:
        self.permissions.discard(payload["request"]["id"])


def differences(mirror: Mirror, stored: Mapping[str, Any]) -> list[str]:
    """Return in what a mirror differs from the store: {state, queue, held, messages in order, permissions}."""
    found = [
        f"{name}: the client has {getattr(mirror, name)!r}, the store {stored[name]!r}"
        for name in ("state", "queue", "held", "permissions")
        if getattr(mirror, name) != stored[name]
    ]
    ours = sorted(mirror.messages.values(), key=lambda message: message["seq"])
    if [one["id"] for one in ours] != [one["id"] for one in stored["messages"]]:
        known = {one["id"] for one in ours}
        there = {one["id"] for one in stored["messages"]}
        return [*found, f"messages: not seen {there - known}, seen and not stored {known - there}, or another order"]
    for one, other in zip(ours, stored["messages"], strict=True):
        found += [
            f"message {one['id']} ({one['type']}): {name} is {_short(one[name])} here, {_short(other[name])} stored"
            for name in ("seq", "turn_id", "type", "author_type", "content", "metadata")
            if one[name] != other[name]
        ]
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:80]}...{text[-80:]} ({len(text)})"
