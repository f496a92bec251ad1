"""Kills of the backend at every failpoint of a container, here and on another host; the next start settles it.

What was half made is used or removed: no session has two containers, none is left of a session that is gone, and a
prompt reaches its agent once. Each start goes on where the one before was killed, until that is killed one step later.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from backend import Backend
from invariants import stuck_sessions
from kandev.agentctl.failpoints import FAILPOINTS
from runtimes.contained import Contained, Engine
from runtimes.engine import DockerEngine
from runtimes.far_host import FarHost
from runtimes.test_remote_docker import by_ssh
from wire_client import LIMIT, CallFailed, Client

BEGUN = ["start.before_begin", "start.after_begin"]
VOLUME = ["volume.before_create", "volume.after_create"]
CREATED = ["container.before_create", "container.after_create"]
BROUGHT = ["container.before_put", "container.after_put"]
STARTED = ["container.before_start", "container.after_start"]
STOPPED = ["container.before_stop", "container.after_stop"]
KEPT = ["start.after_instance", "start.after_persist"]
NOT_READY = ["session.after_open", "start.before_ready"]
REMOVED = ["container.before_remove", "container.after_remove"]
VOLUME_REMOVED = ["volume.before_remove", "volume.after_remove"]
FIRST, QUESTION = "remember apple", "what is the word?"


class Place(NamedTuple):
    """Where containers are made."""

    runtime: str
    engine: Engine
    config: str
    environment: dict[str, str]

    def containers(self) -> list[str]:
        """The ids of all containers of tests, running or not."""
        return self.engine.docker("ps", "-aq", "--filter", "label=kandev.managed=true").split()

    def volumes(self) -> list[str]:
        """The names of all volumes."""
        return self.engine.docker("volume", "ls", "-q").split()


@pytest.fixture
def here(engine: DockerEngine) -> Iterator[Place]:
    """This machine, with no container left after the test."""
    made = Place("docker", engine, f'[runtimes.docker]\nimage = "{engine.image}"\n', {"DOCKER_HOST": engine.url})
    yield made
    for container in made.containers():
        engine.docker("rm", "-f", container)


@pytest.fixture
def there(far: FarHost) -> Place:
    """The second host."""
    return Place("remote_docker", far, by_ssh(far), {})


@pytest.fixture(params=["here", "there"])
def place(request: pytest.FixtureRequest) -> Place:
    """Either machine."""
    found: Place = request.getfixturevalue(request.param)
    return found


class Killed:
    """A backend that is killed at a failpoint and started again, with one session."""

    def __init__(self, backend: Backend, place: Place) -> None:
        self.backend, self.place = backend, place

    async def start(self, armed: str = "") -> None:
        """Starts the backend; one that is armed may die before it answers."""
        self.backend.environment = {**self.place.environment, **({"KANDEV_FAILPOINT": armed} if armed else {})}
        await self.backend.start()

    async def die_at_each(self, armed: Sequence[str]) -> None:
        """Starts the backend again and again; it is killed at each of these places, before it answers or soon after."""
        for name in armed:
            try:
                await self.start(name)
            except AssertionError as died:
                assert "ended with -9" in str(died), name  # noqa: PT017 - either is right
            else:
                await self.died()
            assert len(self.place.containers()) <= 1, name

    async def died(self) -> None:
        """Waits for the kill."""
        async with asyncio.timeout(LIMIT):
            assert await self.backend.died() == -9

    async def begin(self, client: Client) -> Contained:
        """Makes the task, whose session starts by itself."""
        request = {"agent": "demo", "description": FIRST, "runtime": self.place.runtime, "client_task_id": "it"}
        return Contained(self.backend, self.place.engine, client, await client.call("task.create", request))

    async def goes_on(self, session: Contained, *, heard: Sequence[str]) -> None:
        """Starts without a failpoint: nothing is stuck, there is one container, and each prompt was heard once."""
        await self.start()
        assert await stuck_sessions(self.backend) == [], "STATE-1: at once, when the port answers"
        async with self.backend.client() as client:
            await session.follow(client)
            await session.turn_ended()
            assert "apple" in await session.say(QUESTION), await session.status()
            assert len(self.place.containers()) == 1
            assert await session.notices() == []
            assert prompts(session) == [*heard, QUESTION]
            await self.backend.kill9()

    async def is_gone(self, session: Contained) -> None:
        """Waits until the session is gone, and everything with it."""
        async with asyncio.timeout(LIMIT):
            while await self.is_known(session):
                await asyncio.sleep(0.05)
        assert self.place.containers() == self.place.volumes() == []
        assert [path for path in (self.backend.home / "run" / self.place.runtime).glob("*") if path.is_dir()] == []

    async def is_known(self, session: Contained) -> bool:
        """Whether there is such a session."""
        try:
            await session.status()
        except CallFailed as refused:
            return refused.code != "NOT_FOUND"
        return True


def prompts(session: Contained) -> list[str]:
    """The prompts that reached the agent, as itself kept them."""
    kept = session.engine.docker("exec", session.container, "sh", "-c", "cat $HOME/.kandev-demo-agent/*.jsonl")
    records = map(json.loads, kept.splitlines())
    return [record["text"] for record in records if record["type"] == "user"]


@pytest.fixture
async def killed(tmp_path: Path, place: Place) -> AsyncIterator[Killed]:
    """A backend that was not started yet."""
    async with Backend(tmp_path, config=place.config) as backend:
        made = Killed(backend, place)
        yield made
        with contextlib.suppress(AssertionError):  # it does not run, unless the test failed
            await backend.kill9()
        await made.start()
        async with backend.client() as client:
            for task in (await client.call("task.list", {}))["tasks"]:
                await client.call("task.delete", {"task_id": task["id"], "force": True})


def test_every_failpoint_of_containers_has_its_kill() -> None:
    """One that is added to the code is missed here until something passes it."""
    hit = {*CREATED, *STARTED, *BROUGHT, *VOLUME, *STOPPED, *REMOVED, *VOLUME_REMOVED}
    assert hit == {name for name in FAILPOINTS if name.startswith(("container.", "volume."))}


async def test_crash_3_killed_at_each_step_of_a_start_in_a_container(killed: Killed) -> None:
    """A first start, and one of a container that was stopped: what is there is used, and a prompt is sent once."""
    elsewhere = killed.place.runtime == "remote_docker"
    volume, brought = (VOLUME, BROUGHT) if elsewhere else ([], [])
    await killed.start(BEGUN[0])
    async with killed.backend.client() as client:
        session = await killed.begin(client)
        await killed.died()
    await killed.die_at_each([BEGUN[1], *volume, *CREATED, *brought, *STARTED, *STOPPED, *KEPT])
    await killed.goes_on(session, heard=[FIRST])

    before = session.container
    killed.place.engine.docker("stop", before)
    first, *others = [*brought, *STARTED]
    await killed.start(first)
    async with killed.backend.client() as client:
        await session.follow(client)
        await session.call("message.add", content=QUESTION)
        await killed.died()
    await killed.die_at_each(others)
    await killed.goes_on(session, heard=[FIRST, QUESTION, QUESTION])
    assert session.container == before


@pytest.mark.parametrize("place", ["there"], indirect=True)
async def test_crash_4_an_agent_elsewhere_that_was_not_ready_is_not_attached(killed: Killed) -> None:
    """It runs, and nobody asked its host when the backend started; the start that the first prompt needs ends it."""
    await killed.start(NOT_READY[0])
    async with killed.backend.client() as client:
        session = await killed.begin(client)
        await killed.died()
    await killed.die_at_each(NOT_READY[1:])
    await killed.goes_on(session, heard=[FIRST])


async def test_crash_13_killed_at_each_step_of_the_removal_of_a_container(killed: Killed) -> None:
    """The next start removes what is left of it, without being asked again."""
    await killed.start()
    async with killed.backend.client() as client:
        session = await killed.begin(client)
        await session.follow(client)
        await session.turn_ended()
        await killed.backend.kill9()
    await killed.start(REMOVED[0])
    async with killed.backend.client() as client:
        await session.follow(client)
        removing = asyncio.ensure_future(session.call("task.session.delete"))
        await killed.died()
        await asyncio.gather(removing, return_exceptions=True)
    await killed.die_at_each([REMOVED[1], *(VOLUME_REMOVED if killed.place.runtime == "remote_docker" else [])])
    await killed.start()
    async with killed.backend.client() as client:
        session.client = client
        await killed.is_gone(session)
        await killed.backend.kill9()
