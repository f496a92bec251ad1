"""The backend inside a program: the README's example, a crash of the program, a second owner of the home."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kandev.errors import HomeInUse, NotFound
from kandev.library import Kandev

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KANDEV_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KANDEV_DEMO_AGENT_HOME", str(tmp_path / "agent"))


async def test_a_session_is_started_followed_and_asked(tmp_path: Path) -> None:
    """The first iterator misses nothing of the first turn; ask() returns what the agent said."""
    async with asyncio.timeout(LIMIT_S), Kandev(tmp_path / "home") as kandev:
        session = await kandev.new_session(agent="demo", prompt="remember apple")
        seen = []
        async for event in session.events():
            seen.append(event.action)
            if event.action == "session.turn.completed":
                break
        assert "session.turn.started" in seen
        assert "session.message.delta" in seen
        assert "apple" in await session.ask("what is the word?")
        assert (await session.resume()).how == "already_running"
        assert [one.content async for one in session.messages() if one.author_type == "user"] == [
            "remember apple", "what is the word?",
        ]  # fmt: skip


@pytest.mark.parametrize(("agent", "how"), [("demo", "native"), ("demo-history", "injection")])
async def test_a_session_outlives_the_program(tmp_path: Path, agent: str, how: str) -> None:
    """A program is killed; the next one on the same home finds the session by its short id, and it remembers."""
    program = f"""
import asyncio, os, signal
from kandev.library import Kandev
async def main():
    async with Kandev({str(tmp_path / "home")!r}) as kandev:
        session = await kandev.new_session(agent={agent!r}, prompt="remember apple")
        async for event in session.events():
            if event.action == "session.turn.completed":
                print(session.id, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == -9, done.stderr
    async with asyncio.timeout(LIMIT_S), Kandev(tmp_path / "home") as kandev:
        session = await kandev.session(done.stdout.strip()[:8])
        assert (await session.status()).needs_resume
        assert (await session.resume()).how == how
        assert "apple" in await session.ask("what is the word?")


async def test_perm_1_a_question_is_answered(tmp_path: Path) -> None:
    """permissions() lists it, answer() settles it, and the turn goes on."""
    async with asyncio.timeout(LIMIT_S), Kandev(tmp_path / "home") as kandev:
        session = await kandev.new_session(agent="demo", prompt="ask")
        async for event in session.events():
            if event.action == "permission.requested":
                request = (await session.permissions())[0]
                await session.answer(request.id, request.options[0]["option_id"])
            if event.action == "session.turn.completed":
                break
        assert await session.permissions() == []


async def test_race_8_a_home_has_one_owner(tmp_path: Path) -> None:
    """A second one is refused and told who has it; unknown sessions and agents are named."""
    async with asyncio.timeout(LIMIT_S), Kandev(tmp_path / "home") as kandev:
        with pytest.raises(HomeInUse, match=str(os.getpid())):
            async with Kandev(tmp_path / "home"):
                pass
        with pytest.raises(NotFound):
            await kandev.session("nothing")
        with pytest.raises(NotFound):
            await kandev.new_session(agent="nobody", prompt="x")
