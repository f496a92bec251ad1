"""Sessions in sandboxes of a Sprites service of our own: through kills, cuts, pauses, cold starts and losses (CONT)."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import pytest

from backend import Backend
from repositories import commit, git
from runtimes.demo_session import ALL, DemoSession, said_to_its_end
from runtimes.fake_sprites import TOKEN, Box, FakeSprites
from stand_ins import Stage, Talk
from wire_client import CallFailed, Client


class Boxed(DemoSession):
    """A session of the demo agent in a sandbox."""

    def __init__(self, sprites: FakeSprites, client: Client, created: Any) -> None:
        super().__init__(client, created)
        self.sprites = sprites

    @classmethod
    async def create(cls, sprites: FakeSprites, client: Client, **more: Any) -> Self:
        session = cls(sprites, client, await cls.task(client, "sprites", **more))
        await session.start()
        return session

    @property
    def name(self) -> str:
        """Of its one sandbox."""
        (name,) = [name for name in self.sprites.boxes if name.endswith(self.id)]
        return name

    @property
    def box(self) -> Box:
        return self.sprites.boxes[self.name]

    @property
    def directory(self) -> Path:
        """Where the agent works."""
        (found,) = [path.parent for path in (self.box.directory / "kandev").glob("*/.git")]
        return found


@pytest.fixture
async def sprites(tmp_path: Path) -> AsyncIterator[FakeSprites]:
    async with FakeSprites(tmp_path / "sprites") as made:
        yield made


@pytest.fixture
async def backend(tmp_path: Path, sprites: FakeSprites) -> AsyncIterator[Backend]:
    """A running backend with that service."""
    config = f'[runtimes.sprites]\nurl = "{sprites.url}"\n'
    async with Backend(tmp_path, config=config, environment={"SPRITES_TOKEN": TOKEN}) as made:
        await made.start()
        yield made


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    commit(path, "file", "one")
    return path


async def test_a_session_runs_in_a_sandbox_of_its_own(backend: Backend, sprites: FakeSprites) -> None:
    """Agentctl is a service there; the sandbox has this home's label, and goes with the session."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client)
        assert "apple" in await session.say("what is the word?")
        assert [one["state"]["status"] for one in session.box.views()] == ["running"]
        assert "kandev" in session.box.labels
        listed = (await client.call("runtime.list", {}))["runtimes"]
        (own,) = [one for one in listed if one["name"] == "sprites"]
        assert (own["available"], own["survives"]) == (True, ["backend_restart", "host_restart"])
        await session.call("task.session.delete")
        assert sprites.boxes == {}


async def test_work_comes_home_after_each_turn(backend: Backend, sprites: FakeSprites, repository: Path) -> None:
    """Sources go in, and what was done there is on the session's branch, what is not committed as such a commit."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client, repository_path=str(repository))
        assert (session.directory / "file").read_text() == "one"
        agents = commit(session.directory, "file", "two")
        (session.directory / "left").write_text("left")
        await session.say("what is the word?")
        here = Path((await session.status())["worktree_path"])
        async with asyncio.timeout(30):
            while not (here / "left").exists():
                await asyncio.sleep(0.05)
        assert git(here, "rev-parse", "HEAD^") == agents
        assert "Kandev-Uncommitted: yes" in git(here, "log", "-1", "--format=%B")
        assert await session.notes() == []


async def test_of_earlier_instances_the_sandbox_keeps_one(backend: Backend, sprites: FakeSprites) -> None:
    """Each start of the agent has a directory there; only that of the one before is left for whoever looks."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client)
        for _ in range(3):
            await session.say("crash")
            assert "apple" in await session.say("what is the word?")
        assert len(list((session.box.directory / "kandev").glob("*/agentctl.json"))) == 2
        assert len(list((backend.home / "run/sprites" / session.id).glob("*/"))) <= 2


async def test_a_copy_that_a_command_makes_is_made_in_the_sandbox(
    backend: Backend, sprites: FakeSprites, tmp_path: Path
) -> None:
    """Amp's threads are on its server: the new session's sandbox copies the other one's, and goes on with the copy."""
    own = backend.config
    stage = Stage(backend, tmp_path / "agents")
    backend.config = own + backend.config
    await backend.restart()
    async with backend.client() as client:
        talk = await Talk.begin(client, "amp", runtime="sprites")
        await talk.ended()
        copy = await talk.fork()
        assert (await copy.say("what?"))["state"] == "completed"
        assert ((await copy.said())[-1], (await copy.status())["how"]) == ("I know apple.", "native")
    assert [start[:2] for start in stage.starts()[1:]] == [["threads", "fork"], ["threads", "continue"]]
    first, *second = [place.parent.parent for place in stage.places()]
    assert {first, *second} == {box.directory for box in sprites.boxes.values()}
    assert len({*second}) == 1


