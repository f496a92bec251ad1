"""Sessions in containers of an engine on another host: through kills, cuts, a reboot, losses (CONT)."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from repositories import commit, git
from runtimes.contained import Contained, doctor, leave_container
from runtimes.demo_session import ALL, said_to_its_end
from runtimes.far_host import FarHost
from wire_client import CallFailed, Client


class Far(Contained):
    """A session of the demo agent on the second host."""

    @classmethod
    async def begin(cls, backend: Backend, far: FarHost, client: Client, **more: Any) -> "Far":
        return await cls.create(backend, far, client, runtime="remote_docker", **more)

    async def here(self) -> Path:
        """The session's directory on this machine."""
        return Path((await self.status())["worktree_path"])

    async def inside(self, *command: str) -> str:
        """What a program printed that ran in the session's directory there."""
        directory = f"/kandev/{(await self.here()).name}"
        return await asyncio.to_thread(self.engine.docker, "exec", "-w", directory, self.container, *command)

    async def came_home(self, name: str) -> Path:
        """Waits for a file that the agent made."""
        file = await self.here() / name
        async with asyncio.timeout(30):
            while not file.exists():
                await asyncio.sleep(0.05)
        return file


def by_ssh(far: FarHost) -> str:
    return (
        f'[runtimes.remote_docker]\nhost = "{far.ssh_url}"\nimage = "{far.image}"\nmemory_mb = 256\n'
        f'identity_file = "{far.identity}"\nknown_hosts = "{far.known_hosts}"\n'
    )


def by_tls(far: FarHost) -> str:
    return f'[runtimes.remote_docker]\nhost = "{far.tls_url}"\nimage = "{far.image}"\ntls_directory = "{far.tls}"\n'


def without_network(far: FarHost) -> str:
    return by_ssh(far) + 'network = "none"\n'


@contextlib.asynccontextmanager
async def serving(directory: Path, config: str, **environment: str) -> AsyncIterator[Backend]:
    async with Backend(directory, config=config, environment=environment) as made:
        await made.start()
        yield made


@pytest.fixture
async def backend(tmp_path: Path, far: FarHost) -> AsyncIterator[Backend]:
    """A running backend that reaches the second host by SSH."""
    async with serving(tmp_path, by_ssh(far)) as made:
        yield made


@pytest.fixture
async def impatient(tmp_path: Path, far: FarHost) -> AsyncIterator[Backend]:
    """One that soon gives up to wait for a host."""
    async with serving(tmp_path, by_ssh(far), KANDEV__TIMING__REACH_S="5") as made:
        yield made


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    commit(path, "file", "one")
    return path


async def test_a_session_runs_on_another_host(backend: Backend, far: FarHost, repository: Path) -> None:
    """Sources go in, work comes home after a turn, and container and volume go with the session."""
    async with backend.client() as client:
        session = await Far.begin(backend, far, client, repository_path=str(repository))
        assert "creating_container" in session.stages()
        assert await session.inside("cat", "file") == "one"
        await session.inside("sh", "-c", "echo two > left")
        assert "apple" in await session.say("what is the word?")
        assert (await session.came_home("left")).read_text() == "two\n"
        (own,) = [one for one in (await client.call("runtime.list", {}))["runtimes"] if one["name"] == "remote_docker"]
        assert (own["available"], own["survives"]) == (True, ["backend_restart", "host_restart"])
        assert await session.notices() == []
        await session.call("task.session.delete")
        assert far.docker("ps", "-aq") == far.docker("volume", "ls", "-q") == ""


async def test_a_container_runs_as_another_user_there(tmp_path: Path, far: FarHost, repository: Path) -> None:
    """Everything in the volume is that one's, the sources too; the work comes home all the same."""
    async with serving(tmp_path, by_ssh(far) + 'user = "65534:65534"\n') as backend, backend.client() as client:
        session = await Far.begin(backend, far, client, repository_path=str(repository))
        await session.inside("sh", "-c", "echo two > left")
        assert "65534 65534" in await session.inside("ls", "-ln", "file")
        assert "apple" in await session.say("what is the word?")
        assert (await session.came_home("left")).read_text() == "two\n"
        far.docker("stop", session.container)
        assert "apple" in await session.say("what is the word?")
        assert session.stages().count("starting_container") == 1


