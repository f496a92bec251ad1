"""What every runtime offers, and the values that pass between it and its caller."""

from collections.abc import Callable, Container, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from kandev.agents.place import Place
from kandev.runtimes.agentctl_client import AgentctlClient

__all__ = [
    "ANOTHER",
    "RUNTIME_DIRECTORIES",
    "Elsewhere",
    "Instance",
    "InstanceRequest",
    "Named",
    "Runtime",
    "RuntimeReport",
]

RUNTIME_DIRECTORIES = ("detached", "docker", "remote_docker", "sprites")
"""Directories in the home's run/ that hold the instances of a runtime; standalone's stand there themselves."""
ANOTHER = frozenset({"instance_mismatch", "api_version"})
"""Reasons for which what answers at an instance's address is not that; any other error says nothing about it."""


def _tell_nobody(_stage: str) -> None:
    pass


class InstanceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which instance to make. Its id was stored before, so that a crash in between leaves nothing without a name.

    `cwd` is the session's directory, `credentials` are the places of the agent's login (`AgentConfig`). `told` is
    called with a stage when something is waited for; what it raises ends the start.
    """

    instance_id: str
    session_id: str
    task_id: str
    execution_id: str
    cwd: str = ""
    agent: str = ""
    credentials: tuple[str, ...] = ()
    told: Callable[[str], None] = _tell_nobody


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A running agentctl, in a form that can be stored and used by another process.

    `agentctl_url` is "unix:/path/of/socket" or "http://host:port"; `boot_id` is the machine's; `agentctl_start_time`
    is in clock ticks since that boot. `nonce` is that of this start of agentctl, '' when not yet asked for.
    `cwd` is where the agent works, '' for the session's directory itself. `note` is a line for the transcript.
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
    cwd: str = ""
    note: str = ""


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """What the database knows: the instances of rows that have not ended, and whether there is such a session."""

    instances: Container[str]
    has_session: Callable[[str], bool]


class RuntimeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a person is told of a runtime. `problem` is why it cannot be used now, '' when it can.

    `survives` names what its agents outlive, of "backend_restart" and "host_restart"; the other two say the same in
    words, and what happens otherwise.
    """

    name: str
    problem: str
    survives: tuple[str, ...]
    on_backend_restart: str
    on_host_restart: str


class Runtime(Protocol):
    """A place where agents run. Where an engine is asked, each method may raise RuntimeUnreachable."""

    name: str
    lasting: bool
    """True where agents outlive the backend: it lets go of them when it stops, and attaches at its next start."""

    @property
    def place(self) -> Place:
        """What agents find where they are started."""
        ...

    async def create_instance(self, request: InstanceRequest) -> Instance:
        """Start an agentctl; the agent is not started yet. Raises AgentctlError. The caller waits for readiness."""
        ...

    async def recover_instances(self) -> list[Instance]:
        """Return the instances whose agents run and can be attached, though another backend made them."""
        ...

    async def stop_instance(self, instance: Instance, *, grace_s: float) -> None:
        """End agent and agentctl; returns when the whole tree is proven dead. Safe to call again, at any time.

        The journal stays, for the caller to read. Raises AgentctlError when something cannot be killed.
        """
        ...

    def connect(self, instance: Instance) -> AgentctlClient:
        """Return a client of the instance, without I/O. The caller closes it."""
        ...

    def locate(self, session_id: str, instance_id: str) -> Instance:
        """Return what the ids alone tell of an instance, which need not exist: where its journal is, first of all."""
        ...

    async def clear_leftovers(self, instances: Sequence[Instance]) -> list[str]:
        """End at once, by identity, what is left of instances that nobody attaches (CRASH-15, CRASH-16).

        Return the ids of those of which something was there.
        """
        ...

    async def strays(self, named: Named) -> list[Instance]:
        """Return instances that no row names: made, and their ids never stored, or their session deleted (CRASH-3)."""
        ...

    async def discard(self, instance: Instance) -> None:
        """Remove what an ended instance leaves behind, its journal too, once everything in it is stored."""
        ...

    async def forget_session(self, session_id: str) -> None:
        """Remove what is kept for the next start of a session that is being deleted; its agent has ended."""
        ...

    async def report(self) -> RuntimeReport:
        """Tell whether the runtime can be used here, and what its agents survive. Starts nothing."""
        ...

    async def aclose(self) -> None:
        """End what this runtime started and what does not survive its backend."""
        ...


@runtime_checkable
class Elsewhere(Protocol):
    """A runtime whose places have no file system in common with us, and are asked only when a session is wanted.

    `recover_instances` returns nothing, which proves nothing: an instance may live until `reconnect` says otherwise.
    Sources are carried to `Instance.cwd`, and the work comes home after each turn.
    """

    async def reconnect(self, instance: Instance) -> Instance | None:
        """Return a stored instance whose agent runs, None when it is over. Raises RuntimeUnreachable for unknown.

        Destroys nothing.
        """
        ...
