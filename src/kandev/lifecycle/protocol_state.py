"""The reader's state: all that the protocol core needs to go on after a position in the journal.

It is committed together with `last_event_seq`, and both belong to one `agent_execution_id` (design, section 4).
"""

from enum import StrEnum
from typing import Any

import msgspec

from kandev.agentctl import records
from kandev.agents.base import Protocol
from kandev.protocols.dialect import ACP, Dialect
from kandev.protocols.stream_json import StreamJson, StreamState

VALUE_BYTES = 64 * 1024
REPLAYED_KINDS = 64
"""So many kinds of replayed updates are counted each by itself, and a kind has at most so many characters."""


class Phase(StrEnum):
    """Where updates of the agent go. `REPLAYING` drops content until the first prompt is written (HIST-1)."""

    LIVE = "live"
    REPLAYING = "replaying"


class OpenMessage(msgspec.Struct, kw_only=True):
    """The text message that chunks are appended to. `length` counts characters."""

    id: str
    kind: str
    acp_id: str | None = None
    length: int = 0


class InFlight(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the agent that has no answer yet: the turn whose prompt it is, or the mode that it sets."""

    method: str
    turn_id: str = ""
    mode: str = ""


class ProtocolState(msgspec.Struct, kw_only=True):
    """One value, written as JSON. Ids of requests are ours; `permissions` maps the agent's request id to ours.

    `asked_outside` are those of ours that were asked outside of any turn, and stay open when one ends.
    `stream` is what the dialect of an agent that does not speak ACP remembers.
    """

    phase: Phase = Phase.LIVE
    agent_session_id: str = ""
    restored: bool = False
    turn_id: str = ""
    prompt_line: int = 0
    turn_accepted: bool = False
    turn_injected: str = ""
    turn_said: bool = False
    turn_usage: dict[str, Any] = {}
    open_message: OpenMessage | None = None
    open_tools: dict[str, str] = {}
    plan_message: str = ""
    in_flight: dict[int, InFlight] = {}
    permissions: dict[str, str] = {}
    asked_outside: list[str] = []
    next_rpc: int = 1
    next_line: int = 1
    lines_begun: int = 0
    lines_written: int = 0
    initialize: dict[str, Any] | None = None
    history_enabled: bool = False
    needs_resume_context: bool = False
    resume_context_injected: bool = False
    replayed: dict[str, int] = {}
    exited: records.Exited | None = None
    stream: StreamState | None = None

    def dialect(self) -> Dialect:
        """Return what the agent speaks."""
        return ACP if self.stream is None else StreamJson(self.stream)

    @property
    def prompt_begun(self) -> bool:
        """True once a part of the last prompt may have reached the agent: what was read before is no answer to it."""
        return self.lines_begun >= self.prompt_line

    @property
    def in_a_turn(self) -> bool:
        """True while the agent may be at a prompt of ours."""
        return self.prompt_begun and any(flight.turn_id for flight in self.in_flight.values())

    @property
    def asked_in_turn(self) -> dict[str, str]:
        """The open permission requests of the turn under way."""
        return {key: ours for key, ours in self.permissions.items() if ours not in self.asked_outside}

    def forget_turns_questions(self) -> None:
        """Leave only the permission requests that do not belong to the turn, which has ended."""
        self.permissions = {key: ours for key, ours in self.permissions.items() if ours in self.asked_outside}
        self.asked_outside = list(self.permissions.values())

    def count_replayed(self, kind: str) -> None:
        """Count one update of a replay; kinds beyond the first REPLAYED_KINDS, and endless ones, count as "other"."""
        if kind not in self.replayed and (len(self.replayed) >= REPLAYED_KINDS or len(kind) > REPLAYED_KINDS):
            kind = "other"
        self.replayed[kind] = self.replayed.get(kind, 0) + 1

    def encode(self) -> str:
        """Return the stored form."""
        return _encoder.encode(self).decode()


def new_state(protocol: Protocol, *, history_enabled: bool) -> ProtocolState:
    """Return the state of a reader that has read nothing yet, for an agent that speaks `protocol`."""
    stream = None if protocol == "acp" else StreamState(protocol=protocol)
    return ProtocolState(history_enabled=history_enabled, stream=stream)


def told_of_turn(state: ProtocolState, result: Any) -> dict[str, Any]:
    """Return what a dialect tells of a turn beside its end, as fields of the effect; an ACP agent tells none of it."""
    told = result if state.stream is not None and isinstance(result, dict) else {}
    return {"last_message_uuid": told.get("lastMessageUuid", ""), "proves": told.get("turns") != 0}


def small(value: dict[str, Any]) -> dict[str, Any]:
    """Return what an agent said if it is small enough to stand in the state, which every commit writes; else {}."""
    return value if len(_encoder.encode(value)) <= VALUE_BYTES else {}


def decode_state(text: str) -> ProtocolState:
    """Return the state from its stored form; an empty text is a reader that has read nothing."""
    return _decoder.decode(text) if text else ProtocolState()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ProtocolState)
