"""Agents on the backend's own machine that outlive it: a turn goes on, and the next backend attaches (CONT-1)."""

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from kandev.agentctl.identity import Identity, read_identity
from kandev.agentctl.platform import boot_id, is_alive
from kandev.agentctl.sidecar import CAP_BYTES
from kandev.agents.place import HERE
from kandev.errors import AgentctlError
from kandev.runtimes.agentctl_client import AgentctlClient
from kandev.runtimes.base import Instance, InstanceRequest, Named, RuntimeReport
from kandev.runtimes.fork_client import ForkServer
from kandev.runtimes.local import LocalInstances, stop_agent

__all__ = ["DetachedRuntime", "attachable"]

ANSWER_S: Final = 3.0
"""How long an agentctl of an earlier backend may take to say how it is; one that hangs is killed by identity."""


class DetachedRuntime:
    """Keeps instances under `directory`; each ends by itself after `idle_s` without a backend and without output."""

    name = "detached"
    lasting = True
    place = HERE

    def __init__(
        self,
        directory: str,
        *,
        cap_bytes: int = CAP_BYTES,
        idle_s: float = 0,
        fork_server: ForkServer | None = None,
    ) -> None:
        self._fork_server = fork_server or ForkServer()
        self._instances = LocalInstances(
            self.name, directory, fork_server=self._fork_server, cap_bytes=cap_bytes, idle_s=idle_s
        )

    async def create_instance(self, request: InstanceRequest) -> Instance:
        """Start an agentctl in a session of its own, without a tie to this process."""
        try:
            return await self._instances.launch(request, None)
        except AgentctlError as error:
            if error.reason != "fork_server":
                raise
            # It may have forked before it died, and nothing would end that agentctl by itself.
            await self._instances.clear([self._instances.locate(request.instance_id)])
            return await self._instances.launch(request, None)

    async def recover_instances(self) -> list[Instance]:
        """Return those whose agentctl is proven by boot id, pid and start time, answers, and has a running agent."""
        asked = await asyncio.gather(*map(self._ask, self._instances.names()))
        return [instance for instance in asked if instance is not None]

    async def _ask(self, instance_id: str) -> Instance | None:
        instance = self._instances.locate(instance_id)
        identity = read_identity(instance.directory)
        if identity is None or not _lives(identity):
            return None
        client = self.connect(instance)
        try:
            nonce = await attachable(client, instance_id, timeout_s=ANSWER_S)
        finally:
            await client.aclose()
        if nonce != identity.nonce:
            return None
        return replace(instance, agentctl_pid=identity.pid, agentctl_start_time=identity.start_time, nonce=nonce)

    async def stop_instance(self, instance: Instance, *, grace_s: float) -> None:
        """End the agent with grace, then agentctl and whatever is left."""
        await stop_agent(self.connect(instance), grace_s=grace_s)
        await self._instances.clear([instance])

    def connect(self, instance: Instance) -> AgentctlClient:
        """Return a client of the instance."""
        return AgentctlClient(instance.agentctl_url, instance_id=instance.instance_id)

    def locate(self, _session_id: str, instance_id: str) -> Instance:
        """Return an instance that may be there, by its id."""
        return self._instances.locate(instance_id)

    async def clear_leftovers(self, instances: Sequence[Instance]) -> list[str]:
        """Kill what is left, at once."""
        return await self._instances.clear(instances)

    async def strays(self, named: Named) -> list[Instance]:
        """Return the instances that no row names."""
        return self._instances.strays(named)

    async def discard(self, instance: Instance) -> None:
        """Remove the directory of an ended instance, its journal too, once everything in it is stored."""
        await self._instances.discard(instance)

    async def forget_session(self, _session_id: str) -> None:
        """Nothing is kept between two starts."""

    async def report(self) -> RuntimeReport:
        """Tell that its agents outlive the backend."""
        return RuntimeReport(
            name=self.name,
            problem="",
            survives=("backend_restart",),
            on_backend_restart="agents go on, also in a turn; the next backend attaches and loses nothing",
            on_host_restart="agents end; a resume starts the agent again",
        )

    async def aclose(self) -> None:
        """End the fork server; the agents go on."""
        await self._fork_server.aclose()


def _lives(identity: Identity) -> bool:
    return not identity.ended and identity.boot_id == boot_id() and is_alive(identity.pid, identity.start_time)


async def attachable(client: AgentctlClient, instance_id: str, *, timeout_s: float) -> str:
    """Return the nonce of an agentctl that is the one that was asked for and whose agent runs; else ''."""
    try:
        async with asyncio.timeout(timeout_s):
            health = await client.status()
    except (AgentctlError, TimeoutError):
        return ""
    ours = health.instance_id == instance_id and health.is_spoken
    return health.nonce if ours and health.agent.state == "running" else ""
