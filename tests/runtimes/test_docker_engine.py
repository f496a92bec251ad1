"""Sessions in containers while their engine is killed, stopped, and back again (CONT-4, CONT-5)."""

import os
import signal
from pathlib import Path

import pytest

from backend import Backend
from kandev.agentctl.platform import children
from runtimes.contained import Contained
from runtimes.engine import DockerEngine
from wire_client import CallFailed


async def test_cont_4_a_turn_goes_on_when_the_engine_is_killed(docker_backend: Backend, engine: DockerEngine) -> None:
    """The socket of agentctl does not depend on the engine; afterwards the engine is back, and all goes on."""
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        prompt = await session.begin_slow_turn()
        engine.kill()
        try:
            assert (await session.turn_ended())["state"] == "completed"
        finally:
            engine.start()
        said = (await session.answer(prompt)).split()
        assert [word for word in said if word.isdecimal()] == [str(n) for n in range(1, 41)]
        assert "apple" in await session.say("what is the word?")


async def test_cont_5_an_engine_that_does_not_answer_leaves_all_unknown(
    docker_backend: Backend, engine: DockerEngine
) -> None:
    """Nothing is ended or deleted; a resume says why, and attaches once the engine is back."""
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        prompt = await session.begin_slow_turn()
        await docker_backend.kill9()
    engine.stop()
    try:
        await docker_backend.start()
        async with docker_backend.client() as client:
            await session.follow(client)
            status = await session.status()
            assert (status["state"], status["is_agent_running"], status["needs_resume"]) == ("RUNNING", False, True)
            with pytest.raises(CallFailed, match="does not answer"):
                await session.call("task.session.resume")
            assert (await session.status())["state"] == "RUNNING"
    finally:
        engine.start()
    async with docker_backend.client() as client:
        await session.follow(client)
        await session.call("task.session.resume")
        assert (await session.turn_ended())["state"] == "completed"
        assert (await session.status())["how"] == "attached"
        said = (await session.answer(prompt)).split()
        assert [word for word in said if word.isdecimal()] == [str(n) for n in range(1, 41)]


async def test_cont_5_a_prompt_waits_for_the_engine(docker_backend: Backend, engine: DockerEngine) -> None:
    """It is stored while nobody can be asked, and goes to the same process once a person resumes."""
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        await docker_backend.kill9()
    engine.stop()
    try:
        await docker_backend.start()
        async with docker_backend.client() as client:
            await session.follow(client)
            message = (await session.call("message.add", content="what is the word?"))["message"]
            await client.wait_event("session.resume.failed")
            assert (await session.status())["queued"] == 1
    finally:
        engine.start()
    async with docker_backend.client() as client:
        await session.follow(client)
        await session.call("task.session.resume", open_queue=True)
        await session.turn_ended()
        assert "apple" in await session.answer(message["id"])
        assert (await session.status())["how"] == "attached"


async def test_cont_5_a_fresh_start_ends_what_was_unknown(docker_backend: Backend, engine: DockerEngine) -> None:
    """It is refused while nobody can be asked; then the old agent is ended, and not attached to."""
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        await docker_backend.kill9()
    engine.stop()
    try:
        await docker_backend.start()
        async with docker_backend.client() as client:
            await session.follow(client)
            with pytest.raises(CallFailed, match="does not answer"):
                await session.call("task.session.recover", action="fresh_start")
    finally:
        engine.start()
    async with docker_backend.client() as client:
        await session.follow(client)
        await session.call("task.session.recover", action="fresh_start")
        assert "apple" not in await session.say("what is the word?")
        assert (await session.status())["how"] == "idle"


async def test_cont_4_by_a_port_a_killed_engine_only_delays(engine: DockerEngine, tmp_path: Path) -> None:
    """Where a socket has no room for its path the published port is taken, which is gone with the engine.

    The session is unknown then, not interrupted; the resume after the engine's return looks the port up again.
    """
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


async def test_a_paused_container_is_not_attached(docker_backend: Backend, engine: DockerEngine) -> None:
    """Nobody answers in it, so it is removed; the turn is interrupted, and the next prompt makes a new one."""
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        await session.begin_slow_turn()
        await docker_backend.kill9()
    engine.docker("pause", session.container)
    await docker_backend.start()
    async with docker_backend.client() as client:
        await session.follow(client)
        assert (await session.status())["last_turn"]["state"] == "interrupted"
        assert "apple" in await session.say("what is the word?")


async def test_cont_5_a_start_whose_end_nobody_can_prove_is_over(docker_backend: Backend, engine: DockerEngine) -> None:
    """Its container is killed while the engine is away: it has failed, and a later one is not kept waiting by it."""
    await docker_backend.stop()
    docker_backend.config += '[agents.mute]\ncommand = ["sleep", "600"]\n'
    await docker_backend.start()
    async with docker_backend.client() as client:
        request = {"agent": "mute", "description": "x", "runtime": "docker", "start": False}
        session = Contained(docker_backend, engine, client, await client.call("task.create", request))
        await session.follow(client)
        await session.call("task.session.start")
        await client.wait_event("session.resume.progress", lambda payload: payload["stage"] == "starting_agent")
        inside = int(engine.docker("inspect", "-f", "{{.State.Pid}}", session.container))
        engine.stop()
        try:
            os.kill(inside, signal.SIGKILL)
            assert (await client.wait_event("session.resume.failed"))["cause"] == "start_failed"
            assert (await session.status())["state"] == "FAILED"
        finally:
            engine.start()
        begun = len(client.events)
        await session.call("task.session.recover", action="resume")
        await client.wait_event(
            "session.resume.progress", lambda payload: payload["stage"] == "starting_agent", after=begun
        )


async def test_cont_5_a_session_is_stopped_though_nobody_can_be_asked(
    docker_backend: Backend, engine: DockerEngine
) -> None:
    """Its agentctl hangs while the engine is away: it is CANCELLED at once, and the next start ends what is left."""
    await docker_backend.stop()
    docker_backend.environment |= {"KANDEV__TIMING__AGENTCTL_SILENT_S": "1", "KANDEV__TIMING__STOP_GRACE_S": "1"}
    await docker_backend.start()
    async with docker_backend.client() as client:
        session = await Contained.create(docker_backend, engine, client)
        await session.begin_slow_turn()
        container = session.container
        (agentctl,) = children(int(engine.docker("inspect", "-f", "{{.State.Pid}}", container)))
        engine.stop()
        os.kill(agentctl, signal.SIGSTOP)
        try:
            await session.call("task.session.stop")
            status = await session.status()
            assert (status["state"], status["is_agent_running"]) == ("CANCELLED", False)
        finally:
            os.kill(agentctl, signal.SIGCONT)
            engine.start()
    await docker_backend.restart()
    async with docker_backend.client() as client:
        await session.follow(client)
        assert engine.docker("inspect", "-f", "{{.State.Running}}", container) == "false"
        status = await session.status()
        assert (status["state"], status["turn"]) == ("CANCELLED", None)
        assert status["last_turn"]["state"] in {"completed", "interrupted"}  # the agent may have come to its end
        await session.call("task.session.recover", action="resume")
        assert "apple" in await session.say("what is the word?")
