"""Agents in sandboxes of Sprites (sprites.dev): one for each session, kept until that is deleted (CONT-5, CONT-6).

agentctl runs there as a service, which the sandbox starts again when it was cold, and is reached by a tunnel. Nothing
is asked when the backend starts: a session that is wanted is reconnected by what its row names. Only a deleted
session's sandbox is destroyed; whatever else goes wrong leaves it as it is.
"""

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec
import structlog

from kandev.agentctl.build import build_in
from kandev.agentctl.sidecar import CAP_BYTES
from kandev.agents.place import Place
from kandev.config import SpritesConfig
from kandev.errors import AgentctlError, AgentError, Conflict, KandevError, RuntimeUnreachable
from kandev.runtimes.agentctl_client import AgentctlClient
from kandev.runtimes.base import ANOTHER, Instance, InstanceRequest, Named, RuntimeReport
from kandev.runtimes.local import stop_agent
from kandev.runtimes.patient_client import PatientClient
from kandev.runtimes.sockets import socket_path
from kandev.runtimes.sprites_api import Sprite, SpritesApi
from kandev.runtimes.sprites_sandbox import (
    Sandbox,
    SandboxFiles,
    bring_journal,
    bring_login,
    end,
    install,
    look,
    port_of,
)
from kandev.runtimes.sprites_tunnel import Tunnel

__all__ = ["SpritesRuntime"]

log = structlog.get_logger(__name__)

URL: Final = "https://api.sprites.dev"
WAKE_S: Final = 60.0
"""How long a sandbox that sleeps, and its service, may take until agentctl answers."""
_STRAYS_S: Final = 5.0
_CREATING, _WAITING, _WAKING = "creating_sandbox", "waiting_for_sprites", "waking_sandbox"
_REPLACED: Final = (
    "The session's sandbox is gone, with everything in it that had not come home. A new one was made on the same "
    "branch; the agent does not remember what it kept there. Tell it what is to be done again."
)


