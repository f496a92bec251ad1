"""The Sprites service of the tests as the official client sees it, and our client beside that on the same sandboxes."""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sprites import AsyncSpritesClient
from sprites.exceptions import AuthenticationError, NotFoundError

from kandev.errors import AgentctlError, Conflict, RuntimeUnreachable
from kandev.runtimes.sprites_api import SpritesApi
from runtimes.fake_sprites import TOKEN, FakeSprites

LISTEN = """
import socket
server = socket.create_server(("127.0.0.1", {port}))
while True:
    connection, _ = server.accept()
    connection.sendall(connection.recv(100).upper())
    connection.close()
"""


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[FakeSprites]:
    async with FakeSprites(tmp_path / "sprites") as made:
        yield made


@pytest.fixture
async def official(service: FakeSprites, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncSpritesClient]:
    """The official client; it tells nobody who uses it."""
    monkeypatch.setenv("SPRITES_CLIENT_SIGNALS", "0")
    async with AsyncSpritesClient(TOKEN, base_url=service.url) as client:
        yield client


@pytest.fixture
async def api(service: FakeSprites) -> AsyncIterator[SpritesApi]:
    """Ours; it waits for a second at most."""
    made = SpritesApi(service.url, TOKEN, wait_s=1)
    yield made
    await made.aclose()


@pytest.fixture
def port() -> int:
    """A port that is free now, and that the system gives to nobody who asks for any."""
    for candidate in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", candidate)):
            return candidate
    raise AssertionError("no port is free")


async def test_sandboxes_are_made_found_and_removed(official: AsyncSpritesClient, api: SpritesApi) -> None:
    """What one client made the other one finds, with its labels; what is gone is none, and no error to remove."""
    await official.create_sprite("theirs", labels=["a"])
    made = await api.create("ours", ["b"])
    assert (made.name, made.labels) == ("ours", ["b"])
    found = await api.get("theirs")
    assert found is not None
    assert found.labels == ["a"]
    assert (await official.get_sprite("ours")).name == "ours"
    assert sorted(one.name for one in (await official.list_sprites()).sprites) == ["ours", "theirs"]
    with pytest.raises(Conflict) as raised:
        await api.create("ours", [])
    assert raised.value.reason == "name_taken"
    await api.destroy("theirs")
    await api.destroy("theirs")
    with pytest.raises(NotFoundError):
        await official.get_sprite("theirs")
    assert await api.get("theirs") is None


