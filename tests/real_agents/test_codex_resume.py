"""Codex itself keeps its sessions over a kill -9: what the product's native resume of it rests on."""

import asyncio
from pathlib import Path

import pytest

from fakes.peer import Peer
from leftovers import end_process, ended, processes_naming
from real_agents.conftest import RealAgent

pytestmark = pytest.mark.real_agent


def learn(agent: RealAgent, project: Path) -> str:
    """Says MARK-apple to a new session, kills the agent with SIGKILL, and returns the session's id."""
    with Peer(agent.command, agent.env) as peer:
        session_id = peer.new(project)
        answer = peer.prompt(session_id, "Please remember the word MARK-apple.")
        assert answer["result"]["stopReason"] == "end_turn"
        assert "MARK-apple" in peer.text()
    kill_tree(agent)
    return session_id


def kill_tree(agent: RealAgent) -> None:
    """Ends what outlives the launched process: the adapter is node, and Codex its child."""

    async def all_ended(pids: list[int]) -> None:
        async with asyncio.timeout(30):
            await asyncio.gather(*map(ended, pids))

    left = list(processes_naming(str(agent.home)))
    for pid in left:
        end_process(pid, naming=str(agent.home))
    asyncio.run(all_ended(left))


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_codex_remembers_after_a_kill(codex_home: RealAgent, tmp_path: Path, method: str) -> None:
    """After a kill -9, load and resume both put the earlier turn in front of the model; only load replays it."""
    session_id = learn(codex_home, tmp_path)
    assert codex_home.model.request_with("MARK-apple")["marks"] == ["MARK-apple"]

    with Peer(codex_home.command, codex_home.env) as peer:
        restored = peer.restore(method, session_id, tmp_path)
        assert "error" not in restored
        replayed = peer.updates("user_message_chunk", "agent_message_chunk")
        assert bool(replayed) == (method == "session/load")

        answer = peer.prompt(session_id, "Which words, besides MARK-pear?")
        assert answer["result"]["stopReason"] == "end_turn"
        assert "marks: MARK-apple MARK-pear" in peer.text()
    assert codex_home.model.request_with("MARK-pear")["marks"] == ["MARK-apple", "MARK-pear"]


def test_codex_says_that_it_does_not_know_a_session(codex_home: RealAgent, tmp_path: Path) -> None:
    """An unknown id is refused by an error that says so, and not by a new, empty session."""
    with Peer(codex_home.command, codex_home.env) as peer:
        answer = peer.restore("session/load", "11111111-2222-4333-8444-555555555555", tmp_path)
    assert "no rollout found" in str(answer["error"])