async def test_doctor_finds_what_sessions_left_on_the_other_host(backend: Backend, far: FarHost) -> None:
    """Container and volume; the session that is there keeps its own. A host that is out of reach is a line."""
    async with backend.client() as client:
        session = await Far.begin(backend, far, client)
        name = leave_container(session)
        stray, fine = await doctor(backend, "--fix")
        assert f"remote_docker: container and volume {name} of this home; no session names" in stray["text"]
        assert stray["fixed"]
        assert "remote_docker: 1 containers" in fine["text"]
        assert far.docker("ps", "-aq", "--filter", f"name={name}") == ""
        assert name not in far.docker("volume", "ls", "-q").split()
        assert len(await doctor(backend)) == 1
        assert "apple" in await session.say("what is the word?")
        far.link_down()
        (line,) = await doctor(backend)
        assert (line["level"], line["can_fix"]) == ("note", False)


def connections(far: FarHost) -> int:
    """How many SSH connections the host has accepted so far."""
    return (far.far / "sshd.log").read_text().count("Accepted publickey")


@pytest.mark.parametrize("way", [by_ssh, by_tls, without_network])
async def test_cont_5_a_killed_backend_asks_nobody_and_a_resume_attaches(
    tmp_path: Path, far: FarHost, way: Any
) -> None:
    """The turn goes on without a backend; the session that is wanted is attached to, and each chunk is stored once."""
    async with serving(tmp_path, way(far)) as backend:
        async with backend.client() as client:
            session = await Far.begin(backend, far, client)
            prompt = await session.begin_slow_turn()
            await backend.kill9()
        asked = connections(far)
        await backend.start()
        async with backend.client() as client:
            await session.follow(client)
            status = await session.status()
            assert (status["state"], status["is_agent_running"], status["needs_resume"]) == ("RUNNING", False, True)
            assert connections(far) == asked
            await session.call("task.session.resume")
            assert (await session.turn_ended())["state"] == "completed"
            assert (await session.status())["how"] == "attached"
            assert await session.counted(prompt) == ALL
            assert "apple" in await session.say("what is the word?")


async def test_connections_that_are_cut_lose_nothing(backend: Backend, far: FarHost) -> None:
    """The server's process of the SSH connection is killed in a turn, again and again; the agent is the same."""
    async with backend.client() as client:
        session = await Far.begin(backend, far, client)
        prompt = await session.begin_slow_turn()
        for _ in range(3):
            for pid in session_processes():
                os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.7)  # the turn goes on, by a new connection
        assert (await session.turn_ended())["state"] == "completed"
        assert await session.counted(prompt) == ALL
        assert "apple" in await session.say("what is the word?")
        assert await session.notices() == []


