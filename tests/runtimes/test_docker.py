"""Sessions in containers of a real engine: through kills of the backend, of containers, and of the engine (CONT)."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from runtimes.engine import DockerEngine
from wire_client import CallFailed, Client

SLOW = "slow 40"


class Contained:
    """A session of the demo agent in a container."""

    def __init__(self, backend: Backend, engine: DockerEngine, client: Client, created: Any) -> None:
        self.backend, self.engine, self.client = backend, engine, client
        self.task_id, self.id = created["task"]["id"], created["session"]["id"]

    @classmethod
    async def create(
        cls, backend: Backend, engine: DockerEngine, client: Client, text: str = "remember apple", **more: Any
    ) -> "Contained":
        request = {"agent": "demo", "description": text, "runtime": "docker", "start": False, **more}
        session = cls(backend, engine, client, await client.call("task.create", request))
        await session.follow(client)
        await session.call("task.session.start")
        await session.turn_ended()
        return session

    async def follow(self, client: Client) -> None:
        self.client = client
        await client.call("session.subscribe", {"session_id": self.id})

    async def call(self, action: str, /, **payload: Any) -> Any:
        return await self.client.call(action, {"task_id": self.task_id, "session_id": self.id, **payload})

    async def status(self) -> Any:
        return await self.call("task.session.status")

    async def turn_ended(self) -> Any:
        """Waits until no turn runs and nothing is queued; the last turn."""
        async with asyncio.timeout(60):
            while (status := await self.status())["turn"] or status["queued"] or status["stage"]:
                await asyncio.sleep(0.05)
        return status["last_turn"]

    async def say(self, text: str) -> str:
        """What the agent answers."""
        message = (await self.call("message.add", content=text))["message"]
        await self.turn_ended()
        return await self.answer(message["id"])

    async def answer(self, message_id: str) -> str:
        messages = (await self.client.call("message.list", {"session_id": self.id, "limit": 200}))["messages"]
        turn = next(one["turn_id"] for one in messages if one["id"] == message_id)
        own = [one for one in messages if one["turn_id"] == turn and one["author_type"] == "agent"]
        return "".join(one["content"] for one in own if one["type"] == "message")

    async def notices(self) -> list[str]:
        messages = (await self.client.call("message.list", {"session_id": self.id, "limit": 200}))["messages"]
        return [one["metadata"]["kind"] for one in messages if one["author_type"] == "system"]

    async def begin_slow_turn(self) -> str:
        """Begins a turn of four seconds, and returns once its first chunks are there; the prompt's id."""
        message = (await self.call("message.add", content=SLOW))["message"]
        await self.client.wait_event("session.message.delta", lambda payload: "step" in payload["text"])
        return str(message["id"])

    @property
    def container(self) -> str:
        """The id of its one container."""
        return self.engine.docker("ps", "-aq", "--no-trunc", "--filter", f"label=kandev.session_id={self.id}")


@pytest.fixture
async def backend(tmp_path: Path, engine: DockerEngine) -> AsyncIterator[Backend]:
    """A running backend with that engine; whatever is in it ends with the test."""
    if not engine.answers():
        engine.start()
    config = f'[runtimes.docker]\nimage = "{engine.image}"\nmemory_mb = 256\ncpus = 1.5\nenv = {{ GIVEN = "yes" }}\n'
    environment = {"DOCKER_HOST": engine.url}
    async with Backend(tmp_path, config=config, environment=environment) as made:
        await made.start()
        yield made
        async with made.client() as client:
            for task in (await client.call("task.list", {}))["tasks"]:
                await client.call("task.delete", {"task_id": task["id"], "force": True})
        assert engine.docker("ps", "-aq", "--filter", "label=kandev.managed=true") == ""
        assert list((made.home / "run/docker").glob("*/")) == []


