"""The agent's questions, as its lines come: permission requests are asked of people, answered by policy, or closed."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.domain.models import PermissionState
from kandev.lifecycle.effects import ExecutionRef
from kandev.lifecycle.permissions import ask_change, close_permissions, permission_message, rpc_key
from kandev.lifecycle.protocol_state import ProtocolState
from kandev.lifecycle.transcript import Transcript
from kandev.protocols import acp
from kandev.protocols.dialect import Dialect

PERMISSION = "session/request_permission"
PENDING_PERMISSIONS = 256
"""Questions that may be open at a time; an agent that asks on and on is answered "cancelled"."""


class Questions:
    """Keeps `ProtocolState.permissions`. `send` gives a line to the agent; changes join the transcript's batch."""

    def __init__(
        self,
        ref: ExecutionRef,
        state: ProtocolState,
        transcript: Transcript,
        *,
        policy: str | Sequence[str],
        dialect: Dialect,
        send: Callable[[bytes], int],
    ) -> None:
        self._ref = ref
        self._state = state
        self._transcript = transcript
        self._policy = policy
        self._dialect = dialect
        self._send = send

    def ask(self, request: acp.Request) -> None:
        """Put a permission request into the transcript, and ask a person unless the policy answers it."""
        state, transcript = self._state, self._transcript
        ask = acp.permission(request.params)
        kind = ask.kind or transcript.tool_kind(ask.tool_call_id)
        chosen = acp.auto_permission(ask.options, kind, self._policy)
        refused = chosen is None and (self._policy == "deny" or len(state.permissions) >= PENDING_PERMISSIONS)
        if chosen is not None or refused:
            self._send(self._dialect.answer_permission(request.id, chosen, ask.tool_call))
        transcript.close_text()
        asked = permission_message(ask, chosen=chosen, refused=refused)
        message = transcript.message(
            author_type="agent", type_="permission_request", content=asked.content, metadata=asked.metadata
        )
        transcript.batch.add(ask_change(self._ref, message, request.id, asked))
        transcript.batch.urgent = True
        if asked.state is PermissionState.PENDING:
            state.permissions[rpc_key(request.id)] = asked.id
            if not state.in_a_turn:
                state.asked_outside.append(asked.id)
        failpoint("permission.asked")

    def withdraw(self, params: Any) -> None:
        """The agent takes a request back: the permission is closed, and its request answered -32800."""
        request_id = params.get("requestId") if isinstance(params, dict) else None
        ours = self._state.permissions.pop(rpc_key(request_id), None)
        if ours is not None:
            self._send(self._dialect.refuse(request_id, -32800, "Request cancelled"))
            self._transcript.batch.add(close_permissions(self._ref, "cancelled", only=ours))

    def end_turn(self) -> None:
        """A turn ended over its open questions: they are closed, and answered, since nobody answers them any more."""
        for key, ours in self._state.asked_in_turn.items():
            self._send(self._dialect.answer_permission(msgspec.json.decode(key), None, {}))
            self._transcript.batch.add(close_permissions(self._ref, "cancelled", only=ours))
        self._state.forget_turns_questions()

    def end_agent(self) -> None:
        """Nobody waits for an answer any more."""
        self._transcript.batch.add(close_permissions(self._ref, "expired"))
        self._state.permissions, self._state.asked_outside = {}, []