def session_processes() -> list[int]:
    """The processes that the second host's sshd has for its connections."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(b"sshd: root"):
                found.append(int(path.parent.name))
    return found


async def test_cont_5_a_link_that_is_down_for_a_while_loses_nothing(backend: Backend, far: FarHost) -> None:
    """Long enough for the connection to count as lost: the turn goes on there, and is read when the link is back."""
    async with backend.client() as client:
        session = await Far.begin(backend, far, client)
        prompt = await session.begin_slow_turn()
        far.link_down()
        await asyncio.sleep(25)  # the link is down for longer than keepalives take to notice: 15 to 20 s
        assert (await session.status())["turn"] is not None
        far.link_up()
        assert (await session.turn_ended())["state"] == "completed"
        assert await session.counted(prompt) == ALL
        assert "apple" in await session.say("what is the word?")


async def test_cont_5_a_resume_while_the_link_is_down_ends_nothing(backend: Backend, far: FarHost) -> None:
    """It says why; the same agent goes on, and once the link is back the next one finds it."""
    async with backend.client() as client:
        session = await Far.begin(backend, far, client)
        prompt = await session.begin_slow_turn()
        far.link_down()
        async with asyncio.timeout(60):
            while (await session.status())["is_agent_running"]:
                await asyncio.sleep(0.2)
        with pytest.raises(CallFailed, match="does not answer"):
            await session.call("task.session.resume")
        assert (await session.status())["state"] == "RUNNING"
        far.link_up()
        await session.call("task.session.resume")
        assert (await session.turn_ended())["state"] == "completed"
        assert await session.counted(prompt) == ALL
        assert await session.notices() == ["unreachable"]


async def test_cont_5_a_link_that_is_down_for_longer_loses_nothing_either(impatient: Backend, far: FarHost) -> None:
    """Nobody waits any more; the turn stays open, and is read on once the link is back, without anybody's doing."""
    async with impatient.client() as client:
        session = await Far.begin(impatient, far, client)
        prompt = await session.begin_slow_turn()
        far.link_down()
        await asyncio.sleep(35)  # the same, and then for longer than `reach_s` with pauses
        status = await session.status()
        assert (status["state"], status["turn"] is not None) == ("RUNNING", True)
        far.link_up()
        assert (await session.turn_ended())["state"] == "completed"
        assert await session.counted(prompt) == ALL
        assert "apple" in await session.say("what is the word?")


async def test_cont_5_a_host_that_stays_off_is_unknown(impatient: Backend, far: FarHost) -> None:
    """After a while nobody waits for it any more; nothing is ended, and a resume after its start brings all back."""
    async with impatient.client() as client:
        session = await Far.begin(impatient, far, client)
        prompt, before = await session.begin_slow_turn(), session.container
        far.power_off()
        try:
            await client.wait_event("session.agent_changed", lambda payload: not payload["is_agent_running"])
            assert (await session.status())["state"] == "RUNNING"
        finally:
            far.start()
        await session.call("task.session.resume", wait=True)
        said = await session.counted(prompt)
        assert said == ALL[: len(said)]
        assert (await session.status())["how"] == "native"
        assert "apple" in await session.say("what is the word?")
        assert session.container == before


async def test_cont_5_a_host_that_cannot_be_reached_is_unknown(backend: Backend, far: FarHost) -> None:
    """Nothing is deleted or ended; a resume says why, and attaches once the host is back."""
    async with backend.client() as client:
        session = await Far.begin(backend, far, client)
        prompt = await session.begin_slow_turn()
        await backend.kill9()
    far.link_down()
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        with pytest.raises(CallFailed, match="cannot be reached by SSH"):
            await session.call("task.session.resume")
        assert (await session.status())["state"] == "RUNNING"
        far.link_up()
        await session.call("task.session.resume")
        assert (await session.turn_ended())["state"] == "completed"
        assert await session.counted(prompt) == ALL


async def test_cont_5_an_agent_that_does_not_answer_is_unknown(backend: Backend, far: FarHost) -> None:
    """Its container is paused, say: a resume says so and ends nothing, and attaches once it goes on."""
    async with backend.client() as client:
        session = await Far.begin(backend, far, client)
        prompt = await session.begin_slow_turn()
        await backend.kill9()
    far.docker("pause", session.container)
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        try:
            with pytest.raises(CallFailed, match="does not answer"):
                await session.call("task.session.resume")
        finally:
            far.docker("unpause", session.container)
        await session.call("task.session.resume")
        assert (await session.turn_ended())["state"] == "completed"
        assert (await session.status())["how"] == "attached"
        assert await session.counted(prompt) == ALL


async def test_a_host_that_was_switched_off_in_a_turn(backend: Backend, far: FarHost) -> None:
    """What was said is kept, the turn is interrupted, and the next prompt starts the container and the agent again."""
    async with backend.client() as client:
        session = await Far.begin(backend, far, client)
        prompt, before = await session.begin_slow_turn(), session.container
        far.power_off()
        far.start()
        assert (await session.turn_ended())["state"] == "interrupted"
        said = await session.counted(prompt)
        assert said == ALL[: len(said)]
        assert "apple" in await session.say("what is the word?")
        assert session.container == before


