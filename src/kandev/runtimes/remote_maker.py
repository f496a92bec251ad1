"""Makes and starts a session's container on another host."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from kandev.config import RemoteDockerConfig
from kandev.errors import AgentctlError, Conflict
from kandev.runtimes.base import InstanceRequest
from kandev.runtimes.container_spec import container_name, home_labels, image_of
from kandev.runtimes.docker_engine import CREATING, STARTING, Container
from kandev.runtimes.remote_container import RemoteFiles, parcel, remote_spec
from kandev.runtimes.remote_engine import RemoteEngine
from kandev.runtimes.session_files import EARLIER

__all__ = ["STOP_S", "ContainerMaker", "Made"]

STOP_S: Final = 2
"""How long agentctl, whose agent is gone, may take to end before its container is killed."""
_GONE: Final = (
    "The session's container is gone, with everything in it that had not come home. A new one was made on the same "
    "branch; the agent does not remember what it kept there. Tell it what is to be done again."
)
_MADE_AGAIN: Final = (
    "The session's container was gone, or could not be started; its volume is there. A new one was made on that, with "
    "the files as they were left and the agent's own memory."
)


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A container that was started. `note` says that it is another one than before."""

    container: Container
    note: str = ""


class ContainerMaker:
    """Makes containers of one home. `publishes` tells whether ports of the host can be reached."""

    def __init__(
        self,
        engine: RemoteEngine,
        config: RemoteDockerConfig,
        *,
        home_id: str,
        environ: Mapping[str, str],
        cap_bytes: int,
        publishes: bool,
    ) -> None:
        self._engine = engine
        self._config = config
        self._home_id = home_id
        self._environ = environ
        self._cap_bytes = cap_bytes
        self._publishes = publishes

    async def start(
        self, container: Container | None, request: InstanceRequest, files: RemoteFiles, archive: Path
    ) -> Made:
        """Start the container that was found; where there is none, or it cannot be started any more, a new one.

        Raises Conflict for what must be set, AgentctlError with the engine's words, RuntimeUnreachable.
        """
        user = await self._user(image_of(self._config, request.agent))
        await asyncio.to_thread(files.make, request.instance_id)
        request.told(STARTING if container else CREATING)
        if container is not None:
            if container.running:
                await self._engine.stop(container, grace_s=STOP_S)
            try:
                await self._bring_and_start(container, request, files, archive, user)
            except AgentctlError:  # a mount, its network or its image is not there any more
                request.told(CREATING)
                await self._engine.remove(container)
            else:
                return Made(container=container)
        made = await self._make(request, files, user)
        try:
            await self._bring_and_start(made.container, request, files, archive, user)
        except AgentctlError:
            await self._engine.remove(made.container)
            raise
        return made

    async def _make(self, request: InstanceRequest, files: RemoteFiles, user: str) -> Made:
        name, labels = container_name(self._home_id, request.session_id), home_labels(self._home_id)
        kept = await self._engine.has_volume(name, labels)
        if not kept:
            files.forget_brought()  # first: killed in between, the next start finds an empty volume
            await self._engine.make_volume(name, labels)
        spec = remote_spec(
            request,
            self._config,
            home_id=self._home_id,
            volume=name,
            user=user,
            environ=self._environ,
            publishes=self._publishes,
        )
        note = (_MADE_AGAIN if kept else _GONE) if files.was_made else ""
        return Made(container=await self._engine.create(name, spec), note=note)

    async def _bring_and_start(
        self, container: Container, request: InstanceRequest, files: RemoteFiles, archive: Path, user: str
    ) -> None:
        logins = files.logins(request.credentials, self._environ)
        brought = await asyncio.to_thread(
            lambda: parcel(
                None if files.has_archive(archive) else archive,
                token=files.token,
                instance_id=request.instance_id,
                options=("--cap", str(self._cap_bytes), "--earlier", str(EARLIER)),
                config=self._config,
                user=user,
                logins=logins,
            )
        )
        await self._engine.put(container, brought)
        files.note_logins(logins)
        files.note_archive(archive)
        files.note_started(request.instance_id)
        await self._engine.start(container)
        files.note_made()

    async def _user(self, image: str) -> str:
        """Return "UID:GID" of whoever runs in the container: files are brought there for that one."""
        if not image:
            raise _unfit("No image is configured: set image in [runtimes.remote_docker].")
        user = self._config.user or await self._engine.image_user(image) or "0"
        uid, _, gid = user.partition(":")
        if not uid.isdecimal() or (gid and not gid.isdecimal()):
            raise _unfit(f"The user {user!r} is a name: set its numbers, user = UID:GID, in [runtimes.remote_docker].")
        return f"{uid}:{gid or uid}"


def _unfit(text: str) -> Conflict:
    return Conflict(text, reason="runtime_not_configured")
