"""Cancel, stop, complete, delete, the backend's own end: they work, are carried out after a kill, leave nothing."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from conversation import Cast, Conversation, Conversations
from wire_client import CallFailed

HANGS: dict[str, Any] = {"match": "hang", "steps": [{"text": "so far "}, "hang"]}
STUBBORN: dict[str, Any] = {"ignore_eof": True, "ignore_sigterm": True}
GRACE = {"KANDEV__TIMING__STOP_GRACE_S": "1", "KANDEV__TIMING__CANCEL_FORCE_S": "1"}


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """One agent for each test here, and some more."""
    return Cast(tmp_path_factory.mktemp("cast"), each=32)


@pytest.fixture
async def short(tmp_path: Path, cast: Cast) -> AsyncIterator[Backend]:
    """A running backend of one test, whose agents get little grace."""
    async with Backend(tmp_path, config=cast.config, environment=GRACE) as backend:
        await backend.start()
        yield backend


def repository_in(directory: Path) -> Path:
    """A git repository with one commit."""
    directory.mkdir(parents=True)
    git(directory, "init", "-q", "-b", "main")
    (directory / "file.txt").write_text("committed\n")
    git(directory, "add", ".")
    git(directory, "-c", "user.name=T", "-c", "user.email=t@example.com", "commit", "-q", "-m", "first")
    return directory


def git(directory: Path, *arguments: str) -> str:
    """What git says."""
    done = subprocess.run(["git", "-C", str(directory), *arguments], check=True, capture_output=True, text=True)
    return done.stdout


async def refused(session: Conversation, request: str, **payload: Any) -> tuple[str, str]:
    """The code and the reason with which an action is refused."""
    with pytest.raises(CallFailed) as error:
        await session.call(request, **payload)
    return error.value.code, error.value.reason


# Cancel


async def in_a_turn(session: Conversation, text: str = "hang") -> None:
    """Brings the session into a turn that has said something."""
    await session.begin()
    await session.send(text)
    await session.event("session.message.delta", text="so far ")


async def test_state_11_a_cancel_ends_the_turn(conversation: Conversations) -> None:
    """An agent that listens ends its turn; it lives on, and its session waits."""
    session = await conversation(on={"session/prompt": HANGS})
    await in_a_turn(session)
    await session.act("task.session.cancel")
    turn = await session.turn_ended()
    assert (turn["state"], turn["stop_reason"]) == ("cancelled", "cancelled")
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
    assert (await session.texts("agent"))[-1] == "so far "
    await session.say("on")
    assert len(session.agent.pids()) == 1


async def test_state_11_a_deaf_agent_is_ended_by_force(conversation: Conversations) -> None:
    """No answer to the cancel: after CANCEL_FORCE_S its process is ended, the turn is cancelled, the next resumes."""
    session = await conversation(on={"session/prompt": HANGS}, ignore_cancel=True, **STUBBORN)
    await in_a_turn(session)
    await session.act("task.session.cancel")
    assert (await session.turn_ended())["state"] == "cancelled"
    assert len(session.agent.requests("session/cancel")) == 1
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
    assert "by force" in (await session.transcript())[-1]["content"]
    await session.say("on")
    assert (await session.texts("agent"))[-1] == "heard: on | memory: 2"
    assert len(session.agent.alive()) == 1


@pytest.mark.parametrize("how", ["stopped", "closed stdin"])
async def test_state_11_an_agent_that_cannot_hear_is_ended_by_force(conversation: Conversations, how: str) -> None:
    """A process that stands still, or that closed its stdin, takes no cancel; its turn ends all the same."""
    steps = [{"text": "so far "}, *(["close_stdin"] if how == "closed stdin" else []), "hang"]
    session = await conversation(on={"session/prompt": {"match": "hang", "steps": steps}}, ignore_cancel=True)
    await in_a_turn(session)
    if how == "stopped":
        os.kill(session.agent.pids()[-1], signal.SIGSTOP)
    session.forget()
    for _ in range(2):  # a read that stood in the closed stdin still takes one line
        await session.call("task.session.cancel")
    assert (await session.turn_ended())["state"] == "cancelled"
    await session.agent.until(lambda: session.agent.alive() == [])


async def test_state_11_ten_cancels_are_one(conversation: Conversations) -> None:
    """However often it is pressed: the turn ends once, and the agent that listened is not ended for it."""
    session = await conversation(on={"session/prompt": HANGS})
    await in_a_turn(session)
    session.forget()
    for _ in range(5):
        await session.call("task.session.cancel")
    await session.turn_ended()
    for _ in range(5):
        await session.call("task.session.cancel")
    await session.say("on")
    assert len(session.agent.pids()) == 1
    assert len(session.seen("session.turn.completed")) == 1


async def test_state_11_silence_in_a_turn_is_told(tmp_path: Path, cast: Cast) -> None:
    """Once for each silence, with the turn; the next word ends it; waiting for a person's permission is no silence."""
    async with Backend(tmp_path, config=cast.config, environment={"KANDEV__TIMING__STALL_NOTICE_S": "0.5"}) as backend:
        await backend.start()
        async with backend.client() as client:
            asking = {"match": "ask", "steps": [{"permission": "May I?"}]}
            waiting = await cast.conversation(client, on={"session/prompt": asking}, description="ask")
            await waiting.act("task.session.start")
            await waiting.event("permission.requested")
            steps = [{"text": "one"}, {"gate": "one"}, {"text": "two"}, {"gate": "two"}]
            session = await cast.conversation(client, on={"session/prompt": {"match": "slow", "steps": steps}})
            await session.begin()
            assert (await session.status())["stalled_s"] == 0
            await session.send("slow")
            stalled = await session.event("session.turn.stalled")
            assert stalled["turn_id"] == (await session.status())["turn"]["id"]
            assert stalled["silent_s"] >= 0.5
            assert (await session.status())["stalled_s"] >= 0.5
            session.forget()
            session.agent.open_gate("one")
            await session.event("session.message.delta", text="two")
            assert (await session.status())["stalled_s"] == 0
            await session.event("session.turn.stalled")
            assert len(session.seen("session.turn.stalled")) == 1
            assert waiting.seen("session.turn.stalled") == []
            assert (await waiting.status())["stalled_s"] == 0


