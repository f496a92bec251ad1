"""What every runtime offers, and the two values that pass between it and its caller."""

from typing import Protocol

import msgspec

from kandev.runtimes.agentctl_client import AgentctlClient

__all__ = ["Instance", "InstanceRequest", "Runtime"]


class InstanceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which instance to make. Its id was stored before, so that a crash in between leaves nothing without a name."""

    instance_id: str
    session_id: str
    task_id: str
    execution_id: str


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A running agentctl, in a form that can be stored and used by another process.

    `agentctl_url` is "unix:/path/of/socket" or "http://host:port"; `boot_id` is the machine's; `agentctl_start_time`
    is in clock ticks since that boot. `nonce` is that of this start of agentctl, '' when not yet asked for.
    """

    instance_id: str
    runtime: str
    directory: str
    agentctl_url: str
    agentctl_pid: int
    agentctl_start_time: int
    boot_id: str
    container_id: str = ""
    nonce: str = ""


class Runtime(Protocol):
    """A place where agents run."""

    name: str

    async def create_instance(self, request: InstanceRequest) -> Instance:
        """Start an agentctl; the agent is not started yet. Raises AgentctlError. The caller waits for readiness."""
        ...

    async def recover_instances(self) -> list[Instance]:
        """Return the instances that outlived the former backend and can be attached; called once, at start."""
        ...

    async def stop_instance(self, instance: Instance, *, grace_s: float) -> None:
        """End agent and agentctl; returns when the whole tree is proven dead. Safe to call again, at any time.

        The journal stays, for the caller to read. Raises AgentctlError when something cannot be killed.
        """
        ...

    def connect(self, instance: Instance) -> AgentctlClient:
        """Return a client of the instance, without I/O. The caller closes it."""
        ...

    async def clear_leftover(self, instance: Instance) -> None:
        """End at once, by identity, what is left of an instance whose agentctl does not answer (CRASH-15, CRASH-16)."""
        ...

    async def discard(self, instance: Instance) -> None:
        """Remove what an ended instance leaves behind, its journal too, once everything in it is stored."""
        ...

    async def aclose(self) -> None:
        """End what this runtime started and what does not survive its backend."""
        ...
