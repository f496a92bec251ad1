"""Starting the agent's command, in a session of its own, with pipes for its stdio."""

import errno
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from kandev.agentctl.platform import INSTANCE_VARIABLE, process_stat
from kandev.agentctl.refusal import Refusal

__all__ = ["Launch", "Spawned", "environment_of", "refused", "spawn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start. `env` is the agent's whole environment; the instance id and TMPDIR are added to it."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    tmpdir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """A process that was just started, and our ends of its pipes. It leads its own session and group."""

    pid: int
    start_time: int
    stdin: int
    stdout: int
    stderr: int


def spawn(launch: Launch, *, instance_id: str) -> Spawned:
    """Start the command. Raises Refusal: cwd_missing, agent_not_found, launch_failed."""
    environment = environment_of(launch, instance_id=instance_id)
    stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
    try:
        # Its own session: no signal of our terminal reaches it (PROC-4), and SIGTERM can go to its group.
        process = subprocess.Popen(
            launch.command,
            stdin=stdin[0],
            stdout=stdout[1],
            stderr=stderr[1],
            cwd=launch.cwd,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        for fd in (stdin[1], stdout[0], stderr[0]):
            os.close(fd)
        raise refused(error, launch) from error
    finally:
        for fd in (stdin[0], stdout[1], stderr[1]):
            os.close(fd)
    process.returncode = 0  # ProcessTree waits for it; Popen must not
    stat = process_stat(process.pid)
    assert stat is not None  # our child: it is there until we reap it
    return Spawned(pid=process.pid, start_time=stat.start_time, stdin=stdin[1], stdout=stdout[0], stderr=stderr[0])


def environment_of(launch: Launch, *, instance_id: str) -> dict[str, str]:
    """Return the environment of what is to be started, whose directories are there. Raises Refusal cwd_missing."""
    if not os.path.isdir(launch.cwd):
        raise Refusal(422, "cwd_missing", f"The working directory {launch.cwd} does not exist.")
    os.makedirs(launch.tmpdir, mode=0o700, exist_ok=True)
    return {**launch.env, INSTANCE_VARIABLE: instance_id, "TMPDIR": launch.tmpdir}


def refused(error: OSError | ValueError, launch: Launch) -> Refusal:
    """Return what is said of a command that could not be started."""
    name = launch.command[0]
    if isinstance(error, ValueError):  # a NUL in an argument
        return Refusal(422, "launch_failed", f"{name} cannot be started: {error}.")
    reason = error.strerror or str(error)
    if error.errno == errno.ENOEXEC:
        return Refusal(422, "agent_not_found", f"{name} is not a program: {reason}.", reason="not_executable")
    if error.errno in {errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELOOP}:
        return Refusal(422, "agent_not_found", f"{name} cannot be started: {reason}.", reason="not_found")
    return Refusal(422, "launch_failed", f"{name} cannot be started: {reason}.")