async def test_a_session_runs_in_a_container_of_its_own(backend: Backend, engine: DockerEngine) -> None:
    """With the labels of the contract, limits and environment of the configuration, and `Init`."""
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client)
        assert "apple" in await session.say("what is the word?")
        form = "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.Init}}"
        show = engine.docker("inspect", "-f", form, session.container)
        assert show == f"{256 << 20} 1500000000 true"
        form = "{{range $name, $value := .Config.Labels}}{{$name}}={{$value}} {{end}}"
        labels = engine.docker("inspect", "-f", form, session.container)
        names = {"managed", "home", "session_id", "task_id", "instance_id"}
        assert {word.partition("=")[0] for word in labels.split()} >= {f"kandev.{name}" for name in names}
        assert f"kandev.task_id={session.task_id}" in labels
        assert "GIVEN=yes" in engine.docker("exec", session.container, "env")


async def test_cont_1_a_turn_goes_on_when_the_backend_is_killed(backend: Backend, engine: DockerEngine) -> None:
    """The next backend adopts the running container, and each chunk is stored once."""
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client)
        prompt = await session.begin_slow_turn()
        container = session.container
        await backend.kill9()
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        status = await session.status()
        assert (status["state"], status["is_agent_running"], status["how"]) == ("RUNNING", True, "attached")
        assert (await session.turn_ended())["state"] == "completed"
        said = (await session.answer(prompt)).split()
        assert [word for word in said if word.isdecimal()] == [str(n) for n in range(1, 41)]
        assert await session.notices() == []
        assert session.container == container
        assert "apple" in await session.say("what is the word?")


async def test_cont_1_a_stop_in_order_leaves_the_turn(backend: Backend, engine: DockerEngine) -> None:
    """SIGTERM ends the backend, not the container."""
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client)
        prompt = await session.begin_slow_turn()
    assert await backend.stop() == 0
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        assert (await session.turn_ended())["state"] == "completed"
        said = (await session.answer(prompt)).split()
        assert [word for word in said if word.isdecimal()] == [str(n) for n in range(1, 41)]


async def test_cont_2_a_stopped_container_is_started_again(backend: Backend, engine: DockerEngine) -> None:
    """The same container, the agent in it started anew, its memory from its own store."""
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client)
        container = session.container
        engine.docker("stop", container)
        assert "apple" in await session.say("what is the word?")
        assert session.container == container
        assert (await session.status())["how"] == "native"


async def test_cont_2_a_removed_container_is_replaced(backend: Backend, engine: DockerEngine) -> None:
    """A new one on the same directory, with the token: the agent remembers."""
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client)
        container = session.container
        engine.docker("rm", "-f", container)
        assert "apple" in await session.say("what is the word?")
        assert session.container not in {"", container}
        assert (await session.status())["how"] == "native"


async def test_a_container_killed_in_a_turn_interrupts_it(backend: Backend, engine: DockerEngine) -> None:
    """What it said is kept; the next prompt starts the container again."""
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client)
        await session.begin_slow_turn()
        engine.docker("kill", session.container)
        assert (await session.turn_ended())["state"] == "interrupted"
        assert "apple" in await session.say("what is the word?")


async def test_cont_4_a_turn_goes_on_when_the_engine_is_killed(backend: Backend, engine: DockerEngine) -> None:
    """The socket of agentctl does not depend on the engine; afterwards the engine is back, and all goes on."""
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client)
        prompt = await session.begin_slow_turn()
        engine.kill()
        try:
            assert (await session.turn_ended())["state"] == "completed"
        finally:
            engine.start()
        said = (await session.answer(prompt)).split()
        assert [word for word in said if word.isdecimal()] == [str(n) for n in range(1, 41)]
        assert "apple" in await session.say("what is the word?")


async def test_cont_5_an_engine_that_does_not_answer_leaves_all_unknown(backend: Backend, engine: DockerEngine) -> None:
    """Nothing is ended or deleted; a resume says why, and attaches once the engine is back."""
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client)
        prompt = await session.begin_slow_turn()
        await backend.kill9()
    engine.stop()
    try:
        await backend.start()
        async with backend.client() as client:
            await session.follow(client)
            status = await session.status()
            assert (status["state"], status["is_agent_running"], status["needs_resume"]) == ("RUNNING", False, True)
            with pytest.raises(CallFailed, match="does not answer"):
                await session.call("task.session.resume")
            assert (await session.status())["state"] == "RUNNING"
    finally:
        engine.start()
    async with backend.client() as client:
        await session.follow(client)
        await session.call("task.session.resume")
        assert (await session.turn_ended())["state"] == "completed"
        assert (await session.status())["how"] == "attached"
        said = (await session.answer(prompt)).split()
        assert [word for word in said if word.isdecimal()] == [str(n) for n in range(1, 41)]


