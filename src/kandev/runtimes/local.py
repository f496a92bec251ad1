"""Instances of agentctl on the backend's own machine: started, proven, ended. Two runtimes are made of them."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Sequence
from typing import Final

from kandev.agentctl.failpoints import failpoint
from kandev.agentctl.platform import boot_id, open_process, process_stat
from kandev.agentctl.sidecar import CAP_BYTES, WRITE_TIMEOUT_S
from kandev.errors import AgentctlError
from kandev.runtimes.agentctl_client import AgentctlClient
from kandev.runtimes.base import Instance, InstanceRequest, Named
from kandev.runtimes.fork_client import AgentctlOptions, ForkServer, reap_cold, start_cold
from kandev.runtimes.leftovers import exited, kill_leftovers
from kandev.runtimes.sockets import listen, socket_path

__all__ = ["LocalInstances", "stop_agent"]

_END_S: Final = 5.0
"""How long an agentctl whose agent is gone may take to end: its readers get what the journal still has."""


class LocalInstances:
    """Keeps the instances of one kind under `directory`, one subdirectory each."""

    def __init__(
        self,
        kind: str,
        directory: str,
        *,
        fork_server: ForkServer,
        cap_bytes: int = CAP_BYTES,
        write_timeout_s: float = WRITE_TIMEOUT_S,
        idle_s: float = 0,
    ) -> None:
        self.kind = kind
        self.directory = os.path.abspath(directory)
        self._fork_server = fork_server
        self._cap_bytes = cap_bytes
        self._write_timeout_s = write_timeout_s
        self._idle_s = idle_s

    async def launch(self, request: InstanceRequest, lifeline_end: int | None) -> Instance:
        """Start an agentctl with the read end of its lifeline, or one that outlives us. Raises AgentctlError."""
        directory = os.path.join(self.directory, request.instance_id)
        for private in (os.path.dirname(self.directory), self.directory, directory):
            os.makedirs(private, mode=0o700, exist_ok=True)
        path = socket_path(directory)
        lifeline = [] if lifeline_end is None else [lifeline_end]
        with listen(path) as listener:
            failpoint("instance.before_spawn")
            pid = await self._start(request.instance_id, directory, [listener.fileno(), *lifeline])
            failpoint("instance.after_spawn")
        stat = process_stat(pid)
        return self._instance(directory, pid=pid, start_time=stat.start_time if stat else 0)

    def locate(self, instance_id: str) -> Instance:
        """Return an instance that may be there, by its id."""
        return self._instance(os.path.join(self.directory, instance_id))

    def _instance(self, directory: str, *, pid: int = 0, start_time: int = 0) -> Instance:
        return Instance(
            instance_id=os.path.basename(directory),
            runtime=self.kind,
            directory=directory,
            agentctl_url=f"unix:{socket_path(directory)}",
            agentctl_pid=pid,
            agentctl_start_time=start_time,
            boot_id=boot_id(),
        )

    def names(self) -> list[str]:
        """Return the ids of the instances that have a directory."""
        with contextlib.suppress(FileNotFoundError):
            return [entry.name for entry in os.scandir(self.directory) if entry.is_dir()]
        return []

    def strays(self, named: Named, *, besides: Sequence[str] = ()) -> list[Instance]:
        """Return the instances that no row names."""
        return [self.locate(name) for name in self.names() if name not in named.instances and name not in besides]

    async def wait_for_end(self, instance: Instance) -> None:
        """Wait until an agentctl that was told to end has ended, for a bounded time."""
        pidfd = open_process(instance.agentctl_pid, instance.agentctl_start_time)
        if pidfd is None:
            return
        try:
            await exited(pidfd, _END_S)
        finally:
            os.close(pidfd)

    async def clear(self, instances: Sequence[Instance]) -> list[str]:
        """Kill what is left of instances, with one scan for all; return the ids of those that had something."""
        killed = await kill_leftovers([instance.directory for instance in instances])
        reap_cold()
        for instance in instances:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(instance.agentctl_url.removeprefix("unix:"))
        return [one.instance_id for one in killed]

    async def discard(self, instance: Instance) -> None:
        """Remove the directory of an ended instance, its journal too."""
        await asyncio.to_thread(shutil.rmtree, instance.directory, ignore_errors=True)

    async def _start(self, instance_id: str, directory: str, descriptors: list[int]) -> int:
        options = AgentctlOptions(
            instance_id=instance_id,
            directory=directory,
            cap_bytes=self._cap_bytes,
            write_timeout_s=self._write_timeout_s,
            idle_s=self._idle_s,
        )
        try:
            return await self._fork_server.fork(options, descriptors)
        except OSError:  # no fork server can be had; one agentctl may
            return start_cold(options, descriptors)


async def stop_agent(client: AgentctlClient, *, grace_s: float) -> None:
    """Ask agentctl to end its agent, and close the client. Whether that is gone is proven by what follows."""
    failpoint("instance.before_stop")
    try:
        await client.stop(grace_s=grace_s)
    except AgentctlError:
        pass  # gone, hung, or refused by it
    finally:
        await client.aclose()
    failpoint("instance.after_stop")
