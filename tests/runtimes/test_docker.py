"""Sessions in containers of a real engine: through kills and stops of the backend and of containers (CONT)."""

import subprocess
from pathlib import Path

import pytest

from backend import Backend
from kandev.agentctl import API_VERSION
from other_version import write_version
from runtimes.contained import Contained, doctor, leave_container
from runtimes.engine import DockerEngine
from wire_client import CallFailed


async def test_a_session_runs_in_a_container_of_its_own(docker_backend: Backend, engine: DockerEngine) -> None:
    """With the labels of the contract, limits and environment of the configuration, and `Init`."""
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        assert "creating_container" in session.stages()
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


async def test_cont_1_a_turn_goes_on_when_the_backend_is_killed(docker_backend: Backend, engine: DockerEngine) -> None:
    """The next backend adopts the running container, and each chunk is stored once."""
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        prompt = await session.begin_slow_turn()
        container = session.container
        await docker_backend.kill9()
    await docker_backend.start()
    async with docker_backend.client() as client:
        await session.follow(client)
        status = await session.status()
        assert (status["state"], status["is_agent_running"], status["how"]) == ("RUNNING", True, "attached")
        assert (await session.turn_ended())["state"] == "completed"
        said = (await session.answer(prompt)).split()
        assert [word for word in said if word.isdecimal()] == [str(n) for n in range(1, 41)]
        assert await session.notices() == []
        assert session.container == container
        assert "apple" in await session.say("what is the word?")


async def test_cont_1_a_stop_in_order_leaves_the_turn(docker_backend: Backend, engine: DockerEngine) -> None:
    """SIGTERM ends the backend, not the container."""
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        prompt = await session.begin_slow_turn()
    assert await docker_backend.stop() == 0
    await docker_backend.start()
    async with docker_backend.client() as client:
        await session.follow(client)
        assert (await session.turn_ended())["state"] == "completed"
        said = (await session.answer(prompt)).split()
        assert [word for word in said if word.isdecimal()] == [str(n) for n in range(1, 41)]


async def test_cont_2_a_stopped_container_is_started_again(docker_backend: Backend, engine: DockerEngine) -> None:
    """The same container, the agent in it started anew, its memory from its own store."""
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        container = session.container
        engine.docker("stop", container)
        assert "apple" in await session.say("what is the word?")
        assert session.stages().count("starting_container") == 1
        assert session.container == container
        assert (await session.status())["how"] == "native"


async def test_cont_2_a_removed_container_is_replaced(docker_backend: Backend, engine: DockerEngine) -> None:
    """A new one on the same directory, with the token: the agent remembers."""
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        container = session.container
        engine.docker("rm", "-f", container)
        assert "apple" in await session.say("what is the word?")
        assert session.container not in {"", container}
        assert (await session.status())["how"] == "native"


async def test_a_container_killed_in_a_turn_interrupts_it(docker_backend: Backend, engine: DockerEngine) -> None:
    """What it said is kept; the next prompt starts the container again."""
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        await session.begin_slow_turn()
        engine.docker("kill", session.container)
        assert (await session.turn_ended())["state"] == "interrupted"
        assert "apple" in await session.say("what is the word?")


async def test_doctor_finds_containers_that_no_session_names(docker_backend: Backend, engine: DockerEngine) -> None:
    """Beside a session that goes on, and is left alone; one of another home is none of ours."""
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        name = leave_container(session)
        labels = ("--label", "kandev.managed=true", "--label", "kandev.home=another", "--label", "kandev.session_id=x")
        other = engine.docker("run", "-d", *labels, engine.image, "sleep", "600")
        try:
            stray, fine = await doctor(docker_backend)
            assert (stray["level"], stray["can_fix"]) == ("warning", True)
            assert f"docker: container {name} of this home; no session names it." in stray["text"]
            assert "docker: 1 containers" in fine["text"]
            assert [one["fixed"] for one in await doctor(docker_backend, "--fix")] == [True, False]
            assert engine.docker("ps", "-aq", "--filter", f"name={name}") == ""
            assert len(await doctor(docker_backend)) == 1
            assert engine.docker("inspect", "-f", "{{.State.Running}}", other) == "true"
            assert "apple" in await session.say("what is the word?")
        finally:
            engine.docker("rm", "-f", other)
            engine.docker("volume", "rm", "-f", name)


