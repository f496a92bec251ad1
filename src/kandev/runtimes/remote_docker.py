"""Agents in containers of an engine on another host: one for each session, kept until that is deleted (CONT-5, CONT-6).

Everything of a session is in a volume there. Nothing is asked when the backend starts: a session that is wanted is
reconnected by what its row names. A host that cannot be reached leaves everything as it is.
"""

import asyncio
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec
import structlog

from kandev.agents.place import Place
from kandev.config import RemoteDockerConfig
from kandev.domain.constants import AGENTCTL_READY_S
from kandev.errors import AgentctlError, AgentError, Conflict, KandevError, RuntimeUnreachable, TimedOut
from kandev.runtimes.base import Instance, InstanceRequest, RuntimeReport
from kandev.runtimes.container_spec import container_name, home_labels, publishes_port
from kandev.runtimes.docker_engine import Container
from kandev.runtimes.far_runtime import Door, FarRuntime
from kandev.runtimes.local import stop_agent
from kandev.runtimes.remote_container import (
    ARCHIVE,
    ROOT,
    RemoteFiles,
    journal_from,
)
from kandev.runtimes.remote_door import ContainerDoor
from kandev.runtimes.remote_engine import RemoteEngine
from kandev.runtimes.remote_links import SshLink, TlsLink, link_to
from kandev.runtimes.remote_maker import STOP_S, ContainerMaker
from kandev.runtimes.sockets import socket_path

__all__ = ["RemoteDockerRuntime"]

log = structlog.get_logger(__name__)

_LOOK_S: Final = 2.0
_STDERR_BYTES: Final = 64 << 20