# Stop


async def test_a_stopped_session_leaves_no_process_and_comes_back(conversation: Conversations) -> None:
    """CANCELLED, the task in review, no prompt taken; `recover` brings it back with its memory."""
    session = await conversation(on={"session/prompt": HANGS})
    await in_a_turn(session)
    stopped = await session.act("task.session.stop")
    assert stopped["session"]["state"] == "CANCELLED"
    assert session.agent.alive() == []
    assert await session.states() == ("CANCELLED", "REVIEW")
    assert await refused(session, "message.add", content="more") == ("CONFLICT", "session_ended")
    assert await refused(session, "task.session.resume") == ("CONFLICT", "session_ended")
    assert (await session.recover("resume"))["how"] == "native"
    await session.say("again")
    assert (await session.texts("agent"))[-1] == "heard: again | memory: 2"


async def test_proc_1_a_stop_ends_the_whole_tree(short: Backend, cast: Cast) -> None:
    """Grandchildren that ignore SIGTERM, or left the process group, end too, and so does an agent that ignores all."""
    spawns = [{"spawn": 300, "ignore_sigterm": True}, {"spawn": 300, "ignore_sigterm": True, "setsid": True}]
    async with short.client() as client:
        session = await cast.conversation(client, on={"session/prompt": {"steps": [*spawns, "heard"]}}, **STUBBORN)
        await session.begin()
        assert len(session.agent.alive()) == 3
        await session.call("task.session.stop")
        assert session.agent.alive() == []
        assert len(session.agent.events("eof")) == 1
        assert len(session.agent.events("sigterm")) == 1


async def test_race_7_a_session_that_starts_is_stopped_at_once(conversation: Conversations) -> None:
    """A stop does not wait for an agent that does not come up, and leaves no process."""
    session = await conversation(start=[{"mark": "up"}, {"gate": "never"}], **STUBBORN)
    await session.act("task.session.start")
    await session.agent.until(session.agent.marks)
    stopped = await session.call("task.session.stop")
    assert stopped["session"]["state"] == "CANCELLED"
    assert session.agent.alive() == []
    assert await session.queue() == (["first"], "stopped")


# Complete


async def test_a_completed_task_is_final(conversation: Conversations) -> None:
    """All its sessions are COMPLETED, their agents end, nothing brings them back, the transcript stays."""
    session = await conversation()
    await session.begin()
    done = await session.act("task.complete")
    assert done["task"]["state"] == "COMPLETED"
    assert session.agent.alive() == []
    assert await session.states() == ("COMPLETED", "COMPLETED")
    for action, payload in (
        ("message.add", {"content": "more"}),
        ("task.session.resume", {}),
        ("task.session.recover", {"action": "resume"}),
        ("task.session.stop", {}),
        ("task.session.create", {}),
    ):
        assert await refused(session, action, **payload) == ("CONFLICT", "session_completed")
    assert await session.texts("user") == ["first"]


# Delete


async def deleted(session: Conversation) -> bool:
    """Whether the session is gone."""
    try:
        await session.call("task.session.get")
    except CallFailed as error:
        return error.code == "NOT_FOUND"
    return False


async def test_a_deleted_session_is_gone_with_what_was_its_own(stage: Backend, conversation: Conversations) -> None:
    """Agent, messages, history file and directory; its task stays, with its other sessions."""
    session = await conversation("history")
    await session.begin()
    history = stage.home / "sessions" / f"{session.id}.jsonl"
    assert history.exists()
    await session.act("task.session.delete")
    await session.event("task.updated", new_state="DELETED")
    assert session.agent.alive() == []
    assert not history.exists()
    assert await deleted(session)
    assert await refused(session, "message.list") == ("NOT_FOUND", "")
    assert (await session.call("task.get"))["sessions"] == []


