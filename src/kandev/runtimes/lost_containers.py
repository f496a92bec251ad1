"""Containers that their engine lost: one that ends while it starts a container may not know of it at its next start.

Docker 20.10 does so. The engine then says that the container does not run, and cannot end it; its processes go on.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Final

from kandev.agentctl.platform import all_processes, open_process
from kandev.errors import AgentctlError
from kandev.runtimes.leftovers import exited

__all__ = ["end_lost"]

_KILL_S: Final = 10.0


async def end_lost(arguments: Path) -> bool:
    """Kill what runs on this machine in a container that was started with a session's arguments; True where it did.

    To be called where the engine knows of none that runs. Proof is the file, which belongs to one session, on the
    command line of the first process of a process namespace (PROC-2). Raises AgentctlError when that does not die.
    """
    if not arguments.exists():
        return False
    found = await asyncio.to_thread(_first_processes, f"@{arguments}")
    return any([await _kill(*process) for process in found])


def _first_processes(argument: str) -> list[tuple[int, int]]:
    """Return (pid, start time) of the first processes of namespaces whose last argument is that."""
    ending = f"\0{argument}\0".encode()
    return [
        (stat.pid, stat.start_time)
        for stat in all_processes()
        if stat.alive and _read(stat.pid, "cmdline").endswith(ending) and _is_first(stat.pid)
    ]


def _is_first(pid: int) -> bool:
    numbers = [line.split()[1:] for line in _read(pid, "status").splitlines() if line.startswith(b"NSpid:")]
    return len(numbers) == 1 and len(numbers[0]) > 1 and numbers[0][-1] == b"1"


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


async def _kill(pid: int, start_time: int) -> bool:
    pidfd = open_process(pid, start_time)
    if pidfd is None:
        return False
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if not await exited(pidfd, _KILL_S):
            raise AgentctlError(f"A container that the engine lost, process {pid}, does not die.", reason="tree_alive")
    finally:
        os.close(pidfd)
    return True
