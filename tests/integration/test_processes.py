"""Processes through the whole product: a temporary directory each, and nobody ended who is not ours (PROC)."""

import asyncio
from pathlib import Path

import pytest

from backend import Backend
from conversation import Cast, Conversation, Conversations
from fakes import runs


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """One agent for each session here, and some more."""
    return Cast(tmp_path_factory.mktemp("cast"), each=16)


def temporary(session: Conversation) -> list[Path]:
    """The temporary directory that each process of the agent was given, oldest first."""
    return [Path(entry["values"]["TMPDIR"]) for entry in session.agent.events("start")]


async def test_proc_7_each_agent_has_a_temporary_directory_that_goes_with_it(killable: Backend, cast: Cast) -> None:
    """Private and empty at each start; gone after a death, an orderly stop, and a kill of the backend."""
    async with killable.client() as client:
        sessions = [await cast.conversation(client, log_env=["TMPDIR"]) for _ in range(3)]
        for session in sessions:
            await session.begin()
            directory = temporary(session)[0]
            assert directory.stat().st_mode & 0o777 == 0o700
            assert list(directory.iterdir()) == []
            (directory / "left behind").write_text("x")
        dead, stopped, cut = sessions
        assert len({temporary(session)[0] for session in sessions}) == 3
        await dead.lose_agent()
        await stopped.call("task.session.stop")
        await killable.until(lambda: not temporary(dead)[0].exists())
        assert not temporary(stopped)[0].exists()
        await dead.resume()
        assert temporary(dead)[1] != temporary(dead)[0]
        await killable.kill9()
    await killable.start()
    assert not temporary(cut)[0].exists()
    assert not temporary(dead)[1].exists()
    assert [path for path in (killable.home / "run").iterdir() if path.is_dir()] == []


async def test_proc_2_the_same_program_of_somebody_else_is_left_alone(killable: Backend, cast: Cast) -> None:
    """After a kill the agent of this home ends; the same command line, started by somebody else, lives on."""
    async with killable.client() as client:
        session = await cast.conversation(client, ignore_eof=True, ignore_sigterm=True)
        await session.begin()
        ours = session.agent.pids()[-1]
        pipe = asyncio.subprocess.PIPE
        theirs = await asyncio.create_subprocess_exec(*session.agent.command, stdin=pipe, stdout=pipe)
        try:
            await session.agent.until(lambda: theirs.pid in session.agent.pids())
            await killable.kill9()
            await killable.start()
            assert not runs(ours)
            assert runs(theirs.pid)
        finally:
            theirs.kill()
            await theirs.communicate()


async def test_proc_1_a_resume_leaves_no_grandchild_of_the_process_before_it(conversation: Conversations) -> None:
    """A grandchild in a session of its own that ignores SIGTERM outlives its agent, but not the next start."""
    steps = [{"spawn": 300, "setsid": True, "ignore_sigterm": True}, "heard"]
    session = await conversation(on={"session/prompt": {"match": "spawn", "steps": steps}})
    await session.begin()
    await session.say("spawn")
    (grandchild,) = session.agent.spawned()
    assert runs(grandchild)
    await session.lose_agent()
    await session.resume()
    assert not runs(grandchild)
    assert len(session.agent.alive()) == 1
