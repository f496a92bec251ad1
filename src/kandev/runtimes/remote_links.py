"""Ways to an engine on another host: SSH, over which ports of that host are reached too, and TLS.

asyncssh is imported at the first use: a backend without remote hosts does not pay for it.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from kandev.config import RemoteDockerConfig
from kandev.errors import Conflict, RuntimeUnreachable
from kandev.runtimes.docker_address import engine_address
from kandev.runtimes.socket_tunnel import Pipe

if TYPE_CHECKING:
    from asyncssh import SSHClientConnection

__all__ = ["SshLink", "TlsLink", "link_to"]

CONNECT_S: Final = 10.0
"""How long a host may take to accept a connection, and to accept who we are."""
KEEPALIVE_S: Final = 5.0
KEEPALIVES: Final = 3
"""So many keepalives without an answer, and the connection counts as lost."""
_PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0)
_SOCKET: Final = "/var/run/docker.sock"
_PIECE_BYTES: Final = 64 * 1024

T = TypeVar("T")


def link_to(config: RemoteDockerConfig, environ: Mapping[str, str]) -> "SshLink | TlsLink":
    """Return the way that is configured, without I/O but for a context of the docker command. Raises Conflict."""
    if not config.host and not config.context:
        raise _unfit("No engine is configured: set host in [runtimes.remote_docker] (docs/runtimes.md).")
    address = engine_address(config.host, config.context, environ)
    scheme = urlsplit(address).scheme
    if scheme == "ssh":
        return SshLink(address, identity_file=config.identity_file, known_hosts=config.known_hosts)
    if scheme == "tcp":
        directory = config.tls_directory or environ.get("DOCKER_CERT_PATH", "")
        if not directory:
            raise _unfit(f"{address} is used with TLS only: set tls_directory in [runtimes.remote_docker].")
        return TlsLink(address, directory)
    raise _unfit(f"{address} is not on another host: write ssh://USER@HOST or tcp://HOST:PORT.")


class SshLink:
    """One SSH connection, made when it is needed and again, with pauses, when it was lost.

    Keys come from the user's agent and ~/.ssh, or from `identity_file`. The host's own must be in the user's
    known_hosts, or in the file of that name; one that is not known is refused.
    """

    reaches_ports = True

    def __init__(self, address: str, *, identity_file: str = "", known_hosts: str = "") -> None:
        parts = urlsplit(address)
        if not parts.hostname:
            raise _unfit(f"{address} names no host: write ssh://USER@HOST[:PORT][/PATH/OF/docker.sock].")
        self.address = address
        self._host = parts.hostname
        self._socket = parts.path.rstrip("/") or _SOCKET
        self._options: dict[str, Any] = {
            name: value
            for name, value in (
                ("port", parts.port),
                ("username", parts.username),
                ("known_hosts", os.path.expanduser(known_hosts)),
                ("client_keys", [os.path.expanduser(identity_file)] if identity_file else None),
            )
            if value
        }
        self._connection: SSHClientConnection | None = None
        self._attempt: asyncio.Task[SSHClientConnection] | None = None
        self._failures = 0

    async def open_engine(self) -> Pipe:
        """Open the engine's socket."""
        connection = await self._connected()
        return _SshPipe(*await _translated(connection.open_unix_connection(self._socket)))

    async def open_port(self, port: int) -> Pipe:
        """Open a port on the host's loopback."""
        connection = await self._connected()
        return _SshPipe(*await _translated(connection.open_connection("127.0.0.1", port)))

    async def aclose(self) -> None:
        """Close the connection."""
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
        if self._connection is not None:
            self._connection.abort()

    async def _connected(self) -> "SSHClientConnection":
        """Return the connection; whoever needs one at the same time waits for the same attempt."""
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.get_running_loop().create_task(self._connect(), name=f"ssh {self._host}")
            self._attempt.add_done_callback(_look_at)
        return await asyncio.shield(self._attempt)

    async def _connect(self) -> "SSHClientConnection":
        import asyncssh  # noqa: PLC0415 - see the head of this module

        await asyncio.sleep(_PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)])
        self._failures += 1
        try:
            async with asyncio.timeout(2 * CONNECT_S):
                self._connection = await asyncssh.connect(
                    self._host,
                    connect_timeout=CONNECT_S,
                    login_timeout=CONNECT_S,
                    keepalive_interval=KEEPALIVE_S,
                    keepalive_count_max=KEEPALIVES,
                    **self._options,
                )
        except TimeoutError as error:
            raise self._unreachable("no answer in time") from error
        except (asyncssh.Error, OSError, ValueError) as error:  # ValueError: a key or a file that cannot be read
            raise self._unreachable(str(error)) from error
        self._failures = 0
        return self._connection

    def _unreachable(self, why: str) -> RuntimeUnreachable:
        return RuntimeUnreachable(f"{self._host} cannot be reached by SSH: {why}", reason="host_unreachable")


class TlsLink:
    """Connections by TLS. `directory` holds ca.pem, cert.pem and key.pem, as for the docker command."""

    reaches_ports = False

    def __init__(self, address: str, directory: str) -> None:
        parts = urlsplit(address)
        if not parts.hostname or not parts.port:
            raise _unfit(f"{address} names no host and port: write tcp://HOST:PORT.")
        self.address = address
        self._host, self._port = parts.hostname, parts.port
        place = os.path.expanduser(directory)
        try:
            self._context = ssl.create_default_context(cafile=os.path.join(place, "ca.pem"))
            self._context.load_cert_chain(os.path.join(place, "cert.pem"), os.path.join(place, "key.pem"))
        except OSError as error:  # ssl.SSLError among them
            raise _unfit(f"ca.pem, cert.pem or key.pem in {place} cannot be used: {error}") from error

    async def open_engine(self) -> Pipe:
        """Open a connection to the engine."""
        try:
            async with asyncio.timeout(CONNECT_S):
                return _TcpPipe(*await asyncio.open_connection(self._host, self._port, ssl=self._context))
        except OSError as error:  # ssl.SSLError and TimeoutError among them
            why = str(error) or "no answer in time"
            raise RuntimeUnreachable(f"{self._host} cannot be reached: {why}", reason="host_unreachable") from error

    async def open_port(self, port: int) -> Pipe:
        """Refuse: the engine is all that can be reached."""
        raise ConnectionRefusedError(f"port {port} of {self._host} cannot be reached by the engine's connection")

    async def aclose(self) -> None:
        """Do nothing: connections are their openers'."""


class _SshPipe:
    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        data: bytes = await _translated(self._reader.read(_PIECE_BYTES))
        return data

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await _translated(self._writer.drain())

    async def aclose(self) -> None:
        self._writer.channel.abort()


class _TcpPipe:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        return await self._reader.read(_PIECE_BYTES)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.close()


async def _translated(asked: Awaitable[T]) -> T:
    """Return what a channel gives; what asyncssh raises becomes ConnectionError."""
    import asyncssh  # noqa: PLC0415 - see the head of this module

    try:
        return await asked
    except (asyncssh.Error, asyncssh.ChannelOpenError) as error:
        raise ConnectionError(str(error) or type(error).__name__) from error


def _look_at(attempt: "asyncio.Task[SSHClientConnection]") -> None:
    """An attempt whose askers all went away has nobody else to look at its error."""
    if not attempt.cancelled():
        attempt.exception()


def _unfit(text: str) -> Conflict:
    return Conflict(text, reason="runtime_not_configured")
