"""Agents in containers of an engine on this machine: one for each session, kept between its starts (CONT-1 to CONT-4).

The container's main process is agentctl, from one file that is mounted. It outlives the backend, and the engine where
that lets containers live; the next backend finds it by its labels and attaches.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from kandev.agentctl.platform import boot_id
from kandev.agentctl.sidecar import CAP_BYTES
from kandev.agents.place import Place
from kandev.config import DockerConfig
from kandev.domain.constants import AGENTCTL_READY_S, Timing
from kandev.errors import AgentctlError, Conflict, KandevError
from kandev.runtimes.agentctl_client import AgentctlClient
from kandev.runtimes.base import Instance, InstanceRequest, Named, RuntimeReport
from kandev.runtimes.container_files import ContainerFiles, port_inside
from kandev.runtimes.container_spec import (
    ARCHIVE,
    container_name,
    container_spec,
    home_labels,
    image_of,
    publishes_port,
)
from kandev.runtimes.container_user import ContainerUser, user_of
from kandev.runtimes.detached import ANSWER_S, attachable
from kandev.runtimes.docker_address import engine_address
from kandev.runtimes.docker_engine import CREATING, STARTING, Container, DockerEngine
from kandev.runtimes.local import stop_agent
from kandev.runtimes.lost_containers import end_lost
from kandev.runtimes.session_files import sessions_in
from kandev.store.failures import file_failure
from kandev.worktrees.git import Git

__all__ = ["DockerRuntime"]

STOP_S: Final = 2
"""How long agentctl, whose agent is gone, may take to end before its container is killed."""
_PAUSE_S: Final = 0.02
_LOOK_S: Final = 0.5
"""How often the engine is asked whether a container still runs whose agentctl does not answer yet."""


class DockerRuntime:
    """Keeps what it shares with containers under `directory`, one subdirectory for each session."""

    name = "docker"
    lasting = True

    def __init__(
        self,
        directory: Path,
        config: DockerConfig,
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

    @cached_property
    def _engine(self) -> DockerEngine:
        return DockerEngine(engine_address(self._config.host, self._config.context, self._environ))

    @cached_property
    def _home(self) -> str:
        return self._home_id()

    @cached_property
    def _archive(self) -> Path:
        """The file with agentctl. Its name tells its content: a container keeps the one that it was made with."""
        from kandev.agentctl.build import build_in  # noqa: PLC0415 - a backend without containers needs no zipfile

        return build_in(self._directory)

    @property
    def place(self) -> Place:
        """A container: its own Python and its own environment."""
        return Place(python="python3", demo_agent=(ARCHIVE, "demo-agent"), own_environment=True)

    async def create_instance(self, request: InstanceRequest) -> Instance:
        """Start the session's container, which is made where there is none.

        Raises AgentctlError, Conflict, and StorageFull or Unavailable where its files cannot be written.
        """
        if problem := self._not_configured(image_of(self._config, request.agent)):
            raise Conflict(problem, reason="runtime_not_configured")
        user = user_of(self._config)
        user.require_place(request.cwd)
        files = self._files(request.session_id)
        container = await self._find(request.session_id)
        request.told(STARTING if container else CREATING)
        if container is not None and container.running:
            await self._engine.stop(container, grace_s=STOP_S)
        else:
            await end_lost(files.arguments)
        try:
            await asyncio.to_thread(self._prepare, files, request, user, await self._committer(request.cwd))
            return await self._up(container, request, files, user)
        except OSError as error:
            await self._take_back(self._instance(files, request.instance_id))
            raise file_failure(error, files.directory) from error
        except AgentctlError:
            await self._take_back(self._instance(files, request.instance_id))
            raise

    async def _take_back(self, instance: Instance) -> None:
        """End and remove what a start made that failed. Without the engine the backend's next start does that."""
        with contextlib.suppress(KandevError):
            await self._end(instance, grace_s=0)
            await self.discard(instance)

    async def _up(
        self, container: Container | None, request: InstanceRequest, files: ContainerFiles, user: ContainerUser
    ) -> Instance:
        """Return the instance in a started container; one whose agentctl we cannot talk to is made again."""
        started = await self._started(container, request, files, user)
        instance = await self._first_answer(started, files, request.instance_id)
        if container is None or await self._is_spoken(instance):
            return instance
        await self._engine.remove(started)
        started = await self._started(None, request, files, user)
        return await self._first_answer(started, files, request.instance_id)

    async def _is_spoken(self, instance: Instance) -> bool:
        """Whether we can talk to the agentctl in a container, which keeps the one that it was made with."""
        client = self.connect(instance)
        try:
            return (await client.status()).is_spoken
        finally:
            await client.aclose()

    async def _committer(self, cwd: str) -> Sequence[str]:
        """Return name and email with which the user commits there; '' for what git was not told."""
        git = Git(self._directory, environ=self._environ, timing=Timing())
        try:
            asked = [await git.ask(Path(cwd), "config", "--get", key) for key in ("user.name", "user.email") if cwd]
        except KandevError:  # no git here
            return "", ""
        return [one.stdout.strip() for one in asked] or ("", "")

    def _prepare(
        self, files: ContainerFiles, request: InstanceRequest, user: ContainerUser, committer: Sequence[str]
    ) -> None:
        _ = self._archive  # built here, in a thread, at the first start
        files.prepare(
            request.instance_id,
            cap_bytes=self._cap_bytes,
            idle_s=self._config.idle_minutes * 60,
            listens_on_network=publishes_port(self._config),
        )
        files.bring_login(request.credentials, self._environ)
        files.bring_identity(*committer)
        user.take_over(files.directory)
        if request.cwd and not user.owns(request.cwd) and not os.path.exists(os.path.join(request.cwd, ".git")):
            user.take_over(Path(request.cwd))

    async def _started(
        self, container: Container | None, request: InstanceRequest, files: ContainerFiles, user: ContainerUser
    ) -> Container:
        """Start the container that was found; where there is none, or it cannot be started any more, a new one."""
        if container is not None:
            try:
                await self._engine.start(container)
            except AgentctlError:  # a mount, or its image, is not there any more
                request.told(CREATING)
                await self._engine.remove(container)
            else:
                return container
        spec = container_spec(
            request, self._config, files, archive=self._archive, user=user, home_id=self._home, environ=self._environ
        )
        made = await self._engine.create(container_name(self._home, request.session_id), spec)
        try:
            await self._engine.start(made)
        except AgentctlError:
            await self._engine.remove(made)
            raise
        return made

    async def _first_answer(self, container: Container, files: ContainerFiles, instance_id: str) -> Instance:
        """Wait until agentctl answers; a container that ends before has its last words in the error."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AGENTCTL_READY_S
        while loop.time() < deadline:
            told = await self._engine.find(container.id)
            if told is None or not told.running:
                words = await self._engine.last_words(container)
                code = told.exit_code if told else None
                text = f"The container ended at its start (exit code {code}). {words}".strip()
                raise AgentctlError(text, reason="container_ended")
            look_again_at = loop.time() + _LOOK_S
            while loop.time() < look_again_at:
                instance = await self._reach(told, files, instance_id)
                if instance is not None:
                    return instance
                await asyncio.sleep(_PAUSE_S)
        raise AgentctlError("agentctl does not answer in its container.", reason="agentctl_not_ready")

    async def _reach(self, container: Container, files: ContainerFiles, instance_id: str) -> Instance | None:
        """Return the instance at the address where it answers now: its socket, else its published port."""
        for url in self._addresses(container, files, instance_id):
            client = AgentctlClient(url, instance_id=instance_id, token=files.token)
            try:
                async with asyncio.timeout(ANSWER_S):
                    health = await client.status()
            except (AgentctlError, TimeoutError):
                continue
            finally:
                await client.aclose()
            if health.instance_id == instance_id:
                return self._instance(files, instance_id, url=url, container_id=container.id, nonce=health.nonce)
        return None

    def _addresses(self, container: Container, files: ContainerFiles, instance_id: str) -> list[str]:
        path, port = files.socket(instance_id), container.ports.get(port_inside())
        return [*([f"unix:{path}"] if path else []), *([f"http://127.0.0.1:{port}"] if port else [])]

    def _instance(
        self, files: ContainerFiles, instance_id: str, *, url: str = "", container_id: str = "", nonce: str = ""
    ) -> Instance:
        # Processes in there have numbers of their own: none is told that could be taken for one of this machine.
        return Instance(
            instance_id=instance_id,
            runtime=self.name,
            directory=str(files.instance_directory(instance_id)),
            agentctl_url=url or f"unix:{files.socket(instance_id)}",
            agentctl_pid=0,
            agentctl_start_time=0,
            boot_id=boot_id(),
            container_id=container_id,
            nonce=nonce,
        )

    async def recover_instances(self) -> list[Instance]:
        """Return the instances in running containers of this home whose agent runs; ports are looked up again."""
        if not sessions_in(self._directory):
            return []  # and the engine is not asked, nor its client loaded
        containers = await self._engine.list(home_labels(self._home))
        asked = await asyncio.gather(*(self._attachable(one) for one in containers if one.running))
        return [instance for instance in asked if instance is not None]

    async def _attachable(self, container: Container) -> Instance | None:
        session_id = container.labels.get("kandev.session_id", "")
        files = self._files(session_id) if session_id in sessions_in(self._directory) else None
        told = await self._engine.find(container.id)
        if files is None or told is None or not files.instance_id:
            return None
        instance = await self._reach(told, files, files.instance_id)
        if instance is None:
            return None
        client = self.connect(instance)
        try:
            return instance if await attachable(client, instance.instance_id, timeout_s=ANSWER_S) else None
        finally:
            await client.aclose()

    async def stop_instance(self, instance: Instance, *, grace_s: float) -> None:
        """End the agent with grace, then the container's processes. The container stays, for the next start."""
        await stop_agent(self.connect(instance), grace_s=grace_s)
        await self._end(instance, grace_s=STOP_S)

    def connect(self, instance: Instance) -> AgentctlClient:
        """Return a client of the instance."""
        token = self._files_of(instance).token
        return AgentctlClient(instance.agentctl_url, instance_id=instance.instance_id, token=token)

    def locate(self, session_id: str, instance_id: str) -> Instance:
        """Return an instance that may be there, by its ids."""
        return self._instance(self._files(session_id), instance_id)

    async def clear_leftovers(self, instances: Sequence[Instance]) -> list[str]:
        """Kill the containers of instances that nobody attaches."""
        return [instance.instance_id for instance in instances if await self._end(instance, grace_s=0)]

    async def _end(self, instance: Instance, *, grace_s: int) -> bool:
        """End the container's processes; True where it ran. One that runs another instance by now is left alone."""
        files = self._files_of(instance)
        if files.instance_id != instance.instance_id:
            return False
        container = await self._find(files.session_id)
        if container is None or not container.running:
            return await end_lost(files.arguments)
        try:
            await self._engine.stop(container, grace_s=grace_s)
        except AgentctlError:  # one that is paused cannot be stopped; the next start makes a new one
            await self._engine.remove(container)
        return True

    async def strays(self, named: Named) -> list[Instance]:
        """Remove containers and directories of sessions that are gone; return the instances that no row names."""
        found: list[Instance] = []
        for session_id in sessions_in(self._directory):
            if named.has_session(session_id):
                left = [one for one in self._files(session_id).instances() if one not in named.instances]
                found += [self.locate(session_id, one) for one in left]
            else:
                await self.forget_session(session_id)
        return found

    async def discard(self, instance: Instance) -> None:
        """Remove the directory of an ended instance, its journal too, once everything in it is stored."""
        await asyncio.to_thread(shutil.rmtree, instance.directory, ignore_errors=True)

    async def forget_session(self, session_id: str) -> None:
        """Remove the session's container, and what it shared with this machine."""
        files = self._files(session_id)
        if not files.directory.is_dir():
            return
        container = await self._find(session_id)
        if container is not None:
            await self._engine.remove(container)
        await end_lost(files.arguments)
        await asyncio.to_thread(files.remove)

    async def report(self) -> RuntimeReport:
        """Tell whether the engine answers and has the image."""
        return RuntimeReport(
            name=self.name,
            problem=await self._problem(),
            survives=("backend_restart",),
            on_backend_restart="containers go on, also in a turn; the next backend attaches and loses nothing",
            on_host_restart="agents end; a resume starts the container again, and the agent in it",
        )

    async def _problem(self) -> str:
        try:
            image = self._config.image or next(iter(self._config.images.values()), "")
            return self._not_configured(image) or await self._engine.ping(image)
        except Conflict as error:
            return error.message

    def _not_configured(self, image: str) -> str:
        if not image:
            return "No image is configured: set image in [runtimes.docker] (docs/runtimes.md)."
        if not self._engine.address.startswith("unix://"):
            return f"The engine at {self._engine.address} is not on this machine: directories cannot be mounted there."
        return ""

    async def aclose(self) -> None:
        """Close the connection to the engine; the containers go on."""
        if "_engine" in self.__dict__:
            await self._engine.aclose()

    def _files(self, session_id: str) -> ContainerFiles:
        return ContainerFiles(self._directory, session_id)

    def _files_of(self, instance: Instance) -> ContainerFiles:
        return self._files(Path(instance.directory).parent.name)

    async def _find(self, session_id: str) -> Container | None:
        """Return the session's container. Raises Conflict for one of that name that another home made (CONT-3)."""
        name = container_name(self._home, session_id)
        container = await self._engine.find(name)
        if container is not None and container.labels.get("kandev.home") != self._home:
            raise Conflict(f"A container named {name} is there, and it is not of this home.", reason="name_taken")
        return container
