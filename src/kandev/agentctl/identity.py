"""Who owns an instance: a small file that lets another process find, prove and end agentctl and its agent (PROC-2)."""

import fcntl
import json
import os
import shutil
import time
from dataclasses import asdict, dataclass
from typing import Final

__all__ = [
    "AgentIdentity",
    "Identity",
    "claim_directory",
    "read_identity",
    "remove_earlier",
    "write_identity",
]

_FILE: Final = "agentctl.json"
_CLAIM_TIMEOUT_S: Final = 5.0
_CLAIM_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    """The agent's process. `start_time` is in clock ticks since boot."""

    pid: int
    start_time: int
    pgid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """agentctl's process, and its agent's once it was started. `ended`: both are gone, in order."""

    api_version: int
    instance_id: str
    nonce: str
    pid: int
    start_time: int
    boot_id: str
    agent: AgentIdentity | None = None
    ended: bool = False


def claim_directory(directory: str) -> int:
    """Return a descriptor that keeps `directory` for this process as long as it lives.

    Two agentctls never write one journal: a second one waits for the end of the first. Raises BlockingIOError when
    that takes more than five seconds.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + _CLAIM_TIMEOUT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                raise
            time.sleep(_CLAIM_PAUSE_S)
        else:
            return fd


def write_identity(directory: str, identity: Identity) -> None:
    """Store the identity in `directory`, 0600, whole or not at all."""
    path = os.path.join(directory, _FILE)
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps(asdict(identity)).encode())
    finally:
        os.close(fd)
    os.rename(path + ".new", path)


def read_identity(directory: str) -> Identity | None:
    """Return the identity stored in `directory`; None when there is none, or it cannot be read."""
    try:
        with open(os.path.join(directory, _FILE), "rb") as file:
            fields = json.loads(file.read())
        agent = fields.pop("agent", None)
        return Identity(**fields, agent=AgentIdentity(**agent) if agent else None)
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, AttributeError):
        return None


def remove_earlier(directory: str, keep: int) -> None:
    """Remove what earlier instances left beside `directory`, but for the last `keep`; what cannot be removed stays.

    Only a directory whose identity names it is taken for one.
    """
    beside, own = os.path.split(directory)
    with os.scandir(beside) as entries:
        others = [entry.path for entry in entries if entry.name != own and entry.is_dir(follow_symlinks=False)]
    found = [path for path in others if _is_instance(path)]
    found.sort(key=lambda path: os.stat(os.path.join(path, _FILE)).st_mtime_ns)
    for path in found[: max(0, len(found) - keep)]:
        shutil.rmtree(path, ignore_errors=True)


def _is_instance(path: str) -> bool:
    try:
        identity = read_identity(path)
    except OSError:  # of somebody else's, say
        return False
    return identity is not None and identity.instance_id == os.path.basename(path)
