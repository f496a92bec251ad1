"""What depends on the operating system (Linux 5.4 or newer): pidfd, subreaper, /proc, peer credentials.

A process is identified by (boot id of the machine, pid, start time), never by its pid alone (PROC-2). A start time
is in clock ticks since boot, field 22 of /proc/PID/stat.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

__all__ = [
    "INSTANCE_VARIABLE",
    "PIPE_BYTES",
    "ProcessStat",
    "all_processes",
    "become_subreaper",
    "boot_id",
    "children",
    "descendants",
    "grow_pipe",
    "instance_of",
    "instances",
    "is_alive",
    "open_process",
    "peer_uid",
    "process_stat",
]

INSTANCE_VARIABLE: Final = "KANDEV_INSTANCE_ID"
PIPE_BYTES: Final = 1 << 20
_PR_SET_CHILD_SUBREAPER: Final = 36
_DEAD: Final = b"ZXx"
_HAS_CHILDREN_FILE: Final = os.path.exists("/proc/thread-self/children")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """What /proc/PID/stat tells. `alive` is False for a zombie (PROC-3)."""

    pid: int
    parent: int
    group: int
    session: int
    start_time: int
    alive: bool
    stopped: bool


@cache
def boot_id() -> str:
    """Return the kernel's random id of this boot of the machine; it cannot change while we run."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def process_stat(pid: int) -> ProcessStat | None:
    """Return what the kernel tells of `pid`, or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(1024)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses and may hold any byte, so the fields are counted behind the last one.
    fields = text.rpartition(b")")[2].split()
    return ProcessStat(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start_time=int(fields[19]),
        alive=fields[0] not in _DEAD,
        stopped=fields[0] in b"Tt",
    )


def is_alive(pid: int, start_time: int) -> bool:
    """True when `pid` is still the process that began at `start_time`, and no zombie."""
    stat = process_stat(pid)
    return stat is not None and stat.alive and stat.start_time == start_time


def open_process(pid: int, start_time: int) -> int | None:
    """Return a pidfd of the process (pid, start_time), or None when it is gone. The caller closes it."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if is_alive(pid, start_time):  # looked at after the open: the pidfd cannot move to another process
        return pidfd
    os.close(pidfd)
    return None


def become_subreaper() -> None:
    """Make orphans below this process its children, so that none leaves the tree (PROC-1)."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def all_processes() -> Iterator[ProcessStat]:
    """Yield every process of this /proc."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = process_stat(int(name))
            if stat is not None:
                yield stat


def children(pid: int) -> list[int]:
    """Return the direct children of `pid`, zombies among them."""
    if not _HAS_CHILDREN_FILE:
        return [stat.pid for stat in all_processes() if stat.parent == pid]
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # it ended while we looked; its children are somebody else's now and are found there
    return found


def descendants(pid: int) -> list[int]:
    """Return every process below `pid`, parents before their children."""
    found = children(pid)
    for child in found:  # grows while it is walked
        found += children(child)
    return found


def instance_of(pid: int) -> str:
    """Return the instance id in the environment of `pid`, or '' when it has none or may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return ""
    key = f"{INSTANCE_VARIABLE}=".encode()
    for entry in environment.split(b"\0"):
        if entry.startswith(key):
            return os.fsdecode(entry[len(key) :])
    return ""


def instances() -> Mapping[str, list[ProcessStat]]:
    """Return the live processes that carry an instance id, by id: one scan, whatever the number of ids."""
    found: dict[str, list[ProcessStat]] = {}
    for stat in all_processes():
        instance_id = instance_of(stat.pid) if stat.alive else ""
        if instance_id:
            found.setdefault(instance_id, []).append(stat)
    return found


def grow_pipe(fd: int) -> None:
    """Give the pipe 1 MiB: an agent that floods is woken less often. Where the user's quota says no, it stays."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EBUSY}:
            raise


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket, as the kernel knows it."""
    _pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)