async def test_work_4_uncommitted_changes_stop_a_delete(
    tmp_path: Path, stage: Backend, conversation: Conversations
) -> None:
    """The answer says so, nothing is removed and nothing ends; forced, the directory goes and the branch stays."""
    repository = repository_in(tmp_path / "repository")
    session = await conversation(task={"repository_path": str(repository)})
    await session.begin()
    status = await session.status()
    worktree, branch = Path(status["worktree_path"]), status["worktree_branch"]
    (worktree / "file.txt").write_text("changed\n")
    assert await refused(session, "task.delete") == ("CONFLICT", "uncommitted_changes")
    assert await refused(session, "task.session.delete") == ("CONFLICT", "uncommitted_changes")
    assert (worktree / "file.txt").read_text() == "changed\n"
    assert len(session.agent.alive()) == 1
    await session.say("second")
    await session.act("task.delete", force=True)
    await session.event("task.deleted")
    assert not worktree.exists()
    assert branch in git(repository, "branch", "--list", branch)
    assert await refused(session, "task.get") == ("NOT_FOUND", "")


async def test_state_9_what_is_gone_already_does_not_stop_a_delete(
    tmp_path: Path, stage: Backend, conversation: Conversations
) -> None:
    """The agent was killed, the worktree removed by hand, the repository too: the session is deleted."""
    import shutil

    repository = repository_in(tmp_path / "repository")
    session = await conversation(task={"repository_path": str(repository)})
    await session.begin()
    await session.lose_agent()
    shutil.rmtree((await session.status())["worktree_path"])
    shutil.rmtree(repository)
    await session.call("task.session.delete")
    assert await deleted(session)
    await session.call("task.delete")


# Killed in the middle of it


async def stop_is_carried_out(session: Conversation) -> None:
    """CANCELLED, and the queue is held."""
    assert await session.states() == ("CANCELLED", "REVIEW")


async def complete_is_carried_out(session: Conversation) -> None:
    """COMPLETED, both."""
    assert await session.states() == ("COMPLETED", "COMPLETED")


async def session_delete_is_carried_out(session: Conversation) -> None:
    """The session is gone, the task is there."""
    assert await deleted(session)
    assert (await session.call("task.get"))["sessions"] == []


async def task_delete_is_carried_out(session: Conversation) -> None:
    """Everything is gone."""
    assert await refused(session, "task.get") == ("NOT_FOUND", "")


@pytest.mark.parametrize(
    ("action", "carried_out"),
    [
        ("task.session.stop", stop_is_carried_out),
        ("task.complete", complete_is_carried_out),
        ("task.session.delete", session_delete_is_carried_out),
        ("task.delete", task_delete_is_carried_out),
    ],
)
async def test_crash_13_an_intention_is_carried_out_after_a_kill(
    killable: Backend, cast: Cast, action: str, carried_out: Callable[[Conversation], Any]
) -> None:
    """The backend is killed while it waits for the agent's end: the next one finishes what was asked for."""
    import asyncio

    async with killable.client() as client:
        session = await cast.conversation(client, **STUBBORN)
        await session.begin()
        asking = asyncio.create_task(session.call(action))
        await session.agent.until(lambda: session.agent.events("eof"))
        await killable.kill9()
        with pytest.raises(ConnectionError):
            await asking
    await killable.start()
    assert session.agent.alive() == []
    async with killable.client() as client:
        session.client = client
        await carried_out(session)


# The backend's own end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_proc_4_the_backend_ends_in_order(killable: Backend, cast: Cast, number: signal.Signals) -> None:
    """Ctrl-C reaches the backend's whole process group: agents end by the end of their stdin, not by the signal."""
    async with killable.client() as client:
        session = await cast.conversation(client)
        idle = await cast.conversation(client)
        for one in (session, idle):
            await one.begin()
        os.killpg(killable.pid, number)
        assert await killable.stop() == 0
    for one in (session, idle):
        assert len(one.agent.events("eof")) == 1
        assert one.agent.events("sigterm") == []
        assert one.agent.alive() == []
    assert not (killable.home / "server.json").exists()
    assert killable.processes() == {}
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        await session.say("second")
        assert (await session.texts("agent"))[-1] == "heard: second | memory: 1"


async def test_a_stop_of_the_backend_in_a_turn_is_told(short: Backend, cast: Cast) -> None:
    """Turns are interrupted and say why; an agent that ignores everything is killed after its grace; all is stored."""
    async with short.client() as client:
        session = await cast.conversation(client, on={"session/prompt": HANGS}, **STUBBORN)
        await in_a_turn(session)
        await session.call("message.add", content="queued")
        starting = await cast.conversation(client, start=[{"mark": "up"}, {"gate": "never"}], **STUBBORN)
        await starting.act("task.session.start")
        await starting.agent.until(starting.agent.marks)
        assert await short.stop() == 0
    assert session.agent.alive() == starting.agent.alive() == []
    assert short.processes() == {}
    await short.start()
    async with short.client() as client:
        await session.follow(client)
        assert "backend was stopped" in (await session.notice("interrupted"))["content"]
        assert await session.queue() == (["queued"], "interrupted")
        await starting.follow(client)
        assert (await starting.queue())[0] == ["first"]