async def test_cont_3_containers_of_others_are_left_alone(backend: Backend, engine: DockerEngine) -> None:
    """Not even one that is labelled as managed, of another home, is touched by starts and deletions."""
    labels = ("--label", "kandev.managed=true", "--label", "kandev.home=another", "--label", "kandev.session_id=x")
    other = engine.docker("run", "-d", *labels, engine.image, "sleep", "600")
    try:
        async with backend.client() as client:
            session = await Contained.create(backend, engine, client)
            await session.call("task.session.delete")
        await backend.kill9()
        await backend.start()
        assert engine.docker("inspect", "-f", "{{.State.Running}}", other) == "true"
    finally:
        engine.docker("rm", "-f", other)


WHO = ("-c", "user.name=x", "-c", "user.email=x@x")


def new_repository(path: Path) -> Path:
    git("init", "-q", str(path))
    git(*WHO, "-C", str(path), "commit", "-q", "--allow-empty", "-m", "first")
    return path


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


async def test_git_works_inside_and_hooks_and_config_cannot_be_changed(
    backend: Backend, engine: DockerEngine, tmp_path: Path
) -> None:
    """The worktree and the repository's objects are writable at their own paths; what git would run is not."""
    repository = new_repository(tmp_path / "repository")
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client, repository_path=str(repository))
        worktree = (await session.status())["worktree_path"]
        inside = ("exec", "-w", worktree, session.container)
        engine.docker(*inside, "sh", "-c", "echo text > file && git add file")
        engine.docker(*inside, "git", *WHO, "commit", "-q", "-m", "from inside")
        assert git("-C", worktree, "log", "--format=%s").splitlines() == ["from inside", "first"]
        for path in (repository / ".git/hooks/evil", repository / ".git/config", Path(worktree) / ".git"):
            with pytest.raises(AssertionError, match="Read-only"):
                engine.docker(*inside, "sh", "-c", f"echo x >> {path}")


async def test_runtime_list_says_whether_docker_can_be_used(backend: Backend, engine: DockerEngine) -> None:
    """With the engine's address and what to do."""

    async def problem() -> str:
        async with backend.client() as client:
            listed = {one["name"]: one for one in (await client.call("runtime.list", {}))["runtimes"]}
        assert listed["docker"]["available"] is not bool(listed["docker"]["problem"])
        return str(listed["docker"]["problem"])

    assert await problem() == ""
    engine.stop()
    try:
        assert "does not answer" in await problem()
    finally:
        engine.start()
    await backend.stop()
    backend.config = '[runtimes.docker]\nimage = "not/there:1"\n'
    await backend.start()
    assert "docker pull not/there:1" in await problem()


async def test_cont_5_a_prompt_waits_for_the_engine(backend: Backend, engine: DockerEngine) -> None:
    """It is stored while nobody can be asked, and goes to the same process once a person resumes."""
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client)
        await backend.kill9()
    engine.stop()
    try:
        await backend.start()
        async with backend.client() as client:
            await session.follow(client)
            message = (await session.call("message.add", content="what is the word?"))["message"]
            await client.wait_event("session.resume.failed")
            assert (await session.status())["queued"] == 1
    finally:
        engine.start()
    async with backend.client() as client:
        await session.follow(client)
        await session.call("task.session.resume", open_queue=True)
        await session.turn_ended()
        assert "apple" in await session.answer(message["id"])
        assert (await session.status())["how"] == "attached"