class SpritesRuntime:
    """Keeps tokens and journals under `directory`, one subdirectory for each session."""

    name = "sprites"
    lasting = True

    def __init__(
        self,
        directory: Path,
        config: SpritesConfig,
        *,
        home_id: Callable[[], str],
        environ: Mapping[str, str],
        cap_bytes: int = CAP_BYTES,
    ) -> None:
        self._directory = directory
        self._config = config
        self._home_id = home_id
        self._environ = environ
        self._cap_bytes = cap_bytes
        self._tunnels: dict[str, Tunnel] = {}

    @cached_property
    def _api(self) -> SpritesApi:
        token = self._token()
        if not token:
            raise Conflict(self._not_configured(), reason="runtime_not_configured")
        return SpritesApi(self._config.url or URL, token)

    @cached_property
    def _archive(self) -> Path:
        """The file with agentctl; its name tells its content."""
        return build_in(self._directory)

    @property
    def place(self) -> Place:
        """A sandbox: its own Python and environment. agentctl's file lies beside the session's directory."""
        return Place(python="python3", demo_agent=(f"../{self._archive.name}", "demo-agent"), own_environment=True)

    async def create_instance(self, request: InstanceRequest) -> Instance:
        """Start agentctl in the session's sandbox, which is made where there is none.

        Raises Conflict for what must be set or is refused, RuntimeUnreachable where Sprites does not answer.
        """
        files = self._files(request.session_id)
        api = self._api.telling(lambda: request.told(_WAITING))
        archive = await asyncio.to_thread(lambda: self._archive)
        name = self._name(request.session_id)
        sprite = await self._found(name)
        fresh = sprite is None
        if fresh:
            request.told(_CREATING)
            await self._create(api, name)
        elif sprite is not None and sprite.status == "cold":
            request.told(_WAKING)
        replaced = fresh and files.was_made
        await asyncio.to_thread(files.prepare, request.instance_id)
        files.note_made()
        sandbox = await look(api, name)
        await bring_login(api, sandbox, request.credentials, self._environ)
        await install(
            api,
            sandbox,
            archive,
            token=files.token,
            instance_id=request.instance_id,
            options=("--cap", str(self._cap_bytes)),
        )
        instance = msgspec.structs.replace(
            self.locate(request.session_id, request.instance_id),
            container_id=name,
            cwd=sandbox.inside(os.path.basename(request.cwd)),
            note=_REPLACED if replaced else "",
        )
        await self._tunnel(instance)
        return msgspec.structs.replace(instance, nonce=await self._nonce(instance))

    async def _create(self, api: SpritesApi, name: str) -> None:
        try:
            await api.create(name, self._labels())
        except KandevError as error:
            # Made by a request that had no answer, or it was refused for what the error says.
            if await self._found(name) is None:
                raise error from None

    async def _nonce(self, instance: Instance) -> str:
        """Wait until agentctl answers, and return its nonce."""
        client = self._plain_client(instance)
        try:
            return (await client.wait_ready(WAKE_S)).nonce
        except AgentError as error:
            raise AgentctlError(
                f"agentctl does not answer in the sandbox: {error.message}", reason="agentctl_not_ready"
            ) from error
        finally:
            await client.aclose()

    async def recover_instances(self) -> list[Instance]:
        """Nothing: a session that is wanted is reconnected (the specification)."""
        return []

    async def reconnect(self, instance: Instance) -> Instance | None:
        """Return the instance if its sandbox is there and its agent runs, None if either is over.

        Raises RuntimeUnreachable where that cannot be said. Nothing is changed or destroyed.
        """
        if not instance.container_id or await self._found(instance.container_id) is None:
            return None
        await self._tunnel(instance)
        client = self._plain_client(instance)
        try:
            health = await client.wait_ready(WAKE_S)
        except KandevError as error:
            if error.reason in ANOTHER:
                return None
            raise RuntimeUnreachable(f"The sandbox does not answer: {error.message}", reason="unreachable") from error
        finally:
            await client.aclose()
        return instance if health.agent.state == "running" and health.nonce == instance.nonce else None

    async def stop_instance(self, instance: Instance, *, grace_s: float) -> None:
        """End the agent with grace, then agentctl. The sandbox stays."""
        if instance.instance_id in self._tunnels:
            await stop_agent(self._plain_client(instance), grace_s=grace_s)
        await self._end(instance)

    async def clear_leftovers(self, instances: Sequence[Instance]) -> list[str]:
        """End what is left of instances in their sandboxes, and bring their journals here to be read."""
        return [instance.instance_id for instance in instances if await self._clear(instance)]

    async def _clear(self, instance: Instance) -> bool:
        sandbox = await self._end(instance)
        if sandbox is None:
            return False
        directory = Path(instance.directory)
        await bring_journal(self._api, sandbox, instance.instance_id, directory)
        return True

    async def _end(self, instance: Instance) -> Sandbox | None:
        """End every process of an instance; None where the sandbox is gone, which says the same."""
        tunnel = self._tunnels.pop(instance.instance_id, None)
        if tunnel is not None:
            await tunnel.aclose()
        name = instance.container_id or self._name(Path(instance.directory).parent.name)
        if await self._found(name) is None:
            return None
        sandbox = await look(self._api, name)
        await end(self._api, name, instance.instance_id)
        return sandbox

    def connect(self, instance: Instance) -> AgentctlClient:
        """Return a client that goes on through pauses of the sandbox."""
        tunnel = self._tunnels.get(instance.instance_id)
        return PatientClient(
            instance.agentctl_url,
            instance_id=instance.instance_id,
            token=self._files_of(instance).token,
            nonce=instance.nonce,
            is_gone=lambda: tunnel is None or tunnel.gone,
        )

    def _plain_client(self, instance: Instance) -> AgentctlClient:
        token = self._files_of(instance).token
        return AgentctlClient(instance.agentctl_url, instance_id=instance.instance_id, token=token)

    async def _tunnel(self, instance: Instance) -> None:
        if instance.instance_id not in self._tunnels:
            path = instance.agentctl_url.removeprefix("unix:")
            tunnel = Tunnel(self._api, instance.container_id, port_of(instance.instance_id), path)
            await tunnel.open()
            self._tunnels[instance.instance_id] = tunnel

    def locate(self, session_id: str, instance_id: str) -> Instance:
        """Return an instance that may be there, by its ids."""
        directory = str(self._files(session_id).instance_directory(instance_id))
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
        """Destroy the sandboxes of sessions that were deleted while Sprites did not answer; none is to be ended."""
        for session_id in self._sessions():
            if not named.has_session(session_id):
                try:
                    async with asyncio.timeout(_STRAYS_S):
                        await self.forget_session(session_id)
                except (TimeoutError, KandevError) as error:
                    log.warning("sandbox.left", session_id=session_id, error=str(error))
        return []

    async def discard(self, instance: Instance) -> None:
        """Remove the directory here of an ended instance, its journal too. What is in the sandbox goes with that."""
        await asyncio.to_thread(shutil.rmtree, instance.directory, ignore_errors=True)

    async def forget_session(self, session_id: str) -> None:
        """Destroy the session's sandbox, and remove what was kept of it here."""
        files = self._files(session_id)
        if not files.directory.is_dir():
            return
        name = self._name(session_id)
        if await self._found(name) is not None:
            await self._api.destroy(name)
        await asyncio.to_thread(files.remove)

    async def report(self) -> RuntimeReport:
        """Tell whether there is a token. Sprites is not asked."""
        return RuntimeReport(
            name=self.name,
            problem=self._not_configured(),
            survives=("backend_restart", "host_restart"),
            on_backend_restart="agents go on, also in a turn; a session that is wanted again is attached to",
            on_host_restart="this machine's restart is no other; the sandbox's own ends the agent, a resume starts it",
        )

    def _not_configured(self) -> str:
        return "" if self._token() else "No token is set: SPRITES_TOKEN, or token in [runtimes.sprites]."

    def _token(self) -> str:
        """Return the token, which is looked up at each use and stored nowhere."""
        token = self._config.token
        return self._environ.get(token[1:], "") if token.startswith("$") else token

    def _name(self, session_id: str) -> str:
        return f"kandev-{self._home_id()[:8]}-{session_id}"

    def _labels(self) -> list[str]:
        return ["kandev", f"kandev-home-{self._home_id()}"]

    async def _found(self, name: str) -> Sprite | None:
        """Return the sandbox. Raises Conflict for one of that name that another home made."""
        sprite = await self._api.get(name)
        if sprite is not None and sprite.labels is not None and not set(self._labels()) <= set(sprite.labels):
            raise Conflict(f"A sandbox named {name} is there, and it is not of this home.", reason="name_taken")
        return sprite

    async def aclose(self) -> None:
        """Close all connections; the sandboxes go on."""
        tunnels, self._tunnels = list(self._tunnels.values()), {}
        await asyncio.gather(*(tunnel.aclose() for tunnel in tunnels))
        if "_api" in self.__dict__:
            await self._api.aclose()

    def _files(self, session_id: str) -> SandboxFiles:
        return SandboxFiles(self._directory, session_id)

    def _files_of(self, instance: Instance) -> SandboxFiles:
        return self._files(Path(instance.directory).parent.name)

    def _sessions(self) -> list[str]:
        if not self._directory.is_dir():
            return []
        return [path.name for path in self._directory.iterdir() if path.is_dir()]
