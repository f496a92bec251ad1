"""A Docker engine on another host: what DockerEngine knows, and volumes, files and programs in containers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.errors import AgentctlError, Conflict, RuntimeUnreachable
from kandev.runtimes.docker_engine import CALL_S, Absent, Container, DockerEngine
from kandev.runtimes.http_pool import Answer, HttpPool
from kandev.runtimes.remote_links import SshLink, TlsLink
from kandev.runtimes.socket_tunnel import Pipe, SocketTunnel

if TYPE_CHECKING:
    from aiodocker import Docker
    from aiodocker.stream import Stream

__all__ = ["RemoteEngine"]

_FETCH_S: Final = 600.0
_OK: Final = 200
_ABSENT: Final = 404


class RemoteEngine(DockerEngine):
    """The engine behind `link`, at a socket of our own that leads there."""

    def __init__(self, link: SshLink | TlsLink, path: Path) -> None:
        super().__init__(f"unix://{path}", shown=link.address)
        self._tunnel = SocketTunnel(str(path), link.open_engine)
        self._is_open = False
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Listen at the socket; the host is asked at the first use."""
        async with self._opening:
            if not self._is_open:
                await self._tunnel.open()
                self._is_open = True

    async def aclose(self) -> None:
        """Close all connections to the engine."""
        await super().aclose()
        if self._is_open:
            await self._tunnel.aclose()

    async def image_user(self, image: str) -> str:
        """Return whom the image's containers run as; '' for root. Raises AgentctlError no_image."""
        try:
            async with self._asked() as docker:
                return str((await docker.images.inspect(image))["Config"].get("User") or "")
        except Absent as absent:
            text = f"The engine at {self.shown} has no image {image}; get it there with: docker pull {image}"
            raise AgentctlError(text, reason="no_image") from absent

    async def has_volume(self, name: str, labels: Mapping[str, str]) -> bool:
        """Tell whether there is that volume. Raises Conflict for one that does not carry `labels` (CONT-3)."""
        try:
            async with self._asked() as docker:
                shown = await (await _volumes(docker).get(name)).show()
        except Absent:
            return False
        if not labels.items() <= (shown.get("Labels") or {}).items():
            raise Conflict(f"A volume named {name} is there, and it is not of this home.", reason="name_taken")
        return True

    async def volumes(self, labels: Mapping[str, str]) -> list[str]:
        """Return the names of the volumes that carry all these labels."""
        wanted = {"label": [f"{key}={value}" for key, value in labels.items()]}
        async with self._asked() as docker:
            found = await _volumes(docker).list(filters=wanted)
        return [one["Name"] for one in found["Volumes"] or []]

    async def make_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Make a volume; one that is there stays."""
        async with self._asked() as docker:
            failpoint("volume.before_create")
            await _volumes(docker).create({"Name": name, "Labels": dict(labels)})
            failpoint("volume.after_create")

    async def remove_volume(self, name: str) -> None:
        """Remove a volume with everything in it. One that is gone is no error."""
        with contextlib.suppress(Absent):
            async with self._asked() as docker:
                volume = await _volumes(docker).get(name)
                failpoint("volume.before_remove")
                await volume.delete()
                failpoint("volume.after_remove")

    async def put(self, container: Container, archive: bytes) -> None:
        """Unpack a tar at the root of a container, which need not run."""
        target = f"/containers/{container.id}/archive?path=/"
        async with self._plainly() as pool:
            failpoint("container.before_put")
            _check(await pool.call("PUT", target, archive))
            failpoint("container.after_put")

    async def fetch(self, container: Container, path: str, target: Path, *, limit: int) -> bool:
        """Write a tar of a path in a container to a file; False where there is none. Raises AgentctlError too_large."""
        async with self._plainly(_FETCH_S) as pool:
            pieces = await pool.stream(f"/containers/{container.id}/archive?path={quote(path)}")
            if isinstance(pieces, Answer):
                if pieces.status == _ABSENT:
                    return False
                raise _refused(pieces)
            left = limit
            with contextlib.closing(target.open("wb")) as file:
                async with contextlib.aclosing(pieces):
                    async for piece in pieces:
                        left -= len(piece)
                        if left < 0:
                            raise AgentctlError("What is to come from the container is too large.", reason="too_large")
                        file.write(piece)
        return True

    async def run_piped(self, container: Container, command: Sequence[str]) -> Pipe:
        """Run a program in a running container; what it reads and writes is the pipe."""
        async with self._asked() as docker:
            made = await docker.containers.container(container.id).exec(command, stdin=True, stderr=False)
            stream = made.start()
            await stream.__aenter__()  # the pipe's aclose ends it
        return _ExecPipe(stream)

    @contextlib.asynccontextmanager
    async def _plainly(self, timeout_s: float = CALL_S) -> AsyncIterator[HttpPool]:
        """Give HTTP without aiodocker, which would hold whole files in memory."""
        pool = HttpPool(self.address.replace("unix://", "unix:", 1))
        try:
            async with asyncio.timeout(timeout_s):
                yield pool
        except OSError as error:  # TimeoutError among them
            raise self._unreachable(str(error) or "in time") from error
        finally:
            await pool.aclose()

    def _unreachable(self, why: str) -> RuntimeUnreachable:
        return super()._unreachable(self._tunnel.trouble or why)


class _ExecPipe:
    def __init__(self, stream: "Stream") -> None:
        self._stream = stream

    async def read(self) -> bytes:
        from aiohttp import ClientError  # noqa: PLC0415 - see docker_engine.py

        try:
            message = await self._stream.read_out()
        except ClientError as error:
            raise ConnectionError(str(error)) from error
        return message.data if message else b""

    async def write(self, data: bytes) -> None:
        try:
            await self._stream.write_in(data)
        except (AssertionError, RuntimeError) as error:  # what aiodocker says of one that has ended
            raise ConnectionError("the program in the container has ended") from error

    async def aclose(self) -> None:
        response = self._stream._resp  # noqa: SLF001 - its own close is a coroutine that only half closes
        if response is not None:
            response.close()


def _volumes(docker: "Docker") -> Any:
    """Return what aiodocker has for volumes, which tells no types."""
    return docker.volumes


def _check(answer: Answer) -> None:
    if answer.status != _OK:
        raise _refused(answer)


def _refused(answer: Answer) -> AgentctlError:
    words: Any = ""
    with contextlib.suppress(msgspec.MsgspecError, AttributeError):
        words = msgspec.json.decode(answer.body).get("message")
    return AgentctlError(f"The Docker engine says: {words or answer.status}", reason="engine_refused")
