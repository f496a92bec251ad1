"""The SSH connection to another host, against a server in this process: made, lost, made again, refused (CONT-5)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest

from kandev.errors import RuntimeUnreachable
from kandev.runtimes.remote_links import SshLink
from kandev.runtimes.socket_tunnel import SocketTunnel

LIMIT = 30.0


class Server(asyncssh.SSHServer):
    """Lets whoever has the key open anything."""

    def unix_connection_requested(self, _path: str) -> bool:
        return True


class Host:
    """An SSH server, and something that listens behind it and says everything back."""

    def __init__(self, directory: Path) -> None:
        self.identity, self.known_hosts, self.socket = directory / "key", directory / "known_hosts", directory / "s"
        self.accepted: list[asyncssh.SSHServerConnection] = []
        self.port = 0
        user, self._key = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
        user.write_private_key(self.identity)
        user.write_public_key(directory / "authorized")
        self._authorized = directory / "authorized"
        self._acceptor: asyncssh.SSHAcceptor | None = None

    def link(self) -> SshLink:
        address = f"ssh://somebody@127.0.0.1:{self.port}{self.socket}"
        return SshLink(address, identity_file=str(self.identity), known_hosts=str(self.known_hosts))

    async def start(self) -> None:
        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            self.port,
            server_factory=Server,
            server_host_keys=[self._key],
            authorized_client_keys=str(self._authorized),
            acceptor=self.accepted.append,
        )
        self.port = self._acceptor.get_port()
        known = self._key.export_public_key().decode()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {known}")

    async def stop(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        await self.cut()

    async def cut(self) -> None:
        """Ends all connections without a word."""
        for connection in self.accepted:
            connection.abort()
        self.accepted.clear()


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    made = Host(tmp_path)
    await made.start()
    writers: list[asyncio.StreamWriter] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(echo, made.socket)
    yield made
    server.close()
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    await made.stop()


@pytest.fixture
async def link(host: Host) -> AsyncIterator[SshLink]:
    made = host.link()
    yield made
    await made.aclose()


async def test_many_pipes_share_one_connection(host: Host, link: SshLink) -> None:
    """Also when they are asked for at the same time, before there is a connection."""
    pipes = await asyncio.gather(*(link.open_engine() for _ in range(5)))
    for number, pipe in enumerate(pipes):
        await pipe.write(str(number).encode())
        assert await pipe.read() == str(number).encode()
        await pipe.aclose()
    assert len(host.accepted) == 1


async def test_cont_5_a_lost_connection_is_made_again(host: Host, link: SshLink) -> None:
    """Open pipes end with ConnectionError or their end; the next one is on a new connection."""
    pipe = await link.open_engine()
    await host.cut()
    with contextlib.suppress(ConnectionError):
        assert await pipe.read() == b""
    async with asyncio.timeout(LIMIT):
        again = await link.open_engine()
    await again.write(b"here")
    assert await again.read() == b"here"


async def test_cont_5_a_host_that_comes_back_is_reached(host: Host, link: SshLink) -> None:
    """While nobody listens each attempt says so; it is not given up."""
    await host.stop()
    for _ in range(2):
        with pytest.raises(RuntimeUnreachable, match=r"127\.0\.0\.1 cannot be reached by SSH"):
            await link.open_engine()
    await host.start()
    await (await link.open_engine()).aclose()


async def test_a_key_that_is_not_known_is_refused(host: Host, link: SshLink) -> None:
    """Whoever answers in the host's place gets nothing."""
    stranger = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    host.known_hosts.write_text(f"[127.0.0.1]:{host.port} {stranger}")
    with pytest.raises(RuntimeUnreachable, match="Host key is not trusted"):
        await link.open_engine()


async def test_a_key_that_the_host_does_not_take_is_said(host: Host, link: SshLink) -> None:
    """It is no reason to ask for a password."""
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(host.identity)
    with pytest.raises(RuntimeUnreachable, match="Permission denied"):
        await link.open_engine()


async def test_a_key_file_that_is_none_is_said(host: Host, link: SshLink) -> None:
    """As any other reason why the host cannot be reached."""
    host.identity.write_text("no key")
    with pytest.raises(RuntimeUnreachable, match="cannot be reached by SSH"):
        await link.open_engine()


async def test_a_socket_that_nobody_serves_is_a_connection_error(host: Host, link: SshLink) -> None:
    """The host was reached, so it is not unknown."""
    host.socket.unlink()
    with pytest.raises(ConnectionError):
        await link.open_engine()


async def test_a_tunnel_outlives_its_connections(host: Host, link: SshLink, tmp_path: Path) -> None:
    """What connects to it is cut with the connection, and may connect again; why not is kept."""
    path = str(tmp_path / "t")
    tunnel = SocketTunnel(path, link.open_engine)
    await tunnel.open()
    try:
        for _ in range(2):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"x" * 100_000)
            async with asyncio.timeout(LIMIT):
                assert await reader.readexactly(100_000) == b"x" * 100_000
                await host.cut()
                assert await reader.read() == b""
            writer.close()
            assert tunnel.trouble == ""
        await host.stop()
        reader, writer = await asyncio.open_unix_connection(path)
        assert await reader.read() == b""
        writer.close()
        assert "cannot be reached by SSH" in tunnel.trouble
    finally:
        await tunnel.aclose()
    assert not Path(path).exists()
