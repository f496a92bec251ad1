"""Agents on the backend's own machine. They end with their backend; a resume starts them again (the specification)."""

import asyncio
import contextlib
import os
import shutil
from typing import Final

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.agentctl.platform import boot_id, open_process, process_stat
from kandev.agentctl.sidecar import CAP_BYTES, WRITE_TIMEOUT_S
from kandev.errors import AgentctlError
from kandev.runtimes.agentctl_client import AgentctlClient
from kandev.runtimes.base import Instance, InstanceRequest
from kandev.runtimes.fork_client import AgentctlOptions, ForkServer, reap_cold, start_cold
from kandev.runtimes.leftovers import exited, kill_leftover
from kandev.runtimes.sockets import listen, socket_path

__all__ = ["StandaloneRuntime"]

_END_S: Final = 5.0
"""How long an agentctl whose agent is gone may take to end: its readers get what the journal still has."""


class _Live(msgspec.Struct, kw_only=True):
    """An instance that this backend started: the write end of its lifeline."""

    instance: Instance
    lifeline: int


class StandaloneRuntime:
    """Keeps instances under `directory` (run/ in the home), one subdirectory each."""

    name = "standalone"

    def __init__(self, directory: str, *, cap_bytes: int = CAP_BYTES, write_timeout_s: float = WRITE_TIMEOUT_S) -> None:
        self._directory = os.path.abspath(directory)
        self._cap_bytes = cap_bytes
        self._write_timeout_s = write_timeout_s
        self._fork_server = ForkServer()
        self._live: dict[str, _Live] = {}

    async def warm_up(self) -> None:
        """Load what the first start would wait for."""
        await self._fork_server.warm_up()

    async def create_instance(self, request: InstanceRequest) -> Instance:
        """Start an agentctl that ends with this process."""
        directory = os.path.join(self._directory, request.instance_id)
        for private in (self._directory, directory):
            os.makedirs(private, mode=0o700, exist_ok=True)
        try:
            instance, lifeline = await self._launch(request.instance_id, directory)
        except AgentctlError as error:
            # The fork server died over the request. If it forked before that, that agentctl ends with its lifeline;
            # the new one has a socket of its own and waits for the other's end before it touches the journal.
            if error.reason != "fork_server":
                raise
            instance, lifeline = await self._launch(request.instance_id, directory)
        self._live[request.instance_id] = _Live(instance=instance, lifeline=lifeline)
        return instance

    async def _launch(self, instance_id: str, directory: str) -> tuple[Instance, int]:
        """Start an agentctl; return it and the write end of its lifeline."""
        path = socket_path(directory)
        lifeline_end, lifeline = os.pipe()
        try:
            with listen(path) as listener:
                failpoint("instance.before_spawn")
                pid = await self._start(instance_id, directory, [listener.fileno(), lifeline_end])
                failpoint("instance.after_spawn")
        except BaseException:
            os.close(lifeline)  # whatever was started ends by this
            raise
        finally:
            os.close(lifeline_end)
        stat = process_stat(pid)
        instance = Instance(
            instance_id=instance_id,
            runtime=self.name,
            directory=directory,
            agentctl_url=f"unix:{path}",
            agentctl_pid=pid,
            agentctl_start_time=stat.start_time if stat else 0,
            boot_id=boot_id(),
        )
        return instance, lifeline

    async def recover_instances(self) -> list[Instance]:
        """Nothing: these processes are transient."""
        return []

    async def stop_instance(self, instance: Instance, *, grace_s: float) -> None:
        """End the agent with grace, then agentctl; what does not answer is killed by identity."""
        client = self.connect(instance)
        failpoint("instance.before_stop")
        try:
            await client.stop(grace_s=grace_s)
        except AgentctlError:
            pass  # gone, hung, or refused by it: the proof below decides
        finally:
            await client.aclose()
        failpoint("instance.after_stop")
        await self._end(instance)

    def connect(self, instance: Instance) -> AgentctlClient:
        """Return a client of the instance."""
        return AgentctlClient(instance.agentctl_url, instance_id=instance.instance_id)

    async def clear_leftover(self, instance: Instance) -> None:
        """Kill what is left, at once."""
        self._cut_lifeline(instance.instance_id)
        await kill_leftover(instance.directory)
        self._clean_up(instance)

    async def discard(self, instance: Instance) -> None:
        """Remove the directory of an ended instance, its journal too, once everything in it is stored."""
        await asyncio.to_thread(shutil.rmtree, instance.directory, ignore_errors=True)

    async def aclose(self) -> None:
        """End every instance at once, and the fork server."""
        await asyncio.gather(*(self.stop_instance(live.instance, grace_s=0) for live in list(self._live.values())))
        await self._fork_server.aclose()

    async def _start(self, instance_id: str, directory: str, descriptors: list[int]) -> int:
        options = AgentctlOptions(
            instance_id=instance_id,
            directory=directory,
            cap_bytes=self._cap_bytes,
            write_timeout_s=self._write_timeout_s,
        )
        try:
            return await self._fork_server.fork(options, descriptors)
        except OSError:  # no fork server can be had; one agentctl may
            return start_cold(options, descriptors)

    async def _end(self, instance: Instance) -> None:
        """Cut the lifeline, wait for agentctl's end, and prove that nothing is left."""
        self._cut_lifeline(instance.instance_id)
        pidfd = open_process(instance.agentctl_pid, instance.agentctl_start_time)
        if pidfd is not None:
            try:
                await exited(pidfd, _END_S)
            finally:
                os.close(pidfd)
        await kill_leftover(instance.directory)
        self._clean_up(instance)

    def _cut_lifeline(self, instance_id: str) -> None:
        live = self._live.pop(instance_id, None)
        if live is not None:
            os.close(live.lifeline)

    def _clean_up(self, instance: Instance) -> None:
        reap_cold()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(instance.agentctl_url.removeprefix("unix:"))