async def test_cont_3_containers_of_others_are_left_alone(docker_backend: Backend, engine: DockerEngine) -> None:
    """Not even one that is labelled as managed, of another home, is touched by starts and deletions."""
    labels = ("--label", "kandev.managed=true", "--label", "kandev.home=another", "--label", "kandev.session_id=x")
    other = engine.docker("run", "-d", *labels, engine.image, "sleep", "600")
    try:
        async with docker_backend.client() as client:
            session = await Contained.create(docker_backend, engine, client)
            await session.call("task.session.delete")
        await docker_backend.kill9()
        await docker_backend.start()
        assert engine.docker("inspect", "-f", "{{.State.Running}}", other) == "true"
    finally:
        engine.docker("rm", "-f", other)


KILL_AGENT = """import glob, os
for path in glob.glob("/proc/[0-9]*/cmdline"):
    if b"demo-" + b"agent" in open(path, "rb").read():
        os.kill(int(path.split("/")[2]), 9)
"""


WHO = ("-c", "user.name=x", "-c", "user.email=x@x")


def new_repository(path: Path) -> Path:
    git("init", "-q", str(path))
    git(*WHO, "-C", str(path), "commit", "-q", "--allow-empty", "-m", "first")
    return path


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


async def test_git_works_inside_and_hooks_and_config_cannot_be_changed(
    docker_backend: Backend, engine: DockerEngine, tmp_path: Path
) -> None:
    """The worktree and the repository's objects are writable at their own paths, as the user; what git runs is not."""
    repository = new_repository(tmp_path / "repository")
    (docker_backend.user_home / ".gitconfig").write_text('[user]\nname = "Ä \\"B\\" C"\nemail = a@localhost\n')
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client, repository_path=str(repository))
        worktree = (await session.status())["worktree_path"]
        inside = ("exec", "-w", worktree, session.container)
        engine.docker(*inside, "sh", "-c", "echo text > file && git add file")
        engine.docker(*inside, "git", "commit", "-q", "-m", "from inside")
        assert git("-C", worktree, "log", "--format=%s, %an").splitlines() == ['from inside, Ä "B" C', "first, x"]
        for path in (repository / ".git/hooks/evil", repository / ".git/config", Path(worktree) / ".git"):
            with pytest.raises(AssertionError, match="Read-only"):
                engine.docker(*inside, "sh", "-c", f"echo x >> {path}")


async def test_a_container_runs_as_another_user(docker_backend: Backend, engine: DockerEngine, tmp_path: Path) -> None:
    """The session's directory is given to it; a repository is not, and is refused where it may not write there."""
    await docker_backend.stop()
    docker_backend.config = f'[runtimes.docker]\nimage = "{engine.image}"\nuser = "65534:65534"\n'
    await docker_backend.start()
    repository = new_repository(tmp_path / "repository")
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        made = Path((await session.status())["worktree_path"]) / "made"
        engine.docker("exec", session.container, "sh", "-c", f"echo text > {made}")
        assert (made.stat().st_uid, made.stat().st_gid) == (65534, 65534)
        engine.docker("stop", session.container)
        assert "apple" in await session.say("what is the word?")
        with pytest.raises(CallFailed, match=r"run as 65534:65534, who may not write to .*/worktrees/"):
            await Contained.create(docker_backend, engine, client, repository_path=str(repository))


async def test_runtime_list_says_whether_docker_can_be_used(docker_backend: Backend, engine: DockerEngine) -> None:
    """With the engine's address and what to do."""

    async def problem() -> str:
        async with docker_backend.client() as client:
            listed = {one["name"]: one for one in (await client.call("runtime.list", {}))["runtimes"]}
        assert listed["docker"]["available"] is not bool(listed["docker"]["problem"])
        return str(listed["docker"]["problem"])

    assert await problem() == ""
    engine.stop()
    try:
        assert "does not answer" in await problem()
    finally:
        engine.start()
    await docker_backend.stop()
    docker_backend.config = '[runtimes.docker]\nimage = "not/there:1"\n'
    await docker_backend.start()
    assert "docker pull not/there:1" in await problem()


