"""What runtimes share whose places have no file system in common with us: doors to instances, and what is kept here."""

import abc
import asyncio
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import structlog

from kandev.agentctl.sidecar import CAP_BYTES
from kandev.domain.constants import REACH_S
from kandev.errors import KandevError, RuntimeUnreachable
from kandev.runtimes.agentctl_client import AgentctlClient
from kandev.runtimes.base import ANOTHER, Instance, Named
from kandev.runtimes.patient_client import PatientClient
from kandev.runtimes.session_files import SessionFiles, sessions_in
from kandev.runtimes.sockets import socket_path

__all__ = ["Door", "FarRuntime"]

log = structlog.get_logger(__name__)

ConfigT = TypeVar("ConfigT")


class Door(Protocol):
    """A socket here that leads to one instance there. `gone` is true once its place is known to be over."""

    gone: bool

    async def open(self) -> None:
        """Listen at the instance's address."""
        ...

    async def aclose(self) -> None:
        """End all connections."""
        ...


class FarRuntime(abc.ABC, Generic[ConfigT]):
    """Keeps tokens and journals under `directory`, one subdirectory for each session. `ConfigT` are its settings."""

    name: str
    lasting = True
    ask_s: float
    """How long the place may take where somebody waits for a list, or for the start of the backend."""
    wake_s: float
    """How long agentctl may take to answer, in a place that has to wake up."""

    def __init__(
        self,
        directory: Path,
        config: ConfigT,
        *,
        home_id: Callable[[], str],
        environ: Mapping[str, str],
        cap_bytes: int = CAP_BYTES,
        reach_s: float = REACH_S,
    ) -> None:
        self._directory = directory
        self._config = config
        self._home_id = home_id
        self._environ = environ
        self._cap_bytes = cap_bytes
        self._reach_s = reach_s
        self._doors: dict[str, Door] = {}

    @abc.abstractmethod
    async def _door_to(self, instance: Instance) -> Door:
        """Make the door to an instance."""

    @abc.abstractmethod
    async def _is_there(self, instance: Instance) -> bool:
        """Tell whether the instance's place is there, and may run it. Raises RuntimeUnreachable where unknown."""

    @abc.abstractmethod
    async def forget_session(self, session_id: str) -> None:
        """Remove what is there and here of a session that is being deleted."""

    async def recover_instances(self) -> list[Instance]:
        """Nothing: a session that is wanted is reconnected (the specification)."""
        return []

    async def reconnect(self, instance: Instance) -> Instance | None:
        """Return the instance if its place is there and its agent runs, None if either is over.

        Raises RuntimeUnreachable where that cannot be said. Nothing is changed or destroyed.
        """
        if not instance.container_id or not await self._is_there(instance):
            return None
        await self._open_door(instance)
        client = self._plain_client(instance)
        try:
            health = await client.wait_ready(self.wake_s)
        except KandevError as error:
            if error.reason in ANOTHER:
                return None
            raise RuntimeUnreachable(f"agentctl does not answer: {error.message}", reason="unreachable") from error
        finally:
            await client.aclose()
        return instance if health.agent.state == "running" and health.nonce == instance.nonce else None

    def connect(self, instance: Instance) -> AgentctlClient:
        """Return a client that goes on where the way was cut, or its place slept."""
        door = self._doors.get(instance.instance_id)
        return PatientClient(
            instance.agentctl_url,
            instance_id=instance.instance_id,
            token=self._files_of(instance).token,
            nonce=instance.nonce,
            is_gone=lambda: door is None or door.gone,
            reach_s=self._reach_s,
        )

    def _plain_client(self, instance: Instance) -> AgentctlClient:
        token = self._files_of(instance).token
        return AgentctlClient(instance.agentctl_url, instance_id=instance.instance_id, token=token)

    def locate(self, session_id: str, instance_id: str) -> Instance:
        """Return an instance that may be there, by its ids."""
        directory = str(self._kept(session_id).instance_directory(instance_id))
        # Processes in there have numbers of their own: none is told that could be taken for one of this machine.
        return Instance(
            instance_id=instance_id,
            runtime=self.name,
            directory=directory,
            agentctl_url=f"unix:{socket_path(directory)}",
            agentctl_pid=0,
            agentctl_start_time=0,
            boot_id="",
        )

    async def strays(self, named: Named) -> list[Instance]:
        """Remove what is there of sessions that were deleted while nobody answered; no instance is to be ended."""
        for session_id in sessions_in(self._directory):
            if not named.has_session(session_id):
                try:
                    async with asyncio.timeout(self.ask_s):
                        await self.forget_session(session_id)
                except (TimeoutError, KandevError) as error:
                    log.warning("session.left", runtime=self.name, session_id=session_id, error=str(error))
        return []

    async def discard(self, instance: Instance) -> None:
        """Remove the directory here of an ended instance, its journal too."""
        await asyncio.to_thread(shutil.rmtree, instance.directory, ignore_errors=True)

    async def _open_door(self, instance: Instance) -> None:
        if instance.instance_id not in self._doors:
            door = await self._door_to(instance)
            await door.open()
            self._doors[instance.instance_id] = door

    async def _close_door(self, instance: Instance) -> None:
        door = self._doors.pop(instance.instance_id, None)
        if door is not None:
            await door.aclose()

    async def aclose(self) -> None:
        """Close all connections; what is there goes on."""
        doors, self._doors = list(self._doors.values()), {}
        await asyncio.gather(*(door.aclose() for door in doors))

    def _kept(self, session_id: str) -> SessionFiles:
        return SessionFiles(self._directory, session_id)

    def _files_of(self, instance: Instance) -> SessionFiles:
        return self._kept(Path(instance.directory).parent.name)
