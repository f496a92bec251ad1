"""agentctl's HTTP side by itself, and the one-file program that containers and remote hosts run."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kandev.agentctl.build import build
from kandev.agentctl.identity import Identity, write_identity
from kandev.errors import AgentctlError, TimedOut
from kandev.runtimes import AgentctlClient
from kandev.runtimes.http_pool import Answer, HttpPool
from sidecars import ENVIRONMENT, new_instance_id, processes_of, sidecar

BASE_PYTHON = os.path.join(sys.base_prefix, "bin", "python3")


async def exchange(path: str, request: bytes) -> bytes:
    """Send bytes on a connection of its own and return everything that comes back."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize(
    ("request_line", "status", "code"),
    [
        (b"GET /nowhere HTTP/1.1", 404, "not_found"),
        (b"POST /health HTTP/1.1", 404, "not_found"),
        (b"POST /send?n=-1 HTTP/1.1", 400, "bad_request"),
        (b"POST /send HTTP/1.1", 400, "bad_request"),
        (b"GET /stream?from=x HTTP/1.1", 400, "bad_request"),
        (b"GET /stream?from=0 HTTP/1.1", 409, "instance_mismatch"),
        (b"POST /ack HTTP/1.1", 400, "bad_request"),
        (b"POST /configure HTTP/1.1", 400, "bad_request"),
        (b"no HTTP at all", 400, "bad_request"),
    ],
)
async def test_what_cannot_be_served_is_refused_in_form(request_line: bytes, status: int, code: str) -> None:
    """A bad request gets a typed answer, and the next one is served."""
    async with sidecar() as one:
        path = one.instance.agentctl_url.removeprefix("unix:")
        answer = await exchange(path, request_line + b"\r\nhost: x\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert json.loads(body)["code"] == code
        assert (await one.client.status()).status == "ok"


@pytest.mark.parametrize(
    "payload",
    [
        {"command": [], "env": {}, "cwd": "/"},
        {"command": "true", "env": {}, "cwd": "/"},
        {"command": ["true"], "env": {"A": 1}, "cwd": "/"},
        {"command": ["true"], "env": {}},
        [],
    ],
)
async def test_a_configuration_of_wrong_shape_is_refused(payload: object) -> None:
    """Nothing is started from what cannot be read."""
    async with sidecar() as one:
        body = json.dumps(payload).encode()
        head = b"POST /configure HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        answer = await exchange(one.instance.agentctl_url.removeprefix("unix:"), head + body)
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "bad_request"
        assert (await one.client.status()).agent.state == "none"


async def test_clients_that_leave_in_the_middle_do_no_harm() -> None:
    """Half a head, half a body, a stream that is dropped: the others are served."""
    async with sidecar() as one:
        await one.run(["sh", "-c", "echo up; read line"])
        path = one.instance.agentctl_url.removeprefix("unix:")
        stream = b"GET /stream?from=0&instance_id=%s HTTP/1.1\r\nhost: x\r\n\r\n" % one.instance.instance_id.encode()
        for request in (
            b"",
            b"GET /hea",
            b"POST /send?n=1 HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf",
            stream,
        ):
            await exchange(path, request)
        await one.client.send(1, b"whole")
        assert (await one.everything())[0] == [b"up"]


async def test_a_configuration_may_be_large() -> None:
    """An environment of a megabyte arrives whole."""
    async with sidecar() as one:
        env = {**ENVIRONMENT, **{f"V{n}": "x" * 1000 for n in range(1000)}}
        await one.client.configure(command=["sh", "-c", "env | grep -c ^V"], env=env, cwd="/")
        await one.client.start()
        assert (await one.everything())[0] == [b"1000"]


@asynccontextmanager
async def one_file_agentctl(directory: Path, *more: str) -> AsyncIterator[tuple[str, str]]:
    """Run agentctl.pyz over TCP with an interpreter that has none of our packages; (instance id, url)."""
    archive, token_file = directory / "agentctl.pyz", directory / "token"
    build(str(archive))
    token_file.write_text("the token\n")
    instance_id = new_instance_id()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    arguments = ["--instance-id", instance_id, "--dir", str(directory / "run"), "--listen", f"tcp:127.0.0.1:{port}"]
    arguments += more
    process = await asyncio.create_subprocess_exec(
        BASE_PYTHON, "-I", "-S", str(archive), *arguments, "--token-file", str(token_file), cwd="/", env=ENVIRONMENT
    )
    try:
        yield instance_id, f"http://127.0.0.1:{port}"
        process.terminate()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_one_file_program_serves_over_tcp_with_a_token(tmp_path: Path) -> None:
    """A cold start without anything installed: ready, an agent, its journal, and an end in order on SIGTERM."""
    async with one_file_agentctl(tmp_path) as (instance_id, url):
        client = AgentctlClient(url, instance_id=instance_id, token="the token")
        assert (await client.wait_ready(60)).instance_id == instance_id
        await client.configure(command=["sh", "-c", "read word; echo heard $word; cat"], env=ENVIRONMENT, cwd="/")
        await client.start()
        await client.send(1, b"hello")
        seen = b""
        async for piece in client.stream(0):
            seen += piece
            if b"\nheard hello\n" in seen:
                break
        for token in ("", "the tokem", "the token2"):
            stranger = AgentctlClient(url, instance_id=instance_id, token=token)
            with pytest.raises(AgentctlError) as caught:
                await stranger.status()
            assert caught.value.reason == "unauthorized"
            await stranger.aclose()
        await client.aclose()
    assert processes_of(instance_id) == []
    assert json.loads((tmp_path / "run" / "agentctl.json").read_text())["ended"]


async def test_an_agentctl_that_starts_again_goes_on_in_its_journal(tmp_path: Path) -> None:
    """CONT-2: after a container's restart the offsets go on, the torn end is marked, and the nonce is new."""
    (tmp_path / "run" / "journal").mkdir(parents=True)
    (tmp_path / "run" / "journal" / f"{0:020d}.seg").write_bytes(b"whole\nhalf")
    async with one_file_agentctl(tmp_path) as (instance_id, url):
        client = AgentctlClient(url, instance_id=instance_id, token="the token")
        await client.wait_ready(60)
        await client.configure(command=["echo", "again"], env=ENVIRONMENT, cwd="/")
        await client.start()
        lines = b"".join([piece async for piece in client.stream(6)]).split(b"\n")
        assert lines[:2] == [b"half", b'\x1e{"ev":"torn"}']
        assert b"again" in lines
        await client.aclose()


async def test_what_earlier_instances_left_goes_but_for_the_last_one(tmp_path: Path) -> None:
    """In a sandbox they would pile up. Only what agentctl wrote is taken for one: the agent's own files stay."""
    for number, name in enumerate(("first", "second", "third", "agents")):
        (tmp_path / name).mkdir()
        identity = tmp_path / name / "agentctl.json"
        write_identity(
            str(tmp_path / name),
            Identity(api_version=1, instance_id=name, nonce="", pid=1, start_time=1, boot_id="another"),
        )
        os.utime(identity, ns=(number, number))
    (tmp_path / "agents").rename(tmp_path / "work")
    (tmp_path / "link").symlink_to(tmp_path / "first")
    async with one_file_agentctl(tmp_path, "--earlier", "1") as (instance_id, url):
        client = AgentctlClient(url, instance_id=instance_id, token="the token")
        await client.wait_ready(60)
        await client.aclose()
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["run", "third", "work"]


async def test_readiness_has_a_deadline() -> None:
    """Where nothing listens over TCP, a container may still be starting: it is waited for, and not for ever."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    client = AgentctlClient(f"http://127.0.0.1:{port}", instance_id="x")
    with pytest.raises(TimedOut):
        await client.wait_ready(0.3)
    await client.aclose()


def test_the_one_file_program_is_the_same_each_time(tmp_path: Path) -> None:
    """The archive holds only agentctl, the demo agent and h11, and its bytes depend on the sources alone."""
    first, second = tmp_path / "a.pyz", tmp_path / "b.pyz"
    build(str(first))
    subprocess.run([sys.executable, "-m", "kandev.agentctl.build", str(second)], check=True)
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        packages = {name.rpartition("/")[0] for name in archive.namelist()}
    assert packages == {"", "kandev", "kandev/agentctl", "kandev/demo", "h11"}


def test_a_tcp_address_needs_a_token(tmp_path: Path) -> None:
    """SEC: agentctl does not listen on a network without one."""
    command = [sys.executable, "-m", "kandev.agentctl", "--instance-id", "x", "--dir", str(tmp_path)]
    done = subprocess.run([*command, "--listen", "tcp:127.0.0.1:0"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--token-file" in done.stderr


async def test_a_sandbox_is_kept_awake_while_its_agent_is_needed(tmp_path: Path) -> None:
    """Its service is told once the agent runs, by its own form of request; where there is none nothing else changes."""
    told: asyncio.Queue[bytes] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        told.put_nowait(head + await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0])))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    with tempfile.TemporaryDirectory(prefix="kandev-") as short:
        service, own = os.path.join(short, "service"), os.path.join(short, "own")
        server = await asyncio.start_unix_server(take, service)
        words = ("--instance-id", "one", "--dir", str(tmp_path), "--listen", f"unix:{own}", "--awake", service)
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "kandev.agentctl", *words)
        async with asyncio.timeout(60):
            while not os.path.exists(own):
                await asyncio.sleep(0.02)
        client = AgentctlClient(f"unix:{own}", instance_id="one")
        try:
            await client.wait_ready(60)
            assert told.empty(), "no agent runs yet"
            await client.configure(command=["sleep", "60"], env=ENVIRONMENT, cwd=str(tmp_path))
            await client.start()
            await client.status()
            async with asyncio.timeout(30):
                request = await told.get()
            assert request.startswith(b"PUT /v1/tasks/kandev HTTP/1.1\r\n")
            assert json.loads(request.partition(b"\r\n\r\n")[2]) == {"expire": "5m"}
            await client.status()
            assert told.empty(), "at most once in a minute"
        finally:
            await client.aclose()
            process.terminate()
            await process.wait()
            server.close()


async def test_sources_that_are_cut_off_are_not_kept() -> None:
    """Whole, or not at all: what came before is still what a directory is made of."""
    async with sidecar() as one:
        head = b"POST /sources HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
        await exchange(one.instance.agentctl_url.removeprefix("unix:"), head + b"x" * 500)
        left = [name for name in os.listdir(one.instance.directory) if name.startswith("sources")]
        assert left == []
        assert (await one.client.status()).status == "ok"
        whole = await exchange(one.instance.agentctl_url.removeprefix("unix:"), head + b"x" * 1000)
        assert whole.endswith(b'{"bytes":1000}')


@pytest.mark.parametrize(
    "body",
    [
        b"content-length: 6\r\n\r\nab\r\ncd",
        b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n4\r\n\r\ncd\r\n0\r\n\r\n",
        b"content-length: 0\r\n\r\n",
    ],
)
async def test_a_body_is_streamed_by_its_length_or_in_chunks(body: bytes) -> None:
    """An engine measures an answer that is small enough, and leaves the connection open behind it."""
    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + body)
        await reader.read()
        writer.close()
        left.set()

    with tempfile.TemporaryDirectory(prefix="kandev-") as short:
        async with await asyncio.start_unix_server(answer, path := os.path.join(short, "socket")):
            pieces = await HttpPool(f"unix:{path}").stream("/archive")
            assert not isinstance(pieces, Answer)
            async with asyncio.timeout(30):
                assert b"".join([piece async for piece in pieces]) == (b"" if b": 0" in body else b"ab\r\ncd")
                await left.wait()
