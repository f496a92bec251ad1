"""What an agent that ended had said on stderr only: agents that take their token on the command line may do so."""

from collections.abc import Mapping
from typing import Any

from kandev.domain.failures import PromptFailure, classify_prompt_failure
from kandev.lifecycle.protocol_state import ProtocolState
from kandev.protocols.acp import Response

STDERR_CHARACTERS = 2000


def as_error(stderr: str) -> Mapping[str, Any]:
    """Return the end of stderr as an error answer has it."""
    return {"message": stderr[-STDERR_CHARACTERS:].strip()}


def refusal(state: ProtocolState, stderr: str) -> Response | None:
    """Return the answer to a prompt that an agent did not take, ending over it: it wants a login, or knows no session.

    None where the prompt was taken, or nothing of the kind was said; then the turn is interrupted.
    """
    waiting = next((number for number, flight in state.in_flight.items() if flight.turn_id), None)
    if state.stream is None or state.turn_accepted or waiting is None:
        return None
    error = as_error(stderr)
    kind = classify_prompt_failure(error, session_id=state.agent_session_id)
    unknown = kind is PromptFailure.UNKNOWN_SESSION and state.restored
    return Response(waiting, None, error) if unknown or kind is PromptFailure.LOGIN else None