class RemoteDockerRuntime(FarRuntime[RemoteDockerConfig]):
    """One container and one volume for each session."""

    name = "remote_docker"
    ask_s = 8.0
    wake_s = AGENTCTL_READY_S

    @cached_property
    def _link(self) -> SshLink | TlsLink:
        return link_to(self._config, self._environ)

    @cached_property
    def _engine_unopened(self) -> RemoteEngine:
        return RemoteEngine(self._link, Path(socket_path(str(self._directory))))

    async def _engine(self) -> RemoteEngine:
        engine = self._engine_unopened
        await engine.open()
        return engine

    @cached_property
    def _archive(self) -> Path:
        """The file with agentctl."""
        from kandev.agentctl.build import build_in  # noqa: PLC0415 - a backend without containers needs no zipfile

        return build_in(self._directory)

    @property
    def place(self) -> Place:
        """A container: its own Python and its own environment."""
        return Place(python="python3", demo_agent=(ARCHIVE, "demo-agent"), own_environment=True)

    async def create_instance(self, request: InstanceRequest) -> Instance:
        """Start the session's container, which is made where there is none.

        Raises Conflict for what must be set, AgentctlError with the engine's words, RuntimeUnreachable.
        """
        maker = ContainerMaker(
            await self._engine(),
            self._config,
            home_id=self._home_id(),
            environ=self._environ,
            cap_bytes=self._cap_bytes,
            publishes=self._publishes,
        )
        found = await self._find(request.session_id)
        archive = await asyncio.to_thread(lambda: self._archive)
        made = await maker.start(found, request, self._files(request.session_id), archive)
        instance = msgspec.structs.replace(
            self.locate(request.session_id, request.instance_id),
            container_id=made.container.id,
            cwd=f"{ROOT}/{os.path.basename(request.cwd)}" if request.cwd else "",
            note=made.note,
        )
        await self._open_door(instance)
        return msgspec.structs.replace(instance, nonce=await self._nonce(instance, made.container))

    async def _nonce(self, instance: Instance, container: Container) -> str:
        """Wait until agentctl answers, and return its nonce; a container that ends before has its last words told."""
        deadline = asyncio.get_running_loop().time() + AGENTCTL_READY_S
        client = self._plain_client(instance)
        try:
            while True:
                try:
                    return (await client.wait_ready(_LOOK_S)).nonce
                except TimedOut:
                    await self._raise_if_ended(container)
                    if asyncio.get_running_loop().time() > deadline:
                        raise
        except AgentError as error:
            self._files(Path(instance.directory).parent.name).forget_archive()  # it may be broken there
            text = f"agentctl does not answer in the container: {error.message}"
            raise AgentctlError(text, reason="agentctl_not_ready") from error
        finally:
            await client.aclose()

    async def _raise_if_ended(self, container: Container) -> None:
        engine = await self._engine()
        told = await engine.find(container.id)
        if told is None or not told.running:
            code = told.exit_code if told else None
            words = await engine.last_words(container)
            text = f"The container ended at its start (exit code {code}). {words}".strip()
            raise AgentctlError(text, reason="container_ended")

    async def stop_instance(self, instance: Instance, *, grace_s: float) -> None:
        """End the agent with grace, then the container's processes. Container and volume stay."""
        if instance.instance_id in self._doors:
            await stop_agent(self._plain_client(instance), grace_s=grace_s)
        await self._end(instance)

    async def clear_leftovers(self, instances: Sequence[Instance]) -> list[str]:
        """Kill what is left of instances in their containers, and bring their journals here to be read."""
        return [instance.instance_id for instance in instances if await self._clear(instance)]

    async def _clear(self, instance: Instance) -> bool:
        container = await self._end(instance)
        if container is None:
            return False
        directory = Path(instance.directory)
        draft = directory.with_suffix(".tar")
        await asyncio.to_thread(directory.mkdir, mode=0o700, parents=True, exist_ok=True)
        try:
            place, limit = f"{ROOT}/{instance.instance_id}", 2 * self._cap_bytes + _STDERR_BYTES
            if await (await self._engine()).fetch(container, place, draft, limit=limit):
                await journal_from(draft, directory)
        finally:
            await asyncio.to_thread(draft.unlink, missing_ok=True)
        return True

    async def _end(self, instance: Instance) -> Container | None:
        """End every process of an instance; return its container, None where that is gone, which says the same.

        A container that was started for another instance by now is left running.
        """
        await self._close_door(instance)
        session_id = Path(instance.directory).parent.name
        files = self._files(session_id)
        container = await self._find(session_id)
        if container is not None and container.running and files.instance_id in {instance.instance_id, ""}:
            await (await self._engine()).stop(container, grace_s=STOP_S)
        return container

    async def _is_there(self, instance: Instance) -> bool:
        try:
            found = await (await self._engine()).find(instance.container_id)
        except AgentctlError as error:
            raise RuntimeUnreachable(error.message, reason="engine_refused") from error
        return found is not None and found.running

    async def _door_to(self, instance: Instance) -> Door:
        return ContainerDoor(await self._engine(), self._link, instance, publishes=self._publishes)

    @property
    def _publishes(self) -> bool:
        return self._link.reaches_ports and publishes_port(self._config)

    async def forget_session(self, session_id: str) -> None:
        """Remove the session's container and volume, and what was kept of them here."""
        files = self._files(session_id)
        if not files.directory.is_dir():
            return
        engine, name = await self._engine(), self._name(session_id)
        container = await self._find(session_id)
        if container is not None:
            await engine.remove(container)
        if await engine.has_volume(name, home_labels(self._home_id())):
            await engine.remove_volume(name)
        await asyncio.to_thread(files.remove)

    async def report(self) -> RuntimeReport:
        """Tell whether the engine answers and has the image. The host is waited for for a few seconds at most."""
        return RuntimeReport(
            name=self.name,
            problem=await self._problem(),
            survives=("backend_restart", "host_restart"),
            on_backend_restart="agents go on, also in a turn; a session that is wanted again is attached to",
            on_host_restart="agents go on; that host's own restart ends them, and a resume starts them again",
        )

    async def _problem(self) -> str:
        image = self._config.image or next(iter(self._config.images.values()), "")
        try:
            link = self._link
            if not image:
                return "No image is configured: set image in [runtimes.remote_docker] (docs/runtimes.md)."
            async with asyncio.timeout(self.ask_s):
                return await (await self._engine()).ping(image)
        except KandevError as error:
            return error.message
        except TimeoutError:
            return f"{link.address} does not answer within {self.ask_s:g} s."

    def _name(self, session_id: str) -> str:
        return container_name(self._home_id(), session_id)

    async def _find(self, session_id: str) -> Container | None:
        """Return the session's container. Raises Conflict for one of that name that another home made (CONT-3)."""
        name = self._name(session_id)
        container = await (await self._engine()).find(name)
        if container is not None and container.labels.get("kandev.home") != self._home_id():
            raise Conflict(f"A container named {name} is there, and it is not of this home.", reason="name_taken")
        return container

    async def aclose(self) -> None:
        """Close all connections; the containers go on."""
        await super().aclose()
        if "_engine_unopened" in self.__dict__:
            await self._engine_unopened.aclose()
        if "_link" in self.__dict__:
            await self._link.aclose()

    def _files(self, session_id: str) -> RemoteFiles:
        return RemoteFiles(self._directory, session_id)
