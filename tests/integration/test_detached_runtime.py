"""The detached runtime by itself: what another process may attach to, and what it may not."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kandev.agentctl.platform import is_alive
from kandev.runtimes import AgentctlClient, DetachedRuntime, Instance
from kandev.runtimes.fork_client import AgentctlOptions, ForkServer
from leftovers import ended
from sidecars import ENVIRONMENT, PYTHON, new_instance_id, processes_of, request_for

COUNTS = "import time\nfor n in range(3): print(n, flush=True)\ntime.sleep(60)"


class NoForkServer(ForkServer):
    """A machine on which no fork server can be started."""

    async def fork(self, _options: AgentctlOptions, _descriptors: object) -> int:
        raise OSError("no process can be started")


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[DetachedRuntime]:
    """The runtime of a backend; what it started ends with the test."""
    made = DetachedRuntime(str(tmp_path / "run"))
    yield made
    await made.clear_leftovers([made.locate("", path.name) for path in (tmp_path / "run").glob("*")])
    await made.aclose()


async def started(runtime: DetachedRuntime, program: str = COUNTS) -> Instance:
    """An instance with a running agent, left by the backend that made it."""
    instance = await runtime.create_instance(request_for(new_instance_id()))
    client = runtime.connect(instance)
    await client.wait_ready(60)
    await client.configure(command=[*PYTHON, program], env=ENVIRONMENT, cwd="/")
    await client.start()
    await client.aclose()
    return instance


def change_identity(instance: Instance, **fields: object) -> None:
    path = Path(instance.directory) / "agentctl.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


async def lines_of(client: AgentctlClient, count: int) -> list[bytes]:
    """So many lines that the agent wrote, from the journal's begin."""
    found: list[bytes] = []
    rest = b""
    stream = client.stream(0)
    async for piece in stream:
        *whole, rest = (rest + piece).split(b"\n")
        found += [line for line in whole if not line.startswith(b"\x1e")]
        if len(found) >= count:
            break
    await stream.aclose()
    return found


async def test_cont_1_another_backend_attaches_and_reads_from_the_begin(
    runtime: DetachedRuntime, tmp_path: Path
) -> None:
    """The first one is gone with its fork server; what the agent said meanwhile is in the journal."""
    instance = await started(runtime)
    await runtime.aclose()
    (found,) = await DetachedRuntime(str(tmp_path / "run")).recover_instances()
    assert (found.instance_id, found.agentctl_pid) == (instance.instance_id, instance.agentctl_pid)
    assert found.nonce
    client = runtime.connect(found)
    assert await lines_of(client, 3) == [b"0", b"1", b"2"]
    await client.aclose()


@pytest.mark.parametrize("wrong", [{"boot_id": "another boot"}, {"start_time": 1}, {"nonce": "x"}, {"ended": True}])
async def test_proc_2_what_is_not_proven_is_not_attached(runtime: DetachedRuntime, wrong: dict[str, object]) -> None:
    """Machine's boot, start time and nonce are those of the process that wrote the identity, and it has not ended."""
    instance = await started(runtime)
    stored = json.loads((Path(instance.directory) / "agentctl.json").read_text())
    change_identity(instance, **wrong)
    try:
        assert await runtime.recover_instances() == []
    finally:
        change_identity(instance, **stored)


async def test_an_agentctl_without_an_agent_is_not_attached(runtime: DetachedRuntime) -> None:
    """Its start was cut short (CRASH-4)."""
    instance = await runtime.create_instance(request_for(new_instance_id()))
    client = runtime.connect(instance)
    await client.wait_ready(60)
    await client.aclose()
    assert await runtime.recover_instances() == []


async def test_an_agent_that_has_ended_is_not_attached(runtime: DetachedRuntime) -> None:
    """Its journal is read instead."""
    instance = await started(runtime, "print('over')")
    client = runtime.connect(instance)
    async for _ in client.stream(0):
        pass
    await client.aclose()
    assert await runtime.recover_instances() == []


async def test_it_outlives_its_starter_without_a_fork_server_too(tmp_path: Path) -> None:
    """Then agentctl is a program of its own, with no pipe that would end it."""
    runtime = DetachedRuntime(str(tmp_path / "run"), fork_server=NoForkServer())
    instance = await started(runtime)
    assert [one.instance_id for one in await runtime.recover_instances()] == [instance.instance_id]
    await runtime.stop_instance(instance, grace_s=0)
    assert processes_of(instance.instance_id) == []
    assert not is_alive(instance.agentctl_pid, instance.agentctl_start_time)


async def test_a_stop_ends_agent_and_agentctl(runtime: DetachedRuntime) -> None:
    """Again is no error; the journal stays until it is discarded."""
    instance = await started(runtime)
    await runtime.stop_instance(instance, grace_s=0)
    await runtime.stop_instance(instance, grace_s=0)
    assert not is_alive(instance.agentctl_pid, instance.agentctl_start_time)
    assert (Path(instance.directory) / "journal").is_dir()
    await runtime.discard(instance)
    assert not Path(instance.directory).exists()


async def test_one_that_nobody_asks_for_ends_by_itself(tmp_path: Path) -> None:
    """Not while somebody reads; and once the agent is silent and nobody reads, after the time that was set."""
    runtime = DetachedRuntime(str(tmp_path / "run"), idle_s=0.5)
    instance = await started(runtime)
    client = runtime.connect(instance)
    stream = client.stream(0)
    reading = asyncio.create_task(anext(stream))
    await reading
    await asyncio.sleep(1.2)  # the absence of an end is no event to wait for
    assert is_alive(instance.agentctl_pid, instance.agentctl_start_time)
    await stream.aclose()
    await client.aclose()
    async with asyncio.timeout(30):
        await ended(instance.agentctl_pid)
    assert processes_of(instance.instance_id) == []
    assert await runtime.recover_instances() == []
    await runtime.aclose()