async def test_crash_3_a_container_whose_start_was_not_stored_is_ended(
    docker_backend: Backend, engine: DockerEngine
) -> None:
    """The backend dies between making the container and storing that; the next start ends it, a resume goes on."""
    await docker_backend.stop()
    docker_backend.environment["KANDEV_FAILPOINT"] = "start.after_instance"
    await docker_backend.start()
    async with docker_backend.client() as client:
        request = {"agent": "demo", "description": "remember apple", "runtime": "docker"}
        created = await client.call("task.create", request)
        await docker_backend.died()
    running = engine.docker("ps", "-q", "--filter", f"label=kandev.session_id={created['session']['id']}")
    assert running
    del docker_backend.environment["KANDEV_FAILPOINT"]
    await docker_backend.start()
    async with docker_backend.client() as client:
        session = Contained(docker_backend, engine, client, created)
        await session.follow(client)
        await session.turn_ended()
        assert "apple" in await session.say("what is the word?")
        assert len(session.container.split()) == 1


async def test_crash_3_what_an_ended_agent_left_is_removed_at_the_next_start(
    docker_backend: Backend, engine: DockerEngine
) -> None:
    """The backend dies once the agent's end is stored: agentctl, its container and its journal are still there."""
    await docker_backend.stop()
    docker_backend.environment["KANDEV_FAILPOINT"] = "agent.after_exit"
    await docker_backend.start()
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        engine.docker("exec", session.container, "python3", "-c", KILL_AGENT)
        await docker_backend.died()
    running = ("inspect", "-f", "{{.State.Running}}", session.container)
    journals = docker_backend.home / "run/docker" / session.id
    assert (engine.docker(*running), len(list(journals.glob("*/journal")))) == ("true", 1)
    del docker_backend.environment["KANDEV_FAILPOINT"]
    await docker_backend.start()
    assert (engine.docker(*running), len(list(journals.glob("*/journal")))) == ("false", 0)
    async with docker_backend.client() as client:
        await session.follow(client)
        assert "apple" in await session.say("what is the word?")


async def test_an_image_that_cannot_run_agentctl_is_told(docker_backend: Backend, engine: DockerEngine) -> None:
    """The start fails with the engine's, or the container's, own words; nothing hangs, and nothing is left of it."""
    without_python = f'image = "{engine.image}"\nenv = {{ PATH = "/nowhere" }}'
    for docker, words in (('image = "not/there:1"', "no image not/there:1"), (without_python, "python3")):
        await docker_backend.stop()
        docker_backend.config = f"[runtimes.docker]\n{docker}\n"
        await docker_backend.start()
        async with docker_backend.client() as client:
            request = {"agent": "demo", "description": "x", "runtime": "docker", "start": False}
            created = await client.call("task.create", request)
            with pytest.raises(CallFailed, match=words):
                await client.call("task.session.start", {"session_id": created["session"]["id"]})
        kept = {path.name for path in (docker_backend.home / "run/docker" / created["session"]["id"]).iterdir()}
        assert kept == {"arguments", "home", "token"}


async def test_files_that_cannot_be_written_are_told(docker_backend: Backend, engine: DockerEngine) -> None:
    """As a full disk, or here something in their place: the start says what, and works once that is mended."""
    async with docker_backend.client() as client:
        request = {"agent": "demo", "description": "remember apple", "runtime": "docker", "start": False}
        session = Contained(docker_backend, engine, client, await client.call("task.create", request))
        await session.follow(client)
        in_the_way = docker_backend.home / "run/docker" / session.id / "arguments.new"
        in_the_way.mkdir(parents=True)
        with pytest.raises(CallFailed, match="cannot be used"):
            await session.call("task.session.start")
        in_the_way.rmdir()
        await session.call("task.session.recover", action="resume")
        await session.turn_ended()
        assert "apple" in await session.say("what is the word?")


async def test_a_container_of_an_older_version_is_replaced_when_it_cannot_be_talked_to(
    docker_backend: Backend, engine: DockerEngine, tmp_path: Path
) -> None:
    """A container keeps the agentctl that it was made with: the next version talks to it, the one after makes a new."""
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        container = session.container
    for step in (1, 2):
        await docker_backend.stop()
        docker_backend.environment["PYTHONPATH"] = write_version(tmp_path / str(step), API_VERSION + step)
        engine.docker("stop", container)
        await docker_backend.start()
        async with docker_backend.client() as client:
            await session.follow(client)
            assert "apple" in await session.say("what is the word?")
            assert (session.container == container) == (step == 1)
            assert (await session.status())["how"] == "native"
