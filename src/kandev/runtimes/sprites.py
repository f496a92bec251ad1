"""Agents in sandboxes of Sprites (sprites.dev): one for each session, kept until that is deleted (CONT-5, CONT-6).

agentctl runs there as a service, which the sandbox starts again when it was cold, and is reached by a tunnel. Nothing
is asked when the backend starts: a session that is wanted is reconnected by what its row names. Only a deleted
session's sandbox is destroyed; whatever else goes wrong leaves it as it is.
"""

import asyncio
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec
import structlog

from kandev.agentctl.build import build_in
from kandev.agents.place import Place
from kandev.config import SpritesConfig
from kandev.errors import AgentctlError, AgentError, Conflict, KandevError
from kandev.runtimes.base import Instance, InstanceRequest, RuntimeReport
from kandev.runtimes.far_runtime import Door, FarRuntime
from kandev.runtimes.local import stop_agent
from kandev.runtimes.session_files import EARLIER
from kandev.runtimes.sprites_api import Sprite, SpritesApi
from kandev.runtimes.sprites_door import SandboxDoor
from kandev.runtimes.sprites_sandbox import (
    bring_journal,
    bring_login,
    end,
    install,
    look,
    port_of,
    started_with,
)

__all__ = ["SpritesRuntime"]

log = structlog.get_logger(__name__)

URL: Final = "https://api.sprites.dev"
_CREATING, _WAITING, _WAKING = "creating_sandbox", "waiting_for_sprites", "waking_sandbox"
_REPLACED: Final = (
    "The session's sandbox is gone, with everything in it that had not come home. A new one was made on the same "
    "branch; the agent does not remember what it kept there. Tell it what is to be done again."
)


class SpritesRuntime(FarRuntime[SpritesConfig]):
    """One sandbox for each session."""

    name = "sprites"
    ask_s = 5.0
    wake_s = 60.0

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
        files = self._kept(request.session_id)
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
        await asyncio.to_thread(files.make, request.instance_id)
        files.note_made()
        options = ("--cap", str(self._cap_bytes), "--earlier", str(EARLIER))
        sandbox = await look(api, name, started_with(files.token, request.instance_id, options))
        await bring_login(api, sandbox, request.credentials, self._environ)
        await install(api, sandbox, archive)
        instance = msgspec.structs.replace(
            self.locate(request.session_id, request.instance_id),
            container_id=name,
            cwd=sandbox.inside(os.path.basename(request.cwd)),
            note=_REPLACED if replaced else "",
        )
        await self._open_door(instance)
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
            return (await client.wait_ready(self.wake_s)).nonce
        except AgentError as error:
            raise AgentctlError(
                f"agentctl does not answer in the sandbox: {error.message}", reason="agentctl_not_ready"
            ) from error
        finally:
            await client.aclose()

    async def stop_instance(self, instance: Instance, *, grace_s: float) -> None:
        """End the agent with grace, then agentctl. The sandbox stays."""
        if instance.instance_id in self._doors:
            await stop_agent(self._plain_client(instance), grace_s=grace_s)
        await self._end(instance)

    async def clear_leftovers(self, instances: Sequence[Instance]) -> list[str]:
        """End what is left of instances in their sandboxes, and bring their journals here to be read."""
        return [instance.instance_id for instance in instances if await self._clear(instance)]

    async def _clear(self, instance: Instance) -> bool:
        name = await self._end(instance)
        if not name:
            return False
        sandbox = await look(self._api, name)
        await bring_journal(self._api, sandbox, instance.instance_id, Path(instance.directory))
        return True

    async def _end(self, instance: Instance) -> str:
        """End every process of an instance, and name its sandbox; '' where that is gone, which says the same."""
        await self._close_door(instance)
        name = instance.container_id or self._name(Path(instance.directory).parent.name)
        if await self._found(name) is None:
            return ""
        await end(self._api, name, instance.instance_id)
        return name

    async def _is_there(self, instance: Instance) -> bool:
        return await self._found(instance.container_id) is not None

    async def _door_to(self, instance: Instance) -> Door:
        path = instance.agentctl_url.removeprefix("unix:")
        return SandboxDoor(self._api, instance.container_id, port_of(instance.instance_id), path)

    async def forget_session(self, session_id: str) -> None:
        """Destroy the session's sandbox, and remove what was kept of it here."""
        files = self._kept(session_id)
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
            on_host_restart="agents go on; a sandbox that went cold has ended its agent, and a resume starts it again",
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
        await super().aclose()
        if "_api" in self.__dict__:
            await self._api.aclose()
