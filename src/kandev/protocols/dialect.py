"""What an agent speaks: one line of bytes in, one event out; requests and answers of ours out, as lines of bytes.

The reader, the gate, turns, permissions and ends are one code path; only this differs from protocol to protocol.
Where a line says several things, they come as one `Burst`, in their order.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from kandev.protocols import acp


class SessionNamed(msgspec.Struct, frozen=True):
    """The agent told, outside of any answer, which session it is in: the resume token.

    `last_message_uuid` is the newest message of its record, where it said something outside of a turn.
    """

    session_id: str
    last_message_uuid: str = ""


class Burst(msgspec.Struct, frozen=True):
    """Several events of one line."""

    events: tuple["Event", ...]


Event = acp.Event | SessionNamed | Burst


class Dialect(Protocol):
    """Reads and writes one protocol. What it remembers between lines is part of the reader's stored state."""

    @property
    def decode(self) -> Callable[[bytes], Event]:
        """Return what one line of the agent says; for any bytes, and never raising."""

    def prompt(self, request_id: int, session_id: str, text: str) -> bytes:
        """Return the line of a prompt; its end comes as the `Response` with this id."""

    def cancel(self, session_id: str) -> bytes:
        """Return the line that ends the turn under way; '' where the protocol has none."""

    def answer_permission(self, request_id: Any, option_id: str | None, tool_call: Mapping[str, Any]) -> bytes:
        """Return the answer to a permission request about `tool_call`; None: the turn is cancelled (WIRE-14)."""

    def refuse(self, request_id: Any, code: int, message: str) -> bytes:
        """Return the refusal of a request of the agent (WIRE-5)."""

    def setting(self, request_id: int, session_id: str, method: str, *values: Any) -> bytes:
        """Return a request that sets mode, model or an option; `method` and `values` as ACP names and orders them."""


class Acp:
    """The Agent Client Protocol, which needs no memory between lines."""

    decode = staticmethod(acp.decode)

    _SETTINGS: Mapping[str, Callable[..., bytes]] = {
        "session/set_mode": acp.set_mode,
        "session/set_model": acp.set_model,
        "session/set_config_option": acp.set_config_option,
    }

    def prompt(self, request_id: int, session_id: str, text: str) -> bytes:
        """Return `session/prompt`."""
        return acp.prompt(request_id, session_id, text)

    def cancel(self, session_id: str) -> bytes:
        """Return `session/cancel`."""
        return acp.cancel(session_id)

    def answer_permission(self, request_id: Any, option_id: str | None, tool_call: Mapping[str, Any]) -> bytes:  # noqa: ARG002 - the option's id says it all
        """Return the outcome of `session/request_permission`."""
        if option_id is None:
            return acp.permission_cancelled(request_id)
        return acp.permission_selected(request_id, option_id)

    def refuse(self, request_id: Any, code: int, message: str) -> bytes:
        """Return a JSON-RPC error."""
        return acp.error(request_id, code, message)

    def setting(self, request_id: int, session_id: str, method: str, *values: Any) -> bytes:
        """Return `session/set_mode`, `session/set_model` or `session/set_config_option`."""
        return self._SETTINGS[method](request_id, session_id, *values)


ACP = Acp()