async def test_cont_5_nothing_is_asked_at_a_start_and_a_resume_attaches(backend: Backend, sprites: FakeSprites) -> None:
    """The turn goes on without a backend; the session that is wanted is attached to, and each chunk is stored once."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client)
        prompt = await session.begin_slow_turn()
        await backend.kill9()
    asked = len(sprites.requests)
    await backend.start()
    assert len(sprites.requests) == asked
    async with backend.client() as client:
        await session.follow(client)
        status = await session.status()
        assert (status["state"], status["is_agent_running"], status["needs_resume"]) == ("RUNNING", False, True)
        await session.call("task.session.resume")
        assert (await session.turn_ended())["state"] == "completed"
        assert (await session.status())["how"] == "attached"
        assert await session.counted(prompt) == ALL
        assert "apple" in await session.say("what is the word?")


async def test_a_turn_that_ended_without_a_backend_is_read_from_the_sandbox(
    backend: Backend, sprites: FakeSprites
) -> None:
    """A sandbox that went cold meanwhile has lost its agent and kept its journal."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client)
        prompt = await session.begin_slow_turn()
        await backend.kill9()
    journals = (session.box.directory / "kandev").glob
    await said_to_its_end(lambda: "".join(path.read_text() for path in journals("*/journal/*")))
    await sprites.cool(session.name)
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        await session.call("task.session.resume", wait=True)
        assert (await session.turn_ended())["state"] == "completed"
        assert await session.counted(prompt) == ALL
        assert (await session.status())["how"] == "native"
        assert "apple" in await session.say("what is the word?")


async def test_connections_that_are_cut_lose_nothing(backend: Backend, sprites: FakeSprites) -> None:
    """In the middle of a turn, again and again: each chunk is stored once, and the agent is the same."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client)
        prompt = await session.begin_slow_turn()
        for _ in range(4):
            await session.box.cut()
            await asyncio.sleep(0.3)  # the turn goes on, by a new connection
        assert (await session.turn_ended())["state"] == "completed"
        assert await session.counted(prompt) == ALL
        assert "apple" in await session.say("what is the word?")
        assert await session.notes() == []


async def test_a_paused_sandbox_goes_on(backend: Backend, sprites: FakeSprites) -> None:
    """In a turn it is woken up by us, who read along; the turn loses nothing."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client)
        prompt = await session.begin_slow_turn()
        await sprites.pause(session.name)
        assert (await session.turn_ended())["state"] == "completed"
        assert await session.counted(prompt) == ALL


async def test_a_cold_start_in_a_turn_interrupts_it(backend: Backend, sprites: FakeSprites) -> None:
    """The agent is gone, agentctl is back: what was said is kept, and the next prompt brings the agent back."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client)
        prompt = await session.begin_slow_turn()
        await sprites.cool(session.name)
        assert (await session.turn_ended())["state"] == "interrupted"
        said = await session.counted(prompt)
        assert said == ALL[: len(said)]
        assert said
        assert "apple" in await session.say("what is the word?")


async def test_cont_6_a_sandbox_that_is_gone_is_replaced(
    backend: Backend, sprites: FakeSprites, repository: Path
) -> None:
    """On the same branch, with the work that had come home, and with a warning; the old agent session is lost."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client, repository_path=str(repository))
        (session.directory / "left").write_text("left")
        await session.say("what is the word?")
        here = Path((await session.status())["worktree_path"])
        async with asyncio.timeout(30):
            while not (here / "left").exists():
                await asyncio.sleep(0.05)
        await backend.kill9()
        await sprites.lose(session.name)
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        with pytest.raises(CallFailed, match="Session not found"):
            await session.call("task.session.resume", wait=True)
        assert any("The session's sandbox is gone" in notice for notice in await session.notes())
        assert (session.directory / "left").read_text() == "left"
        assert git(session.directory, "status", "--porcelain") == "?? left"
        assert "hello" in await session.say("hello")


