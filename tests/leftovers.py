"""Processes that a test started, directly or not: found by what they name, waited for and ended by pid."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path


async def ended(pid: int) -> None:
    """Returns once the process, which must be a child or alive, has ended. It may still have to be reaped."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    gone = asyncio.Event()
    try:
        loop.add_reader(descriptor, gone.set)
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def processes_naming(text: str) -> dict[int, str]:
    """Command lines by pid of other processes, no zombies, that have the text in their environment or arguments."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            arguments = _named_by(entry, text.encode())
            if arguments is not None:
                found[int(entry.name)] = arguments
    return found


def end_process(pid: int, *, naming: str) -> None:
    """Kills the process if it still names the text: the pid may be somebody else's by now."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if _named_by(Path("/proc") / str(pid), naming.encode()) is not None:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _named_by(entry: Path, text: bytes) -> str | None:
    """The command line of a process that has the text in environment or arguments; a zombie has neither."""
    with contextlib.suppress(OSError):
        arguments = (entry / "cmdline").read_bytes()
        if text in arguments or text in (entry / "environ").read_bytes():
            return arguments.replace(b"\0", b" ").decode(errors="replace").strip()
    return None
