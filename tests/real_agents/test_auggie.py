"""Auggie as far as it goes without an account: its dialogue with its model is private, so no prompt is tried.

It takes any login that names a server, and keeps to the protocol until it would need its model.
"""

from pathlib import Path

import msgspec
import pytest

from fakes.peer import Peer
from real_agents.conftest import RealAgents
from real_agents.verdict import check

pytestmark = pytest.mark.real_agent


def test_auggie_makes_a_session_and_does_not_know_another(real_agent: RealAgents, tmp_path: Path) -> None:
    """It offers to load sessions, makes one, and refuses an id that nobody has with an error that says so."""
    agent = real_agent("auggie")
    with Peer(agent.command, agent.env) as peer:
        about = peer.ask("initialize", protocolVersion=1, clientCapabilities={})["result"]
        assert about["agentCapabilities"]["loadSession"] is True
        made = peer.ask("session/new", cwd=str(tmp_path), mcpServers=[])["result"]
        assert made["sessionId"]
        unknown = "11111111-2222-4333-8444-555555555555"
        answer = peer.ask("session/load", sessionId=unknown, cwd=str(tmp_path), mcpServers=[])
    assert "Session not found" in str(answer["error"])


async def test_the_check_says_that_auggie_wants_a_login(real_agent: RealAgents, tmp_path: Path) -> None:
    """What cannot be tried without an account ends at its first step, with the command to run."""
    agent = real_agent("auggie")
    env = {name: value for name, value in agent.env.items() if not name.startswith("AUGMENT_SESSION")}
    verdict = await check(msgspec.structs.replace(agent, env=env), tmp_path)
    assert verdict.code == 1
    (result, seen), *more = verdict.steps.values()
    assert (result, more) == ("failed", [])
    assert seen.startswith("login needed: run `auggie login`")


def test_auggie_without_a_login(real_agent: RealAgents, tmp_path: Path) -> None:
    """A new session is refused with the code that the product takes for a needed login, and with the command."""
    agent = real_agent("auggie")
    env = {name: value for name, value in agent.env.items() if not name.startswith("AUGMENT_SESSION")}
    with Peer(agent.command, env) as peer:
        peer.ask("initialize", protocolVersion=1, clientCapabilities={})
        answer = peer.ask("session/new", cwd=str(tmp_path), mcpServers=[])
    assert answer["error"]["code"] == -32000
    assert "auggie login" in answer["error"]["message"]
