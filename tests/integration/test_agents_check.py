"""`kandev agents check` on agents that do, and do not, what their flags promise. No backend runs for it."""

import asyncio
import json
import signal
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend import Backend
from fakes import FakeAgent
from kandev.agents.base import AgentOverride, McpServer
from kandev.cli.check import _configuration
from leftovers import processes_naming

# It begins to count, and is killed long before it would end.
COUNTS = {"match": "^Count from 1", "steps": [{"chunks": 300, "text": "{n} 2 ", "delay": 0.1}]}
# It says again what it heard, and so the word.
WORD = {"match": "What is the word", "steps": [{"replay": True, "kinds": ["agent_message_chunk"], "ids": "new"}]}


def steps_of(answer: Any) -> dict[str, tuple[str, str]]:
    """Result and what was seen, by step."""
    return {step["step"]: (step["result"], step["seen"]) for step in answer["steps"]}


async def check(backend: Backend, agent: FakeAgent, *lines: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Checks a fake agent whose table has these lines; exit code and steps."""
    backend.config = "\n".join(["[agents.mine]", f"command = {json.dumps(agent.command)}", *lines])
    (backend.home / "config.toml").write_text(backend.config)
    result = await backend.cli("agents", "check", "mine")
    assert result.answer["passed"] == (result.code == 0)
    assert [path.name for path in backend.home.iterdir()] == ["config.toml"], "the person's own home was written to"
    return result.code, steps_of(result.answer)


async def test_a_native_agent_that_forgets_fails_at_its_memory(backend: Backend, tmp_path: Path) -> None:
    """It loads its session and knows nothing: the resume looks good, and the word is not there."""
    code, steps = await check(
        backend, FakeAgent(tmp_path / "agent", on={"session/prompt": COUNTS}), "native_session_resume = true"
    )
    assert code == 1
    assert steps["kill in a turn"][1].startswith("SIGKILL to the backend behind '1 2")
    assert steps["start, open"] == ("ok", "needs a resume (agent_not_running); last turn interrupted")
    assert steps["resume"] == ("ok", "how: native (session/resume)")
    assert list(steps)[-1] == "prompt: its memory"
    result, seen = steps["prompt: its memory"]
    assert (result, seen.split(":")[0]) == ("failed", "it does not know the word any more")


async def test_an_agent_that_cannot_restore_although_its_flags_say_so(backend: Backend, tmp_path: Path) -> None:
    """It says so at initialize; the check fails with the reason."""
    agent = FakeAgent(tmp_path / "agent", load=False, resume=False, on={"session/prompt": COUNTS})
    code, steps = await check(backend, agent, "native_session_resume = true")
    assert code == 1
    assert list(steps)[-1] == "resume"
    result, seen = steps["resume"]
    assert result == "failed"
    assert seen.startswith("came up fresh, without its memory: ")


async def test_an_agent_without_memory_gets_an_honest_line_and_a_recap(backend: Backend, tmp_path: Path) -> None:
    """That it boots idle is its way and no failure; the recap holds the word that the first turn had.

    It is the agent that is tried and not where it would run: a runtime that keeps it alive does not count.
    """
    agent = FakeAgent(tmp_path / "agent", on={"session/prompt": COUNTS})
    code, steps = await check(backend, agent, 'runtime = "detached"')
    assert code == 0
    result, seen = steps["resume"]
    assert result == "note"
    assert seen.startswith(
        "memory is not restored; the conversation can be given as a summary. The transcript says: mine "
    )
    assert "does not remember this conversation" in seen
    assert steps["summary, prompt"][0] == "ok"
    assert steps["transcript"][1].endswith("none twice, what was cut off is kept")
    assert "an id it does not know" not in steps


async def test_a_login_that_is_needed_is_told_with_its_command(backend: Backend, tmp_path: Path) -> None:
    """The first step fails, with what to run."""
    refusal = {"error": {"code": -32000, "message": "Authentication required"}}
    agent = FakeAgent(tmp_path / "agent", on={"session/new": refusal})
    code, steps = await check(backend, agent, 'login_hint = "my-agent login"')
    assert code == 1
    assert list(steps) == ["initialize, new session"]
    result, seen = steps["initialize, new session"]
    assert (result, seen.split(".")[0]) == ("failed", "login needed: run `my-agent login`")


async def test_an_agent_that_takes_any_id_fails(backend: Backend, tmp_path: Path) -> None:
    """A session that nobody made must not be restored as if it were there."""
    agent = FakeAgent(tmp_path / "agent", unknown="accept", on={"session/prompt": [COUNTS, WORD]})
    code, steps = await check(backend, agent, "native_session_resume = true")
    assert code == 1
    assert steps["prompt: its memory"][0] == "ok"
    result, seen = steps["an id it does not know"]
    assert (result, seen.split(" (")[0]) == ("failed", "it took an id that nobody has for a session")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_check_that_is_stopped_leaves_nothing(backend: Backend, tmp_path: Path, number: signal.Signals) -> None:
    """In the middle of a prompt: backend, agent and home are gone, and the exit code is that of a cancel."""
    agent = FakeAgent(tmp_path / "agent", on={"session/prompt": {"steps": [{"mark": "asked"}, "hang"]}})
    (backend.home / "config.toml").write_text(f"[agents.mine]\ncommand = {json.dumps(agent.command)}\n")
    with tempfile.TemporaryDirectory(prefix="kandev-") as place:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kandev", "agents", "check", "mine", "--json"),
            env={**backend.env(), "TMPDIR": place},
            stdout=asyncio.subprocess.PIPE,
        )
        await backend.until(lambda: bool(agent.events("mark")))
        assert list(Path(place).iterdir())
        process.send_signal(number)
        out, _ = await process.communicate()
        assert (process.returncode, json.loads(out)["error"]["code"]) == (130, "CANCELLED")
        assert not list(Path(place).iterdir())
        assert not processes_naming(place)


async def test_a_program_that_is_missing_is_the_only_step(backend: Backend) -> None:
    """Nothing is started, and the step says how to install it."""
    table = '[agents.mine]\ncommand = ["no-such-agent"]\ninstall_hint = "get no-such-agent"\n'
    (backend.home / "config.toml").write_text(table)
    result = await backend.cli("agents", "check", "mine")
    assert result.code == 1
    seen = "'no-such-agent' is not on the PATH. Install it with: get no-such-agent"
    assert steps_of(result.answer) == {"program": ("failed", seen)}


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
tables = st.dictionaries(texts, texts, max_size=3)


@given(
    override=st.builds(
        AgentOverride,
        command=st.lists(texts, min_size=1, max_size=3).map(tuple),
        env=tables,
        native_session_resume=st.booleans(),
        idle_minutes=st.floats(min_value=0, max_value=1e9),
        mcp_servers=st.lists(st.builds(McpServer, name=texts, command=texts, env=tables), max_size=2).map(tuple),
    )
)
def test_what_is_configured_of_an_agent_is_what_the_check_tries(override: AgentOverride) -> None:
    """The table that the check writes reads back as the one that it was made from, whatever texts stand in it."""
    table = tomllib.loads(_configuration("my-agent", override))
    assert msgspec.convert(table["agents"]["my-agent"], AgentOverride) == override


@pytest.mark.parametrize("override", [None, AgentOverride()])
def test_an_agent_without_a_table_is_tried_as_it_is_built_in(override: AgentOverride | None) -> None:
    """An empty table changes nothing."""
    assert tomllib.loads(_configuration("demo", override)) == {"agents": {"demo": {}}}
