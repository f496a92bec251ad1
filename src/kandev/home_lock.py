"""One backend for each home (RACE-8): a lock that the kernel drops with its process."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from kandev.errors import HomeInUse


@contextlib.contextmanager
def home_lock(path: Path) -> Iterator[None]:
    """Hold the home's lock. Raises HomeInUse, naming the pid that holds it and the file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise HomeInUse(
                f"Another backend, process {pid or 'unknown'}, uses {path.parent} (its lock: {path}). "
                "Use that one, stop it, or set KANDEV_HOME to another directory.",
                reason="home_in_use",
                pid=int(pid) if pid.isdecimal() else None,
                file=str(path),
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
