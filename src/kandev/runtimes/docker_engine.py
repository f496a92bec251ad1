"""The Docker engine as far as it is needed here: containers of one home, made, found, started, ended and removed.

aiodocker is imported at the first use: it takes a while, and 15 MB, that a backend without containers does not pay.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.errors import AgentctlError, RuntimeUnreachable
from kandev.runtimes.http_pool import HttpPool

if TYPE_CHECKING:
    from aiodocker import Docker

__all__ = ["CALL_S", "CREATING", "STARTING", "Absent", "Container", "DockerEngine"]

CREATING: Final = "creating_container"
STARTING: Final = "starting_container"
"""Stages of a start, for whoever waits."""

CALL_S: Final = 20.0
"""How long the engine may take for a call that waits for nothing."""
LAST_WORDS: Final = 20
_GONE: Final = 404
_CONFLICT: Final = 409
_IN_THE_WAY: Final = "in_the_way"
_PAUSE_S: Final = 0.05
_NO_ANSWER: Final = 900  # what aiodocker says where there is no answer to have a status


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container as the engine tells it. `ports` maps its own ("8765/tcp") to those on this machine's loopback."""

    id: str
    running: bool
    exit_code: int = 0
    error: str = ""
    labels: Mapping[str, str] = {}
    ports: Mapping[str, int] = {}


class DockerEngine:
    """An engine at a Unix socket. Each call raises RuntimeUnreachable where it does not answer.

    `shown` is what a person knows it by, where that is not its address.
    """

    def __init__(self, address: str, *, shown: str = "") -> None:
        self.address = address
        self.shown = shown or address
        self._docker: Docker | None = None

    async def ping(self, image: str) -> str:
        """Return what is wrong with the engine or the image; '' when both are there. Without aiodocker."""
        pool = HttpPool(self.address.replace("unix://", "unix:", 1))
        try:
            async with asyncio.timeout(CALL_S):
                if (await pool.call("GET", "/_ping")).status != 200:
                    return f"What answers at {self.shown} is no Docker engine."
                found = await pool.call("GET", f"/images/{image}/json")
        except (OSError, AgentctlError) as error:  # TimeoutError among them
            return self._unreachable(str(error) or "in time").message
        finally:
            await pool.aclose()
        return f"The engine has no image {image}; get it with: docker pull {image}" if found.status == _GONE else ""

    async def find(self, name: str) -> Container | None:
        """Return the container of that name or id."""
        try:
            async with self._asked() as docker:
                return _told(await docker.containers.container(name).show())
        except Absent:
            return None

    async def list(self, labels: Mapping[str, str]) -> list[Container]:
        """Return the containers that carry all these labels, stopped ones too. Their ports are not told."""
        wanted = [f"{key}={value}" for key, value in labels.items()]
        async with self._asked() as docker:
            found = await docker.containers.list(all=True, filters=json.dumps({"label": wanted}))
        return [Container(id=one["Id"], running=one["State"] == "running", labels=dict(one["Labels"])) for one in found]

    async def create(self, name: str, spec: Mapping[str, Any]) -> Container:
        """Make a container. Raises AgentctlError with the engine's words: no such image, a mount that is not there."""
        try:
            async with self._asked() as docker:
                failpoint("container.before_create")
                made = await docker.containers.create(dict(spec), name=name)
                failpoint("container.after_create")
        except Absent as absent:
            raise AgentctlError(f"The engine has no image {spec['Image']}: {absent}", reason="no_image") from absent
        return Container(id=made.id, running=False)

    async def start(self, container: Container) -> None:
        """Start a container that is made or stopped. Raises AgentctlError with the engine's words."""
        async with self._asked() as docker:
            failpoint("container.before_start")
            await docker.containers.container(container.id).start()
            failpoint("container.after_start")

    async def stop(self, container: Container, *, grace_s: int) -> None:
        """End a container's processes: SIGTERM, then SIGKILL. One that is gone or stopped is no error."""
        with contextlib.suppress(Absent):
            async with self._asked(grace_s) as docker:
                failpoint("container.before_stop")
                await docker.containers.container(container.id).stop(t=grace_s)
                failpoint("container.after_stop")

    async def remove(self, container: Container) -> None:
        """Kill and remove a container. One that is gone is no error; one that somebody else removes is waited for."""
        try:
            async with self._asked() as docker:
                failpoint("container.before_remove")
                await docker.containers.container(container.id).delete(force=True, v=True)
                failpoint("container.after_remove")
        except Absent:
            return
        except AgentctlError as error:
            if error.reason != _IN_THE_WAY:
                raise
            await self._removed(container)

    async def _removed(self, container: Container) -> None:
        deadline = asyncio.get_running_loop().time() + CALL_S
        while await self.find(container.id) is not None:
            if asyncio.get_running_loop().time() > deadline:
                raise AgentctlError("The container is being removed, and does not go.", reason=_IN_THE_WAY)
            await asyncio.sleep(_PAUSE_S)

    async def last_words(self, container: Container) -> str:
        """Return the end of what a container wrote."""
        try:
            async with self._asked() as docker:
                lines = await docker.containers.container(container.id).log(stdout=True, stderr=True, tail=LAST_WORDS)
        except Absent:
            return ""
        return "".join(lines).strip()

    async def aclose(self) -> None:
        """Close the connections; the containers go on."""
        docker, self._docker = self._docker, None
        if docker is not None:
            await docker.close()

    @contextlib.asynccontextmanager
    async def _asked(self, longer_s: float = 0) -> "AsyncIterator[Docker]":
        """Give the client, and turn what it raises into errors of ours."""
        import aiohttp  # noqa: PLC0415 - see the head of this module
        from aiodocker import Docker, DockerError  # noqa: PLC0415 - as above

        if self._docker is None:
            self._docker = Docker(url=self.address)
        try:
            async with asyncio.timeout(CALL_S + longer_s):
                yield self._docker
        except DockerError as error:
            if error.status == _GONE:
                raise Absent(error.message) from error
            if error.status >= _NO_ANSWER:
                raise self._unreachable(error.message) from error
            reason = _IN_THE_WAY if error.status == _CONFLICT else "engine_refused"
            raise AgentctlError(f"The Docker engine says: {error.message}", reason=reason) from error
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError among them
            raise self._unreachable(str(error) or "in time") from error

    def _unreachable(self, why: str) -> RuntimeUnreachable:
        text = f"The Docker engine at {self.shown} does not answer: {why}"
        return RuntimeUnreachable(text, reason="engine_unreachable")


class Absent(AgentctlError):
    """Raised where the engine knows no such container or image."""


def _told(show: Mapping[str, Any]) -> Container:
    state = show["State"]
    bindings = show["NetworkSettings"]["Ports"] or {}
    return Container(
        id=show["Id"],
        running=bool(state["Running"]),
        exit_code=int(state["ExitCode"]),
        error=str(state.get("Error") or ""),
        labels=dict(show["Config"]["Labels"] or {}),
        ports={port: int(found[0]["HostPort"]) for port, found in bindings.items() if found},
    )
