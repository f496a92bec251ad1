"""The standalone runtime: agents end with their backend; what outlives it is killed by proof of identity only."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kandev.agentctl.identity import Identity, read_identity
from kandev.agentctl.journal import read_journal
from kandev.agentctl.platform import boot_id, children, is_alive, process_stat
from kandev.agentctl.records import Exited, StdinLine, parse
from kandev.errors import AgentctlError
from kandev.runtimes import Instance, StandaloneRuntime, kill_leftover, kill_leftovers
from kandev.runtimes.fork_client import AgentctlOptions, ForkServer, reap_cold, start_cold
from kandev.runtimes.sockets import listen, socket_path
from sidecars import ENVIRONMENT, Sidecar, new_instance_id, processes_of, request_for, sidecar

STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\nwhile True: signal.pause()"
LINGERING = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n" + STUBBORN

BACKEND = f"""
import asyncio, sys, msgspec
sys.path.insert(0, {os.path.dirname(__file__)!r} + '/..')
from kandev.runtimes import StandaloneRuntime
from sidecars import Sidecar, request_for

async def main(directory, instance_id, program):
    runtime = StandaloneRuntime(directory)
    instance = await runtime.create_instance(request_for(instance_id))
    one = Sidecar(runtime, instance)
    await one.run(program)
    await one.line(b'up')
    print(msgspec.json.encode(instance).decode(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def ended(pid: int, start_time: int) -> None:
    while is_alive(pid, start_time):
        await asyncio.sleep(0.01)


@asynccontextmanager
async def killed_backend(directory: Path, program: str) -> AsyncIterator[Instance]:
    """A backend that started an agent and was killed with SIGKILL."""
    instance_id = new_instance_id()
    process = start_backend(str(directory), instance_id, program)
    assert process.stdout is not None
    try:
        instance = msgspec.json.decode(await asyncio.to_thread(process.stdout.readline), type=Instance)
        process.kill()
        yield instance
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        await kill_leftover(str(directory / instance_id))


def sleeper(instance_id: str) -> subprocess.Popen[bytes]:
    """Return a process that carries the instance id."""
    return subprocess.Popen(
        ["sleep", "1000"], env={**ENVIRONMENT, "KANDEV_INSTANCE_ID": instance_id}, start_new_session=True
    )


def start_backend(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", BACKEND, *arguments], stdout=subprocess.PIPE)


def last_record(instance: Instance) -> object:
    lines = b"".join(read_journal(os.path.join(instance.directory, "journal"), 0)).split(b"\n")
    return parse(lines[-2])


async def test_an_agent_ends_with_its_backend(tmp_path: Path) -> None:
    """Agentctl sees the backend's death, gives the agent end-of-file, records its end and ends itself."""
    program = "import sys\nprint('up')\nsys.stdin.read()\nprint('in order')"
    async with killed_backend(tmp_path, program) as instance:
        await ended(instance.agentctl_pid, instance.agentctl_start_time)
        assert processes_of(instance.instance_id) == []
        assert last_record(instance) == Exited(code=0, signal=None)
        identity = read_identity(instance.directory)
        assert identity is not None
        assert identity.ended


async def test_an_agent_that_ignores_its_backends_end_is_killed(tmp_path: Path) -> None:
    """It has two seconds; then its tree is killed, and the journal has the end."""
    async with killed_backend(tmp_path, LINGERING) as instance:
        await ended(instance.agentctl_pid, instance.agentctl_start_time)
        assert processes_of(instance.instance_id) == []
        assert last_record(instance) == Exited(code=None, signal=9)


async def test_proc_2_a_leftover_is_killed_at_once_and_its_journal_is_whole(tmp_path: Path) -> None:
    """The next backend does not wait for the grace; agentctl still writes the exit record."""
    async with killed_backend(tmp_path, LINGERING) as instance:
        found = await kill_leftover(instance.directory)
        assert found is not None
        assert found.agentctl_lived
        assert processes_of(instance.instance_id) == []
        assert last_record(instance) == Exited(code=None, signal=9)
        assert await kill_leftover(instance.directory) is None


async def test_crash_15_agentctl_is_killed_and_its_agent_is_found_by_identity() -> None:
    """The agent that lives on, and its tree, are killed; the journal reads on to where agentctl died."""
    async with sidecar() as one:
        await one.run("import os\n" + LINGERING.replace("print('up')", "os.write(1, b'up\\nhalf')"))
        await one.line(b"up")
        os.kill(one.instance.agentctl_pid, signal.SIGKILL)
        await ended(one.instance.agentctl_pid, one.instance.agentctl_start_time)
        assert len(processes_of(one.instance.instance_id)) == 2
        await one.runtime.clear_leftovers([one.instance])
        assert processes_of(one.instance.instance_id) == []
        lines = b"".join(read_journal(one.journal, 0)).split(b"\n")
        assert lines[1:] == [b"up", b"half", b'\x1e{"ev":"torn"}', b""]


async def test_crash_15_a_line_half_in_the_pipe_is_announced_and_not_written() -> None:
    """PROMPT-4: after agentctl's death the journal tells that the line may have reached the agent."""
    async with sidecar(write_timeout_s=0.1) as one:
        await one.run(STUBBORN)
        await one.line(b"up")
        with pytest.raises(AgentctlError, match="does not read"):
            await one.client.send(1, b"x" * 500_000)
        os.kill(one.instance.agentctl_pid, signal.SIGKILL)
        await one.runtime.clear_leftovers([one.instance])
        lines = b"".join(read_journal(one.journal, 0)).split(b"\n")
        assert [parse(line) for line in lines[2:-1]] == [StdinLine(n=1)]


async def test_a_line_is_refused_once_the_backend_is_gone() -> None:
    """An agent that is about to end takes no more work."""
    async with sidecar() as one:
        await one.run(STUBBORN)
        await one.line(b"up")
        one.runtime._cut_lifeline(one.instance.instance_id)
        n, reason = 0, ""
        while not reason:
            n += 1
            try:
                await one.client.send(n, b"more work")
            except AgentctlError as error:
                reason = error.reason
        assert reason == "stopping"
        await ended(one.instance.agentctl_pid, one.instance.agentctl_start_time)
        written = b'{"ev":"written","n":%d}' % n
        assert written not in b"".join(read_journal(one.journal, 0))


async def test_crash_15_the_stream_says_that_it_was_cut() -> None:
    """A reader can tell agentctl's death from the agent's end."""
    async with sidecar() as one:
        await one.run(STUBBORN)
        stream = one.client.stream(0)
        await anext(stream)
        os.kill(one.instance.agentctl_pid, signal.SIGKILL)
        with pytest.raises(AgentctlError) as caught:
            _ = [piece async for piece in stream]
        assert caught.value.reason == "stream_cut"
        with pytest.raises(AgentctlError) as caught:
            await one.client.status()
        assert caught.value.reason == "unreachable"
        await one.runtime.stop_instance(one.instance, grace_s=60)
        assert processes_of(one.instance.instance_id) == []


async def test_crash_15_a_start_does_not_wait_for_a_dead_agentctl() -> None:
    """Waiting for readiness ends at once when nobody listens any more."""
    async with sidecar() as one:
        os.kill(one.instance.agentctl_pid, signal.SIGKILL)
        await ended(one.instance.agentctl_pid, one.instance.agentctl_start_time)
        with pytest.raises(AgentctlError) as caught:
            await one.client.wait_ready(3600)
        assert caught.value.reason == "unreachable"


async def test_crash_16_a_stopped_agentctl_is_killed_by_identity() -> None:
    """An agentctl that does not answer is not waited for."""
    async with sidecar() as one:
        await one.run(LINGERING)
        await one.line(b"up")
        os.kill(one.instance.agentctl_pid, signal.SIGSTOP)
        await one.runtime.clear_leftovers([one.instance])
        assert processes_of(one.instance.instance_id) == []
        assert not is_alive(one.instance.agentctl_pid, one.instance.agentctl_start_time)


async def test_proc_2_an_orphan_without_an_identity_file_is_found_by_its_environment(tmp_path: Path) -> None:
    """Agentctl died between the start of the agent and its note of it: the instance id proves the agent."""
    instance_id = new_instance_id()
    orphan = sleeper(instance_id)
    bystander = sleeper(instance_id + "0")
    try:
        found = await kill_leftover(str(tmp_path / instance_id))
        assert found is not None
        assert found.killed == (orphan.pid,)
        assert orphan.wait() == -signal.SIGKILL
        assert bystander.poll() is None
    finally:
        for process in (orphan, bystander):
            process.kill()
            process.wait()


@pytest.mark.parametrize("wrong", ["start_time", "boot_id"])
async def test_proc_2_nobody_is_killed_by_pid_alone(wrong: str) -> None:
    """A process that has the pid of another start, or of another boot of the machine, is somebody else."""
    bystander = sleeper("")
    try:
        stat = process_stat(bystander.pid)
        assert stat is not None
        identity = Identity(
            api_version=1,
            instance_id=new_instance_id(),
            nonce="",
            pid=bystander.pid,
            start_time=stat.start_time,
            boot_id=boot_id(),
        )
        other = (
            replace(identity, start_time=stat.start_time - 1)
            if wrong == "start_time"
            else replace(identity, boot_id="other")
        )
        assert await kill_leftover(other) is None
        assert bystander.poll() is None
        found = await kill_leftover(identity)
        assert found is not None
        assert found.agentctl_lived
        bystander.wait()
    finally:
        bystander.kill()
        bystander.wait()


async def test_many_leftovers_are_ended_together(tmp_path: Path) -> None:
    """One call for all, and directories of which nothing is left cost nothing."""
    async with killed_backend(tmp_path, STUBBORN) as first, killed_backend(tmp_path, STUBBORN) as second:
        gone = [str(tmp_path / f"gone-{n}") for n in range(1000)]
        found = await kill_leftovers([*gone, first.directory, second.directory])
        assert [one.instance_id for one in found] == [first.instance_id, second.instance_id]


async def test_a_damaged_identity_file_is_no_error(tmp_path: Path) -> None:
    """A file that cannot be read proves nothing; the environment may."""
    for text in ("", "{", "[]", '{"pid": 1}', "\0\0"):
        (tmp_path / "agentctl.json").write_text(text)
        assert read_identity(str(tmp_path)) is None
        assert await kill_leftover(str(tmp_path)) is None


async def test_nothing_is_recovered() -> None:
    """The specification: standalone processes are transient, and started again on resume."""
    async with sidecar() as one:
        assert await one.runtime.recover_instances() == []


async def test_race_9_a_stop_is_safe_to_repeat() -> None:
    """At once, later, and by another runtime object that has only the stored form."""
    async with sidecar() as one:
        await one.run(LINGERING)
        stored = msgspec.json.decode(msgspec.json.encode(one.instance), type=Instance)
        await asyncio.gather(*(one.runtime.stop_instance(one.instance, grace_s=0) for _ in range(3)))
        await one.runtime.stop_instance(one.instance, grace_s=60)
        await StandaloneRuntime(os.path.dirname(one.instance.directory)).stop_instance(stored, grace_s=0)
        assert processes_of(one.instance.instance_id) == []
        await one.runtime.discard(one.instance)
        assert not os.path.exists(one.instance.directory)


async def test_a_dead_fork_server_is_started_again(tmp_path: Path) -> None:
    """Its death costs nothing but time, and its agentctls live on."""
    runtime = StandaloneRuntime(str(tmp_path))
    try:
        before = set(children(os.getpid()))
        first = await runtime.create_instance(request_for(new_instance_id()))
        (fork_server,) = set(children(os.getpid())) - before
        os.kill(fork_server, signal.SIGKILL)
        second = await runtime.create_instance(request_for(new_instance_id()))
        for instance in (first, second):
            async with Sidecar(runtime, instance) as one:
                await one.run(["echo", "alive"])
                assert (await one.everything())[0] == [b"alive"]
    finally:
        await runtime.aclose()


async def test_a_dead_spare_is_replaced(tmp_path: Path) -> None:
    """Somebody killed the fork that waited for the next start: another one takes it."""
    runtime = StandaloneRuntime(str(tmp_path))
    try:
        before = set(children(os.getpid()))
        await runtime.warm_up()
        (fork_server,) = set(children(os.getpid())) - before
        while not (spares := children(fork_server)):
            await asyncio.sleep(0.01)
        os.kill(spares[0], signal.SIGKILL)
        while children(fork_server) == spares:
            await asyncio.sleep(0.01)
        instance = await runtime.create_instance(request_for(new_instance_id()))
        async with Sidecar(runtime, instance) as one:
            await one.run(["echo", "alive"])
            assert (await one.everything())[0] == [b"alive"]
    finally:
        await runtime.aclose()


async def test_the_fork_server_ends_with_its_backend() -> None:
    """Neither it nor its spare is left behind."""
    server = ForkServer()
    before = set(children(os.getpid()))
    await server.warm_up()
    (pid,) = set(children(os.getpid())) - before
    stat = process_stat(pid)
    assert stat is not None
    assert stat.session == pid
    while not (spares := [process_stat(spare) for spare in children(pid)]):
        await asyncio.sleep(0.01)
    await server.aclose()
    assert process_stat(pid) is None
    for spare in spares:
        assert spare is not None
        await ended(spare.pid, spare.start_time)


async def test_an_agentctl_starts_without_a_fork_server(tmp_path: Path) -> None:
    """The cold start speaks the same and ends by the same pipe."""
    runtime = StandaloneRuntime(str(tmp_path))
    directory = tmp_path / new_instance_id()
    directory.mkdir(mode=0o700)

    lifeline_end, lifeline = os.pipe()
    options = AgentctlOptions(
        instance_id=directory.name, directory=str(directory), cap_bytes=1 << 20, write_timeout_s=5
    )
    with listen(str(directory / "sock")) as listener:
        pid = start_cold(options, [listener.fileno(), lifeline_end])
    os.close(lifeline_end)
    stat = process_stat(pid)
    assert stat is not None
    instance = Instance(
        instance_id=directory.name,
        runtime="standalone",
        directory=str(directory),
        agentctl_url=f"unix:{directory}/sock",
        agentctl_pid=pid,
        agentctl_start_time=stat.start_time,
        boot_id=boot_id(),
    )
    async with Sidecar(runtime, instance) as one:
        await one.run(["echo", "cold"])
        assert (await one.everything())[0] == [b"cold"]
    os.close(lifeline)
    await ended(pid, stat.start_time)
    reap_cold()
    assert process_stat(pid) is None


async def test_a_path_too_long_for_a_socket_goes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deep home works: the socket lies in the runtime directory, for its owner only."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    runtime = StandaloneRuntime(str(tmp_path / ("deep" * 30)))
    try:
        instance = await runtime.create_instance(request_for(new_instance_id()))
        path = instance.agentctl_url.removeprefix("unix:")
        assert os.path.dirname(path) == str(tmp_path / "kandev")
        assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
        async with Sidecar(runtime, instance) as one:
            await one.run(["echo", "deep"])
            assert (await one.everything())[0] == [b"deep"]
        await runtime.stop_instance(instance, grace_s=0)
        assert not os.path.exists(path)
    finally:
        await runtime.aclose()


def test_sec_a_runtime_directory_of_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that others may enter, or a link, is not used for sockets."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "kandev").mkdir(mode=0o755)
    with pytest.raises(AgentctlError, match="XDG_RUNTIME_DIR"):
        socket_path("/" + "deep/" * 40)
    (tmp_path / "kandev").rmdir()
    (tmp_path / "kandev").symlink_to(tmp_path)
    with pytest.raises(AgentctlError, match="XDG_RUNTIME_DIR"):
        socket_path("/" + "deep/" * 40)


async def test_a_lost_answer_is_asked_for_again_and_the_line_is_written_once() -> None:
    """The connection dies behind the request: the client repeats it, agentctl knows the number."""
    async with sidecar() as one:
        await one.run("import sys\nfor line in sys.stdin: print('heard', line, end='')")
        path = one.instance.agentctl_url.removeprefix("unix:")
        losses = 2

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal losses
            request = await reader.read(65536)
            far_reader, far_writer = await asyncio.open_unix_connection(path)
            far_writer.write(request)
            answer = await far_reader.read(65536)
            if losses:
                losses -= 1
            else:
                writer.write(answer)
                await writer.drain()
            far_writer.close()
            writer.close()

        async with await asyncio.start_unix_server(relay, path + "2"):
            client = one.runtime.connect(msgspec.structs.replace(one.instance, agentctl_url=f"unix:{path}2"))
            await client.send(1, b"once")
            await client.aclose()
        assert losses == 0
        await one.client.stop(grace_s=60)
        assert (await one.everything())[0] == [b"heard once"]


async def test_the_identity_file_says_who_runs() -> None:
    """Boot id, pids and start times of both, as the kernel has them."""
    async with sidecar() as one:
        process = await one.run(STUBBORN)
        found = json.loads((Path(one.instance.directory) / "agentctl.json").read_text())
        health = await one.client.status()
        assert found == {
            "api_version": 1,
            "instance_id": one.instance.instance_id,
            "nonce": health.nonce,
            "pid": one.instance.agentctl_pid,
            "start_time": one.instance.agentctl_start_time,
            "boot_id": one.instance.boot_id,
            "agent": {"pid": process.pid, "start_time": process.start_time, "pgid": process.process_group},
            "ended": False,
        }
