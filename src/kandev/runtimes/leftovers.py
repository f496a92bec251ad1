"""What a killed backend, or a killed agentctl, left running: found by identity, killed, waited for (PROC-2, RACE-10).

Proof is (machine's boot id, pid, start time) from the identity file, or the instance id in a process's environment.
A process group counts while its leader is proven. Nothing is ever killed by its pid or its name alone.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from kandev.agentctl.identity import Identity, read_identity
from kandev.agentctl.platform import (
    ProcessStat,
    all_processes,
    boot_id,
    descendants,
    instances,
    is_alive,
    open_process,
    process_stat,
)
from kandev.errors import AgentctlError

__all__ = ["Leftover", "exited", "kill_leftover", "kill_leftovers", "read_identity"]

AGENTCTL_END_S: Final = 1.5
"""How long an agentctl that lost its backend may take to kill its tree and write its last records."""
KILL_TIMEOUT_S: Final = 10.0
_ROUNDS: Final = 50


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one instance: whether its agentctl lived, and the pids that were killed besides."""

    instance_id: str
    agentctl_lived: bool = False
    killed: tuple[int, ...] = ()


async def kill_leftover(of: str | Identity) -> Leftover | None:
    """Kill agentctl and agent tree of one instance, given by its directory or identity; None when nobody was there.

    Returns when a scan finds nothing any more. Raises AgentctlError when something does not die.
    """
    found = await kill_leftovers([of])
    return found[0] if found else None


async def kill_leftovers(of: Sequence[str | Identity]) -> list[Leftover]:
    """The same for many instances: one scan for all of them. A directory without an identity file counts by its name.

    Answers in the order given, without those of which nothing was there.
    """
    identities = [entry if isinstance(entry, Identity) else _identity_in(entry) for entry in of]
    machine = boot_id()
    # Another boot of the machine: all are gone. Ended in order: agentctl wrote that nothing is left.
    suspects = [one for one in identities if one.boot_id in {machine, ""} and not one.ended]
    if not suspects:
        return []
    lived = await asyncio.gather(*(_end_agentctl(identity) for identity in suspects))
    killed = await _kill_orphans(suspects)
    return [
        Leftover(instance_id=identity.instance_id, agentctl_lived=alive, killed=tuple(killed[identity.instance_id]))
        for identity, alive in zip(suspects, lived, strict=True)
        if alive or killed[identity.instance_id]
    ]


def _identity_in(directory: str) -> Identity:
    """Return the stored identity; without one agentctl died before it wrote it, and only the name is known."""
    return read_identity(directory) or Identity(
        api_version=0, instance_id=os.path.basename(directory), nonce="", pid=0, start_time=0, boot_id=""
    )


async def _end_agentctl(identity: Identity) -> bool:
    """Ask agentctl to kill its tree and end; kill it when it does not. False when it was not there."""
    pidfd = open_process(identity.pid, identity.start_time) if identity.pid else None
    if pidfd is None:
        return False
    try:
        stat = process_stat(identity.pid)
        if stat is not None and not stat.stopped:
            # The first one asks for an end in order, the second for an end at once, by its tree's death.
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            signal.pidfd_send_signal(pidfd, signal.SIGINT)
            if await exited(pidfd, AGENTCTL_END_S):
                return True
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if not await exited(pidfd, KILL_TIMEOUT_S):
            raise AgentctlError(f"agentctl, process {identity.pid}, does not die.", reason="tree_alive")
    except ProcessLookupError:
        pass
    finally:
        os.close(pidfd)
    return True


async def exited(pidfd: int, timeout_s: float) -> bool:
    """Wait for the end of the process behind `pidfd`; False when it still runs after `timeout_s`."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(pidfd, gone.set)
    try:
        async with asyncio.timeout(timeout_s):
            await gone.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
    return True


async def _kill_orphans(suspects: Sequence[Identity]) -> Mapping[str, list[int]]:
    """Kill until two scans in a row find nothing: a fork may fall between a scan and its kill."""
    killed: dict[str, list[int]] = {identity.instance_id: [] for identity in suspects}
    clean = 0
    for _ in range(_ROUNDS):
        found = {identity.instance_id: _living(identity) for identity in suspects}
        marked = instances()
        for identity in suspects:
            found[identity.instance_id] |= _with_descendants(marked.get(identity.instance_id, ()))
        for instance_id, processes in found.items():
            killed[instance_id] += sorted(pid for pid, _ in processes)
        everything = [process for processes in found.values() for process in processes]
        if not everything:
            clean += 1
            if clean == 2 or not any(killed.values()):
                return killed
            continue
        clean = 0
        await _kill_all(everything)
    raise AgentctlError("Processes of an agent keep appearing and do not die.", reason="tree_alive")


def _living(identity: Identity) -> set[tuple[int, int]]:
    """Return (pid, start time) of the agent, its group and all below, while the agent itself is proven."""
    agent = identity.agent
    if agent is None or not is_alive(agent.pid, agent.start_time):
        return set()
    group = [stat for stat in all_processes() if stat.alive and stat.group == agent.pgid]
    return _with_descendants(group)


def _with_descendants(processes: Iterable[ProcessStat]) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for process in processes:
        found.add((process.pid, process.start_time))
        below = (process_stat(pid) for pid in descendants(process.pid))
        found |= {(stat.pid, stat.start_time) for stat in below if stat is not None and stat.alive}
    return found


async def _kill_all(processes: Iterable[tuple[int, int]]) -> None:
    pidfds = [pidfd for pidfd in (open_process(*process) for process in processes) if pidfd is not None]
    try:
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none forks meanwhile
            for pidfd in pidfds:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, number)
        for pidfd in pidfds:
            if not await exited(pidfd, KILL_TIMEOUT_S):
                raise AgentctlError("A process of an agent hangs in the kernel and does not die.", reason="tree_alive")
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