async def test_files_and_commands_are_the_same_for_both(
    official: AsyncSpritesClient, api: SpritesApi, tmp_path: Path
) -> None:
    """Bytes, modes, both streams and exit codes, whichever client asks."""
    theirs = await official.create_sprite("box")
    big = tmp_path / "big"
    big.write_bytes(bytes(range(256)) * 4000)
    await api.write("box", "/in/there/big", big, mode=0o600)
    assert await theirs.filesystem().path("/in/there/big").read_bytes() == big.read_bytes()
    await theirs.filesystem().path("/script").write_text("echo out; echo err >&2; exit 3")
    ran = await api.run("box", ["sh", "script"])
    assert (ran.code, ran.out, ran.err) == (3, b"out\n", b"err\n")
    done = await theirs.run("sh", "script", capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert [entry.name for entry in await api.listing("box", "/in/there")] == ["big"]
    assert await api.listing("box", "/nowhere") == []
    await api.read("box", "/in/there/big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    assert (await api.run("box", ["stat", "-c", "%a", "in/there/big"])).out == b"600\n"


async def test_services_start_again_and_end(
    official: AsyncSpritesClient, api: SpritesApi, service: FakeSprites, port: int
) -> None:
    """A service that is killed comes back, a cold start brings it back, too, and a tunnel leads to it."""
    theirs = await official.create_sprite("box")
    await api.write("box", "/listen.py", LISTEN.format(port=port).encode(), mode=0o644)
    await api.put_service("box", "echo", ["python3", "listen.py"])
    assert [one.name for one in await theirs.list_services()] == ["echo"]
    assert await _said(api, port) == b"HELLO"
    service.boxes["box"].signal(9)
    assert await _said(api, port) == b"HELLO"
    await service.cool("box")
    assert service.boxes["box"].pids() == []
    assert await _said(api, port) == b"HELLO"
    await api.delete_service("box", "echo")
    await api.delete_service("box", "echo")
    assert await theirs.list_services() == []
    assert service.boxes["box"].pids() == []


async def _said(api: SpritesApi, port: int) -> bytes:
    async with asyncio.timeout(30):
        while True:
            async with api.socket("/box/proxy") as tunnel:
                await tunnel.send_json({"host": "localhost", "port": port})
                if (await tunnel.receive_json())["status"] == "connected":
                    await tunnel.send_bytes(b"hello")
                    return bytes((await tunnel.receive()).data)
            await asyncio.sleep(0.1)


async def test_a_wrong_token_is_unknown_and_not_gone(service: FakeSprites) -> None:
    """Both clients say so; ours leaves open what is there (CONT-5), and the error does not have the token."""
    async with AsyncSpritesClient("wrong/secret", base_url=service.url) as official:
        with pytest.raises(AuthenticationError):
            await official.get_sprite("box")
    api = SpritesApi(service.url, "wrong/secret")
    try:
        for asked in (api.get("box"), api.run("box", ["true"])):
            with pytest.raises(RuntimeUnreachable) as raised:
                await asked
            assert raised.value.reason == "unauthorized"
            assert "secret" not in repr(raised.value) + repr(raised.value.__cause__)
    finally:
        await api.aclose()


async def test_later_is_waited_for_within_bounds(service: FakeSprites, api: SpritesApi) -> None:
    """As long as the service says, and not longer than whoever waits; each wait is told."""
    told = []
    patient = api.telling(lambda: told.append(time.monotonic()))
    service.refuse(times=2, after="0.3")
    began = time.monotonic()
    assert await patient.get("box") is None
    assert len(told) == 2
    assert time.monotonic() - began >= 0.6
    service.refuse(times=1, after="60")
    with pytest.raises(RuntimeUnreachable, match="later"):
        await patient.get("box")
    service.refuse(times=1, status=503, after="0.1", path="/exec")
    await api.create("box", [])
    assert (await patient.run("box", ["echo", "yes"])).out == b"yes\n"


async def test_faults_are_asked_again_and_told_in_the_end(service: FakeSprites, api: SpritesApi) -> None:
    """A 502 is no answer; a service that is gone is none, either."""
    service.refuse(times=2, status=502, after="0.1")
    assert await api.get("box") is None
    service.refuse(times=100, status=502, after="0.4")
    with pytest.raises(RuntimeUnreachable):
        await api.get("box")
    service.forgive()
    elsewhere = SpritesApi("http://127.0.0.1:9", TOKEN, wait_s=0.3)
    try:
        with pytest.raises(RuntimeUnreachable):
            await elsewhere.get("box")
        with pytest.raises(RuntimeUnreachable):
            await elsewhere.run("box", ["true"])
    finally:
        await elsewhere.aclose()


async def test_a_command_that_is_cut_off_is_an_error(service: FakeSprites, api: SpritesApi) -> None:
    """An end that nobody told is none."""
    await api.create("box", [])
    running = asyncio.create_task(api.run("box", ["sleep", "60"]))
    async with asyncio.timeout(10):
        while not service.boxes["box"].pids():
            await asyncio.sleep(0.02)
    await service.boxes["box"].cut()
    with pytest.raises(RuntimeUnreachable):
        await running
    with pytest.raises(AgentctlError) as raised:
        await api.run("nowhere", ["true"])
    assert raised.value.reason == "sandbox_gone"
