"""`kandev agents check NAME` with the real programs: the product's own driver, judged by the model's log.

It makes a session, prompts, kills the backend in the middle of the second turn, starts it, opens the session and
prompts again. The proof of memory is the model's: its last request holds a word that only the first turn had said.
"""

from pathlib import Path

import pytest

from kandev.agents import BUILT_IN
from real_agents.conftest import RealAgents
from real_agents.install import can_run
from real_agents.verdict import Verdict, check

pytestmark = pytest.mark.real_agent

REMEMBERING = ("codex", "claude-code", "claude-acp", "copilot", "opencode")
# Not among the product's agents, but a person may have it in config.toml. It wants Python 3.12.
CONFIGURED = tuple(name for name in ("fast-agent",) if can_run(name))


def assert_killed_in_turn(verdict: Verdict) -> None:
    """The turn was open when the backend was killed, and what was said of it is in the transcript."""
    result, seen = verdict.steps["kill in a turn"]
    assert (result, seen[:7]) == ("ok", "SIGKILL")
    assert "last turn interrupted" in verdict.steps["start, open"][1]
    assert verdict.steps["transcript"][1].endswith("none twice, what was cut off is kept")


@pytest.mark.parametrize("name", [*REMEMBERING, *CONFIGURED])
async def test_an_agent_remembers_after_the_backend_was_killed(
    real_agent: RealAgents, tmp_path: Path, name: str
) -> None:
    """All that its flags promise works, and the model was shown the first turn again."""
    agent = real_agent(name)
    verdict = await check(agent, tmp_path)
    assert verdict.code == 0
    assert_killed_in_turn(verdict)
    assert verdict.word in agent.model.request_with("What is the word?")["marks"]
    assert set(verdict.steps) >= {"prompt: its memory", "an id it does not know"}
    assert {result for result, _ in verdict.steps.values()} == {"ok"}


async def test_gemini_boots_idle(real_agent: RealAgents, tmp_path: Path) -> None:
    """With the table's flags it says that it does not remember, and the recap gives it the conversation."""
    agent = real_agent("gemini")
    verdict = await check(agent, tmp_path)
    assert verdict.code == 0
    assert_killed_in_turn(verdict)
    result, seen = verdict.steps["resume"]
    assert result == "note"
    assert seen.startswith(
        "memory is not restored; the conversation can be given as a summary. The transcript says: Gemini"
    )
    assert "does not remember this conversation" in seen
    asked = agent.model.request_with("What is the word?")
    assert verdict.word in asked["last"]


async def test_gemini_restores_natively_when_it_is_told_to(real_agent: RealAgents, tmp_path: Path) -> None:
    """`native_session_resume = true` in the configuration, and its own retention setting off."""
    agent = real_agent("gemini")
    verdict = await check(agent, tmp_path, "native_session_resume = true")
    assert verdict.code == 0
    assert_killed_in_turn(verdict)
    assert verdict.steps["resume"] == ("ok", "how: native (session/load)")
    assert verdict.word in agent.model.request_with("What is the word?")["marks"]


async def test_what_flags_promise_and_an_agent_does_not_is_a_failure(real_agent: RealAgents, tmp_path: Path) -> None:
    """The check can fail: an agent whose model refuses ends with 1, and says at which step."""
    agent = real_agent("codex")
    (agent.home / ".codex" / "config.toml").write_text('model_provider = "nobody"\n')
    verdict = await check(agent, tmp_path)
    assert verdict.code == 1
    assert [result for result, _ in verdict.steps.values()] == ["failed"]


def test_every_agent_that_can_be_installed_is_checked() -> None:
    """An agent of the product is here, or it is said why not."""
    elsewhere = {
        "amp": "keeps its threads on its own server, and does not start without it",
        "auggie": "its dialogue with its model is private: test_auggie.py",
        "demo": "comes along: tests/integration/test_cli.py",
        "demo-history": "comes along",
    }
    assert {*REMEMBERING, "gemini", *elsewhere} == set(BUILT_IN)
