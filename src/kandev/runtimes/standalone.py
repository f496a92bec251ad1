"""Agents on the backend's own machine. They end with their backend; a resume starts them again (the specification)."""

import asyncio
import os
from collections.abc import Sequence

import msgspec

from kandev.agentctl.sidecar import CAP_BYTES, WRITE_TIMEOUT_S
from kandev.agents.place import HERE
from kandev.errors import AgentctlError
from kandev.runtimes.agentctl_client import AgentctlClient
from kandev.runtimes.base import RUNTIME_DIRECTORIES, Instance, InstanceRequest, Named, RuntimeReport
from kandev.runtimes.fork_client import ForkServer
from kandev.runtimes.local import LocalInstances, stop_agent

__all__ = ["StandaloneRuntime"]


class _Live(msgspec.Struct, kw_only=True):
    """An instance that this backend started: the write end of its lifeline."""

    instance: Instance
    lifeline: int


class StandaloneRuntime:
    """Keeps instances under `directory` (run/ in the home), one subdirectory each."""

    name = "standalone"
    lasting = False
    place = HERE

    def __init__(
        self,
        directory: str,
        *,
        cap_bytes: int = CAP_BYTES,
        write_timeout_s: float = WRITE_TIMEOUT_S,
        fork_server: ForkServer | None = None,
    ) -> None:
        self._fork_server = fork_server or ForkServer()
        self._instances = LocalInstances(
            self.name,
            directory,
            fork_server=self._fork_server,
            cap_bytes=cap_bytes,
            write_timeout_s=write_timeout_s,
        )
        self._live: dict[str, _Live] = {}

    async def warm_up(self) -> None:
        """Load what the first start would wait for."""
        await self._fork_server.warm_up()

    async def create_instance(self, request: InstanceRequest) -> Instance:
        """Start an agentctl that ends with this process."""
        try:
            instance, lifeline = await self._launch(request)
        except AgentctlError as error:
            # The fork server died over the request. If it forked before that, that agentctl ends with its lifeline;
            # the new one has a socket of its own and waits for the other's end before it touches the journal.
            if error.reason != "fork_server":
                raise
            instance, lifeline = await self._launch(request)
        self._live[request.instance_id] = _Live(instance=instance, lifeline=lifeline)
        return instance

    async def _launch(self, request: InstanceRequest) -> tuple[Instance, int]:
        """Start an agentctl; return it and the write end of its lifeline."""
        lifeline_end, lifeline = os.pipe()
        try:
            return await self._instances.launch(request, lifeline_end), lifeline
        except BaseException:
            os.close(lifeline)  # whatever was started ends by this
            raise
        finally:
            os.close(lifeline_end)

    async def recover_instances(self) -> list[Instance]:
        """Nothing: these processes are transient."""
        return []

    async def stop_instance(self, instance: Instance, *, grace_s: float) -> None:
        """End the agent with grace, then agentctl; what does not answer is killed by identity."""
        await stop_agent(self.connect(instance), grace_s=grace_s)
        self._cut_lifeline(instance.instance_id)
        await self._instances.wait_for_end(instance)
        await self._instances.clear([instance])

    def connect(self, instance: Instance) -> AgentctlClient:
        """Return a client of the instance."""
        return AgentctlClient(instance.agentctl_url, instance_id=instance.instance_id)

    def locate(self, _session_id: str, instance_id: str) -> Instance:
        """Return an instance that may be there, by its id."""
        return self._instances.locate(instance_id)

    async def clear_leftovers(self, instances: Sequence[Instance]) -> list[str]:
        """Kill what is left, at once."""
        for instance in instances:
            self._cut_lifeline(instance.instance_id)
        return await self._instances.clear(instances)

    async def strays(self, named: Named) -> list[Instance]:
        """Return the instances that no row names."""
        return self._instances.strays(named, besides=RUNTIME_DIRECTORIES)

    async def discard(self, instance: Instance) -> None:
        """Remove the directory of an ended instance, its journal too, once everything in it is stored."""
        await self._instances.discard(instance)

    async def forget_session(self, _session_id: str) -> None:
        """Nothing is kept between two starts."""

    async def report(self) -> RuntimeReport:
        """Tell that its agents end with the backend."""
        return RuntimeReport(
            name=self.name,
            problem="",
            survives=(),
            on_backend_restart="agents end with the backend; a turn is interrupted, a resume starts the agent again",
            on_host_restart="agents end; a resume starts the agent again",
        )

    async def aclose(self) -> None:
        """End every instance at once, and the fork server."""
        await asyncio.gather(*(self.stop_instance(live.instance, grace_s=0) for live in list(self._live.values())))
        await self._fork_server.aclose()

    def _cut_lifeline(self, instance_id: str) -> None:
        live = self._live.pop(instance_id, None)
        if live is not None:
            os.close(live.lifeline)