async def test_cont_5_a_service_that_does_not_answer_leaves_all_unknown(backend: Backend, sprites: FakeSprites) -> None:
    """A token that is refused, say: nothing is destroyed, a resume says why, and attaches once it is answered."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client)
        prompt = await session.begin_slow_turn()
        await backend.kill9()
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        sprites.refuse(times=1000, status=401)
        with pytest.raises(CallFailed, match="does not answer"):
            await session.call("task.session.resume")
        assert (await session.status())["state"] == "RUNNING"
        sprites.forgive()
        await session.call("task.session.resume")
        assert (await session.turn_ended())["state"] == "completed"
        assert await session.counted(prompt) == ALL
    assert not [one for one in sprites.requests if one.startswith("DELETE") and one.count("/") == 3]


async def test_cont_6_an_agentctl_that_does_not_answer_is_unknown(backend: Backend, sprites: FakeSprites) -> None:
    """Everything in the sandbox stands still, say: a resume says so and ends nothing, and attaches once it goes on."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client)
        prompt = await session.begin_slow_turn()
        await backend.kill9()
    standing = session.box.pids()
    for pid in standing:
        os.kill(pid, signal.SIGSTOP)
    try:
        await backend.start()
        async with backend.client() as client:
            await session.follow(client)
            with pytest.raises(CallFailed, match="does not answer"):
                await session.call("task.session.resume")
    finally:
        for pid in standing:
            os.kill(pid, signal.SIGCONT)
    async with backend.client() as client:
        await session.follow(client)
        await session.call("task.session.resume")
        assert (await session.turn_ended())["state"] == "completed"
        assert await session.counted(prompt) == ALL


async def test_whoever_is_told_to_come_later_waits_and_says_so(backend: Backend, sprites: FakeSprites) -> None:
    """429 with Retry-After is waited for, also at the creation, and is a stage."""
    sprites.refuse(times=2, after="0.3", path="/v1/sprites")
    sprites.refuse(times=1, after="0.1", path="/fs/write")
    sprites.refuse(times=1, status=503, after="", path="/exec")
    async with backend.client() as client:
        session = await Boxed.create(sprites, client)
        stages = [payload["stage"] for payload in client.seen("session.resume.progress")]
        assert "creating_sandbox" in stages
        assert "waiting_for_sprites" in stages
        assert "apple" in await session.say("what is the word?")


async def test_race_6_a_start_that_waits_for_a_sandbox_can_be_given_up(backend: Backend, sprites: FakeSprites) -> None:
    """The session is stopped at once, although the creation takes its time; what was made is used or goes later."""
    sprites.slow_create_s = 20
    async with backend.client() as client:
        request = {"agent": "demo", "description": "remember apple", "runtime": "sprites", "start": False}
        session = Boxed(sprites, client, await client.call("task.create", request))
        await session.follow(client)
        starting = asyncio.create_task(session.call("task.session.start"))
        await client.wait_event("session.resume.progress", lambda payload: payload["stage"] == "creating_sandbox")
        async with asyncio.timeout(10):
            await session.call("task.session.stop")
        await asyncio.wait([starting])
        assert isinstance(starting.exception(), CallFailed)
        assert (await session.status())["state"] == "CANCELLED"


async def test_a_session_stopped_after_a_restart_leaves_no_agent(backend: Backend, sprites: FakeSprites) -> None:
    """Its agent, which nobody had asked for since, is ended in its sandbox; that stays, and a recovery uses it."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client)
        await session.begin_slow_turn("slow 600")
        await backend.kill9()
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        assert len(session.box.pids()) >= 2
        await session.call("task.session.stop")
        assert session.box.pids() == []
        status = await session.status()
        assert (status["state"], status["last_turn"]["state"]) == ("CANCELLED", "interrupted")
        await session.call("task.session.recover", action="resume")
        assert "apple" in await session.say("what is the word?")


async def test_a_deleted_session_takes_its_sandbox_along_later(backend: Backend, sprites: FakeSprites) -> None:
    """Where the service does not answer, the next start asks again."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client)
        sprites.refuse(times=1000, status=401)
        await session.call("task.session.delete")
        assert len(sprites.boxes) == 1
    sprites.forgive()
    await backend.restart()
    assert sprites.boxes == {}


async def test_tok_9_the_token_is_stored_nowhere(backend: Backend, sprites: FakeSprites) -> None:
    """Neither in the home nor in a log, also after errors; agents do not get it."""
    async with backend.client() as client:
        session = await Boxed.create(sprites, client)
        sprites.refuse(times=3, status=500, after="0.05")
        await session.box.cut()
        await session.say("what is the word?")
        found = [path for path in session.box.directory.rglob("*") if path.is_file() and TOKEN in _text(path)]
        assert found == []
        assert TOKEN not in "".join((Path("/proc") / str(pid) / "environ").read_text() for pid in session.box.pids())
    await backend.stop()
    found = [path for path in backend.home.rglob("*") if path.is_file() and TOKEN in _text(path)]
    assert found == []
    assert TOKEN not in backend.log.read_text()


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")