async def test_cont_5_a_fresh_start_ends_what_was_unknown(backend: Backend, engine: DockerEngine) -> None:
    """It is refused while nobody can be asked; then the old agent is ended, and not attached to."""
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client)
        await backend.kill9()
    engine.stop()
    try:
        await backend.start()
        async with backend.client() as client:
            await session.follow(client)
            with pytest.raises(CallFailed, match="does not answer"):
                await session.call("task.session.recover", action="fresh_start")
    finally:
        engine.start()
    async with backend.client() as client:
        await session.follow(client)
        await session.call("task.session.recover", action="fresh_start")
        assert "apple" not in await session.say("what is the word?")
        assert (await session.status())["how"] == "idle"


async def test_cont_4_by_a_port_a_killed_engine_only_delays(engine: DockerEngine, tmp_path: Path) -> None:
    """Where a socket has no room for its path the published port is taken, which is gone with the engine.

    The session is unknown then, not interrupted; the resume after the engine's return looks the port up again.
    """
    if not engine.answers():
        engine.start()
    config = f'[runtimes.docker]\nimage = "{engine.image}"\n'
    async with Backend(tmp_path, config=config, environment={"DOCKER_HOST": engine.url}) as backend:
        top, backend.home = backend.home, backend.home / ("deep" * 20)
        backend.home.mkdir()
        try:
            await backend.start()
            await killed_engine(backend, engine)
        finally:
            await backend.stop()
            backend.home = top


async def killed_engine(backend: Backend, engine: DockerEngine) -> None:
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client)
        prompt = await session.begin_slow_turn()
        engine.kill()
        try:
            await client.wait_event("session.agent_changed", lambda payload: not payload["is_agent_running"])
            assert (await session.status())["state"] == "RUNNING"
        finally:
            engine.start()
        await session.call("task.session.resume")
        assert (await session.turn_ended())["state"] == "completed"
        assert (await session.status())["how"] == "attached"
        said = (await session.answer(prompt)).split()
        assert [word for word in said if word.isdecimal()] == [str(n) for n in range(1, 41)]
        await client.call("task.delete", {"task_id": session.task_id, "force": True})


async def test_crash_3_a_container_whose_start_was_not_stored_is_ended(backend: Backend, engine: DockerEngine) -> None:
    """The backend dies between making the container and storing that; the next start ends it, a resume goes on."""
    await backend.stop()
    backend.environment["KANDEV_FAILPOINT"] = "start.after_instance"
    await backend.start()
    async with backend.client() as client:
        request = {"agent": "demo", "description": "remember apple", "runtime": "docker"}
        created = await client.call("task.create", request)
        await backend.died()
    running = engine.docker("ps", "-q", "--filter", f"label=kandev.session_id={created['session']['id']}")
    assert running
    del backend.environment["KANDEV_FAILPOINT"]
    await backend.start()
    async with backend.client() as client:
        session = Contained(backend, engine, client, created)
        await session.follow(client)
        await session.turn_ended()
        assert "apple" in await session.say("what is the word?")
        assert len(session.container.split()) == 1


async def test_a_paused_container_is_not_attached(backend: Backend, engine: DockerEngine) -> None:
    """Nobody answers in it, so it is removed; the turn is interrupted, and the next prompt makes a new one."""
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client)
        await session.begin_slow_turn()
        await backend.kill9()
    engine.docker("pause", session.container)
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        assert (await session.status())["last_turn"]["state"] == "interrupted"
        assert "apple" in await session.say("what is the word?")


async def test_an_image_that_cannot_run_agentctl_is_told(backend: Backend, engine: DockerEngine) -> None:
    """The start fails with the engine's, or the container's, own words; nothing hangs."""
    without_python = f'image = "{engine.image}"\nenv = {{ PATH = "/nowhere" }}'
    for docker, words in (('image = "not/there:1"', "no image not/there:1"), (without_python, "python3")):
        await backend.stop()
        backend.config = f"[runtimes.docker]\n{docker}\n"
        await backend.start()
        async with backend.client() as client:
            request = {"agent": "demo", "description": "x", "runtime": "docker", "start": False}
            created = await client.call("task.create", request)
            with pytest.raises(CallFailed, match=words):
                await client.call("task.session.start", {"session_id": created["session"]["id"]})
