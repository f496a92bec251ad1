"""How a turn of Claude Code or Amp ended, in ACP's words: the table of `prompt_answer`."""

from typing import Any

import pytest

from kandev.domain.failures import LoadFailure, PromptFailure, classify_load_failure, classify_prompt_failure
from kandev.protocols.stream_answers import control_answer, prompt_answer, started

SUCCESS = {"subtype": "success", "is_error": False, "num_turns": 1}
FAILED = {"subtype": "error_during_execution", "is_error": True}


@pytest.mark.parametrize(
    ("line", "cancelled", "reason"),
    [
        ({**SUCCESS, "stop_reason": "end_turn"}, False, "end_turn"),
        ({**SUCCESS, "stop_reason": None}, False, "end_turn"),
        ({**SUCCESS, "stop_reason": "max_tokens"}, False, "max_tokens"),
        ({**SUCCESS, "stop_reason": "refusal"}, False, "refusal"),
        ({**SUCCESS, "stop_reason": "end_turn"}, True, "end_turn"),  # it was done before it heard of the cancel
        ({"subtype": "error_max_turns", "is_error": True}, False, "max_turn_requests"),
        ({**FAILED, "terminal_reason": "aborted_tools"}, False, "cancelled"),
        ({**FAILED, "errors": ["a diagnostic"]}, True, "cancelled"),  # older versions give no reason
    ],
)
def test_state_7_a_turn_ends_for_a_reason(line: dict[str, Any], cancelled: bool, reason: str) -> None:  # noqa: FBT001 - a row of the table
    """Each reason is one that the protocol knows, and no error."""
    result, error = prompt_answer(line, cancelled=cancelled)
    assert error is None
    assert result is not None
    assert result["stopReason"] == reason


@pytest.mark.parametrize(
    ("line", "message", "kind"),
    [
        ({**SUCCESS, "is_error": True, "result": "API Error: 400"}, "API Error: 400", PromptFailure.FAILED),
        ({**FAILED, "errors": ["one", "two"]}, "one\ntwo", PromptFailure.FAILED),
        ({**FAILED, "error": "no credit"}, "no credit", PromptFailure.FAILED),  # Amp's
        ({"subtype": "error_max_budget_usd"}, "error_max_budget_usd", PromptFailure.FAILED),
        (
            {**SUCCESS, "is_error": True, "result": "Invalid API key · Please run /login"},
            "Invalid API key · Please run /login",
            PromptFailure.LOGIN,
        ),
        ({**SUCCESS, "is_error": True, "result": "no", "api_error_status": 401}, "no", PromptFailure.LOGIN),
        (
            {**FAILED, "errors": ["No conversation found with session ID: one"]},
            "No conversation found with session ID: one",
            PromptFailure.UNKNOWN_SESSION,
        ),
    ],
)
def test_an_error_has_the_agents_words(line: dict[str, Any], message: str, kind: PromptFailure) -> None:
    """By which a login, a lost session and any other failure are told apart."""
    result, error = prompt_answer(line, cancelled=False)
    assert result is None
    assert error is not None
    assert error["message"] == message
    assert classify_prompt_failure(error, session_id="one") is kind


def test_tok_16_a_message_that_is_not_known_says_nothing_of_the_session() -> None:
    """It costs a second try, and not the token."""
    _, error = prompt_answer({**FAILED, "errors": ["No message found with message.uuid of: m-1"]}, cancelled=False)
    assert classify_load_failure(error, session_id="one") is LoadFailure.CANNOT_RESTORE


@pytest.mark.parametrize(
    "words",
    [
        "Error: Thread T-1 not found or you don't have access. Verify the ID.",
        "Thread not found or you don't have access.",
    ],
)
def test_wire_9_amps_words_for_a_lost_thread(words: str) -> None:
    """As it says them on stderr."""
    assert classify_prompt_failure({"message": words}, session_id="T-1") is PromptFailure.UNKNOWN_SESSION


@pytest.mark.parametrize("words", ["Not logged in. Run 'amp login' to authenticate.", "Login failed: try again."])
def test_tok_13_amps_words_for_a_login(words: str) -> None:
    """As it says them on stderr."""
    assert classify_prompt_failure({"message": words}, session_id="T-1") is PromptFailure.LOGIN


def test_usage_and_costs_are_numbers_under_acps_names() -> None:
    """What is not told is not there."""
    usage = {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 1, "service_tier": "standard"}
    result, _ = prompt_answer({**SUCCESS, "usage": usage, "total_cost_usd": 0.5}, cancelled=False)
    assert result is not None
    assert result["usage"] == {"inputTokens": 5, "outputTokens": 2, "cachedReadTokens": 1, "totalCostUsd": 0.5}


@pytest.mark.parametrize("value", [{}, {"errors": 5, "is_error": 1}, {"usage": [], "subtype": None, "result": {}}])
def test_wire_3_a_wrong_type_counts_as_absent(value: dict[str, Any]) -> None:
    """Nothing raises, and there is an end of one kind or the other."""
    result, error = prompt_answer(value, cancelled=False)
    assert (result is None) is not (error is None)
    assert control_answer(value) == (None, {"code": -32603, "message": "refused"})
    setup, commands = started(value)
    assert (setup["modes"]["currentModeId"], commands) == ("default", [])
