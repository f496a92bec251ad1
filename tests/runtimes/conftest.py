"""A real engine for the tests of runtimes; where none can be started they are skipped, and say why."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from backend import Backend
from runtimes import far_host
from runtimes.engine import CannotStart, DockerEngine
from runtimes.far_host import FarHost


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a machine without engines of other tests comes before these start theirs, whatever was asked for."""
    items.sort(key=lambda item: item.path.name != "test_clean_up.py")


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    """One engine for all tests; nothing of it is left afterwards."""
    try:
        made = DockerEngine()
        made.__enter__()
    except CannotStart as error:
        pytest.skip(f"no Docker engine can be started here: {error}")
    yield made
    made.close()


@pytest.fixture
async def docker_backend(tmp_path: Path, engine: DockerEngine) -> AsyncIterator[Backend]:
    """A running backend with that engine; whatever is in it ends with the test."""
    assert engine.answers(), "every test leaves it running"
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


@pytest.fixture(scope="session")
def far_machine() -> Iterator[FarHost]:
    """One second host for all tests; nothing of it is left afterwards."""
    try:
        made = FarHost()
        made.__enter__()
    except far_host.CannotStart as error:
        pytest.skip(f"no second host can be made here: {error}")
    yield made
    made.close()


@pytest.fixture
def far(far_machine: FarHost) -> Iterator[FarHost]:
    """The second host, switched on and connected, with no container and no volume after the test."""
    yield far_machine
    far_machine.link_up()
    left = far_machine.docker("ps", "-aq"), far_machine.docker("volume", "ls", "-q")
    for container in left[0].split():
        far_machine.docker("rm", "-f", container)
    for volume in left[1].split():
        far_machine.docker("volume", "rm", volume)
