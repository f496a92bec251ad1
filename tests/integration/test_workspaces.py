"""A session's directory that changed while nobody looked: what a resume does about it (WORK), on a real repository."""

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from conversation import Cast, Conversation, Conversations
from wire_client import CallFailed


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """One agent for each test here, and some more."""
    return Cast(tmp_path_factory.mktemp("cast"), each=16)


def git(directory: Path, *arguments: str) -> str:
    """What git says."""
    done = subprocess.run(["git", "-C", str(directory), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with one commit."""
    path = tmp_path / "repository"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    (path / "file.txt").write_text("committed\n")
    git(path, "add", ".")
    git(path, "-c", "user.name=T", "-c", "user.email=t@example.com", "commit", "-q", "-m", "first")
    return path


async def dormant(conversation: Conversations, repository: Path) -> tuple[Conversation, Path]:
    """A session in a worktree of the repository that has had a turn, without its agent; and the worktree."""
    session = await conversation(task={"repository_path": str(repository)})
    await session.begin()
    await session.lose_agent()
    return session, Path((await session.status())["worktree_path"])


def directories(session: Conversation) -> list[str]:
    """Where each process of the agent was started."""
    return [entry["cwd"] for entry in session.agent.events("start")]


async def refusal(session: Conversation) -> Any:
    """The error of a resume that is refused."""
    with pytest.raises(CallFailed) as error:
        await session.act("task.session.resume")
    return error.value


async def test_work_1_a_lost_directory_comes_back_and_the_resume_goes_on(
    conversation: Conversations, repository: Path
) -> None:
    """Rebuilt at the same path from its branch, with what was committed there; the agent has its memory; it is said."""
    session, worktree = await dormant(conversation, repository)
    (worktree / "work.txt").write_text("the agent's\n")
    git(worktree, "add", ".")
    git(worktree, "-c", "user.name=T", "-c", "user.email=t@example.com", "commit", "-q", "-m", "work")
    shutil.rmtree(worktree)
    assert (await session.resume())["how"] == "native"
    assert (worktree / "work.txt").read_text() == "the agent's\n"
    notice = await session.notice("workspace")
    assert str(worktree) in notice["content"]
    await session.say("second")
    assert (await session.texts("agent"))[-1] == "heard: second | memory: 1"
    assert directories(session) == [str(worktree)] * 2
    session.agent.kill()


async def test_work_2_without_directory_and_branch_nothing_starts_and_all_is_kept(
    conversation: Conversations, repository: Path
) -> None:
    """workspace_missing; the transcript stays, the branch given back brings it back, and it could have been deleted."""
    session, worktree = await dormant(conversation, repository)
    branch = (await session.status())["worktree_branch"]
    kept = git(repository, "rev-parse", branch)
    before = await session.texts("agent")
    shutil.rmtree(worktree)
    git(repository, "worktree", "prune")
    git(repository, "branch", "-q", "-D", branch)
    assert (await refusal(session)).reason == "workspace_missing"
    assert await session.texts("agent") == before
    assert len(session.agent.pids()) == 1
    assert not worktree.exists()
    git(repository, "branch", branch, kept)
    assert (await recovered(session)) == "native"
    session.agent.kill()


async def recovered(session: Conversation) -> Any:
    """How a session came back that may be FAILED."""
    await session.act("task.session.recover", action="resume")
    return (await session.event("session.resume.completed"))["how"]


async def test_work_2_a_session_without_a_workspace_can_be_deleted(
    conversation: Conversations, repository: Path
) -> None:
    """Neither directory, nor branch, nor repository: nothing stands in the way."""
    session, worktree = await dormant(conversation, repository)
    shutil.rmtree(worktree)
    shutil.rmtree(repository)
    assert (await refusal(session)).reason == "workspace_missing"
    await session.act("task.delete")
    await session.event("task.deleted")


@pytest.mark.parametrize("instead", ["a file", "another repository"])
async def test_work_3_what_stands_there_instead_is_not_touched(
    conversation: Conversations, repository: Path, instead: str
) -> None:
    """A typed error, no process, and whatever is there stays byte for byte."""
    session, worktree = await dormant(conversation, repository)
    shutil.rmtree(worktree)
    if instead == "a file":
        worktree.write_text("somebody's\n")
    else:
        worktree.mkdir()
        git(worktree, "init", "-q")
        (worktree / "theirs.txt").write_text("somebody's\n")
    assert (await refusal(session)).reason == "workspace_missing"
    assert len(session.agent.pids()) == 1
    kept = worktree if instead == "a file" else worktree / "theirs.txt"
    assert kept.read_text() == "somebody's\n"


async def test_work_4_a_resume_keeps_uncommitted_changes(conversation: Conversations, repository: Path) -> None:
    """Changed, new and removed files are as the agent left them, after a death and a resume."""
    session, worktree = await dormant(conversation, repository)
    (worktree / "file.txt").unlink()
    (worktree / "new.txt").write_text("new\n")
    await session.resume()
    assert (worktree / "new.txt").read_text() == "new\n"
    assert not (worktree / "file.txt").exists()
    session.agent.kill()


async def test_work_5_every_process_starts_in_the_sessions_own_directory(
    tmp_path: Path, conversation: Conversations, repository: Path
) -> None:
    """Also behind a link in its place: a directory that now leads elsewhere is not the session's."""
    session, worktree = await dormant(conversation, repository)
    await session.resume()
    await session.lose_agent()
    assert directories(session) == [str(worktree)] * 2
    elsewhere = tmp_path / "elsewhere"
    shutil.move(worktree, elsewhere)
    worktree.symlink_to(elsewhere)
    assert (await refusal(session)).reason == "workspace_missing"
    assert directories(session) == [str(worktree)] * 2


async def test_crash_2_and_work_6_a_backend_killed_while_git_works_makes_the_worktree_again(
    killable: Backend, cast: Cast, repository: Path, tmp_path: Path
) -> None:
    """Git stands in a hook when the backend dies; the next start ends up with one worktree on the stored branch."""
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    gate = tmp_path / "gate"
    hook.write_text(f"#!/bin/sh\ntouch {gate}.reached\nwhile [ ! -e {gate} ]; do sleep 0.02; done\n")
    hook.chmod(0o755)
    async with killable.client() as client:
        session = await cast.conversation(client, task={"repository_path": str(repository)})
        starting = asyncio.create_task(session.call("task.session.start"))
        await killable.until(Path(f"{gate}.reached").exists)
        await killable.kill9()
        with pytest.raises(ConnectionError):
            await starting
    gate.touch()
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        await session.call("message.queue.resume")
        await session.send("second")
        # The first prompt may have been served before anybody looked, so no event tells that both were.
        await session.agent.until(lambda: len(session.agent.prompts()) == 2)
        status = await session.status()
    worktree = Path(status["worktree_path"])
    assert (worktree / "file.txt").read_text() == "committed\n"
    assert git(worktree, "branch", "--show-current") == status["worktree_branch"]
    assert session.agent.prompts() == ["first", "second"]
    assert set(directories(session)) == {str(worktree)}