async def test_cont_2_a_turn_that_ended_without_a_backend_is_read_from_a_stopped_container(
    backend: Backend, far: FarHost
) -> None:
    """The journal is in the volume; the container is started again, and the agent restores its session."""
    async with backend.client() as client:
        session = await Far.begin(backend, far, client)
        prompt = await session.begin_slow_turn()
        await backend.kill9()
    await said_to_its_end(lambda: far.docker("exec", session.container, "sh", "-c", "cat /kandev/*/journal/*"))
    far.docker("stop", session.container)
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        await session.call("task.session.resume", wait=True)
        assert (await session.turn_ended())["state"] == "completed"
        assert await session.counted(prompt) == ALL
        assert (await session.status())["how"] == "native"
        assert "apple" in await session.say("what is the word?")


async def test_cont_2_a_removed_container_is_made_again_on_its_volume(backend: Backend, far: FarHost) -> None:
    """Memory and files are in the volume; that it was made again is said."""
    async with backend.client() as client:
        session = await Far.begin(backend, far, client)
        await session.call("task.session.stop")
        far.docker("rm", "-f", session.container)
        await session.call("task.session.recover", action="resume")
        assert "apple" in await session.say("what is the word?")
        assert any("A new one was made on that" in note for note in await session.notes())


async def test_cont_6_a_container_that_is_gone_with_its_volume_is_replaced(
    backend: Backend, far: FarHost, repository: Path
) -> None:
    """On the same branch, with the work that had come home, and with a warning; the old agent session is lost."""
    async with backend.client() as client:
        session = await Far.begin(backend, far, client, repository_path=str(repository))
        await session.inside("sh", "-c", "echo two > left")
        await session.say("what is the word?")
        await session.came_home("left")
        await backend.kill9()
    far.docker("rm", "-f", session.container)
    far.docker("volume", "rm", far.docker("volume", "ls", "-q"))
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        with pytest.raises(CallFailed, match="Session not found"):
            await session.call("task.session.resume", wait=True)
        assert any("The session's container is gone" in note for note in await session.notes())
        assert "hello" in await session.say("hello")
        assert await session.inside("cat", "left") == "two"
        assert await session.inside("git", "status", "--porcelain") == "?? left"


async def test_cont_3_a_container_of_another_home_is_left_alone(backend: Backend, far: FarHost) -> None:
    """One of the same name is refused, and neither it nor its volume is touched."""
    async with backend.client() as client:
        session = await Far.begin(backend, far, client)
        await session.call("task.session.stop")
        name = far.docker("inspect", "-f", "{{.Name}}", session.container).removeprefix("/")
        far.docker("rm", "-f", name)
        other = far.docker("run", "-d", "--name", name, far.image, "sleep", "600")
        with pytest.raises(CallFailed, match="not of this home"):
            await session.call("task.session.recover", action="resume")
        assert far.docker("inspect", "-f", "{{.State.Running}}", other) == "true"
        far.docker("rm", "-f", other)
        await session.call("task.session.recover", action="resume")
        assert "apple" in await session.say("what is the word?")


async def test_a_host_whose_key_is_not_known_is_refused(tmp_path: Path, far: FarHost) -> None:
    """Before anything is said to it; the list of runtimes says why."""
    strangers = tmp_path / "known_hosts"
    strangers.write_text("")
    config = by_ssh(far).replace(str(far.known_hosts), str(strangers))
    async with serving(tmp_path, config) as backend, backend.client() as client:
        (own,) = [one for one in (await client.call("runtime.list", {}))["runtimes"] if one["name"] == "remote_docker"]
        assert not own["available"]
        assert "cannot be reached by SSH: Host key is not trusted" in own["problem"]
