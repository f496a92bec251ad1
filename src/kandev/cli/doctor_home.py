"""Checks of the machine and the home: programs, room, permissions, and whose the home is just now."""

import contextlib
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kandev.cli.address import process_lives, read_server_file
from kandev.cli.finding import Finding
from kandev.config import Config
from kandev.home import Home

LITTLE_ROOM = 1024**3
NO_ROOM = 100 * 1024**2
OLDEST_KERNEL = (5, 4)
OLDEST_GIT = (2, 20)
GIT_S = 10.0


def check_machine() -> Iterator[Finding]:
    """Python, kernel and git."""
    kernel = _numbers(platform.release())
    if sys.platform != "linux" or kernel < OLDEST_KERNEL:
        text = f"{platform.system()} {platform.release()} cannot run the backend."
        yield Finding(check="system", level="problem", text=text, mend="Use Linux 5.4 or newer.")
    else:
        yield Finding(
            check="system", level="ok", text=f"Linux {platform.release()}, Python {platform.python_version()}"
        )
    yield _git()


def _git() -> Finding:
    path = shutil.which("git")
    if path is None:
        mend = "Install git. Without it sessions work only in empty directories and in place."
        return Finding(check="git", level="warning", text="git was not found.", mend=mend)
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=GIT_S, check=False)
    words = done.stdout.split()
    version = words[2] if len(words) > 2 else "?"
    if _numbers(version) < OLDEST_GIT:
        return Finding(check="git", level="warning", text=f"git {version} is old.", mend="Install git 2.20 or newer.")
    return Finding(check="git", level="ok", text=f"git {version}")


def _numbers(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split(".")[:2]:
        digits = "".join(character for character in part if character.isdigit())
        numbers.append(int(digits or 0))
    return tuple(numbers)


def check_home(home: Home) -> Iterator[Finding]:
    """Whether the home is there, ours, private, and has room."""
    if not home.path.is_dir():
        yield Finding(check="home", level="note", text=f"{home.path} is not there yet; `kandev serve` makes it.")
        return
    if home.path.stat().st_uid != os.getuid():
        mend = "Start kandev as that user, or set KANDEV_HOME to a directory of your own."
        yield Finding(check="home", level="problem", text=f"{home.path} belongs to another user.", mend=mend)
        return
    if not os.access(home.path, os.W_OK | os.X_OK):
        mend = f"chmod u+rwx {home.path}"
        yield Finding(check="home", level="problem", text=f"{home.path} cannot be written.", mend=mend)
        return
    yield Finding(check="home", level="ok", text=str(home.path))
    yield from _permissions(home)
    yield _room(home)


def _permissions(home: Home) -> Iterator[Finding]:
    shared = (home.path / "data").is_dir()  # another program's home: only its own files are looked at
    directories = (
        [home.run] if shared else [home.path, home.sessions, home.run, home.logs, home.backups, home.worktrees]
    )
    files = [home.token, home.database, home.server_file, *sorted(home.sessions.glob("*.jsonl"))]
    for path in (*directories, *files):
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & 0o077:
                yield _open_to_others(path, mode)


def _open_to_others(path: Path, mode: int) -> Finding:
    wanted = mode & 0o700
    return Finding(
        check="home",
        level="warning",
        text=f"Other users may read {path} ({mode:04o}).",
        mend=f"chmod {wanted:04o} {path}",
        fix=lambda: path.chmod(wanted),
    )


def _room(home: Home) -> Finding:
    free = shutil.disk_usage(home.path).free
    text = f"{free / 1024**3:.1f} GB free under {home.path}"
    if free < NO_ROOM:
        return Finding(check="room", level="problem", text=text, mend="Make room; what was saved is safe.")
    if free < LITTLE_ROOM:
        return Finding(check="room", level="warning", text=text, mend="Make room soon.")
    return Finding(check="room", level="ok", text=text)


def backend_pid(home: Home) -> int:
    """Return the pid of the backend that holds the home's lock, -1 when it is not known, 0 when there is none.

    The lock is looked up in the kernel's list and never taken: a backend that starts just now must get it.
    """
    try:
        entry = home.lock.stat()
    except FileNotFoundError:
        return 0
    mark = f"{os.major(entry.st_dev):02x}:{os.minor(entry.st_dev):02x}:{entry.st_ino}"
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if mark in words and "->" not in words:
            pid = int(words[4])
            return pid if pid > 0 else -1
    return 0


def check_backend(home: Home, config: Config) -> Iterator[Finding]:
    """Whether a backend runs, and whether what it would need is free if not."""
    holder = backend_pid(home)
    server = read_server_file(home.path)
    if holder:
        where = server["url"] if server and "url" in server else "no address yet"
        yield Finding(check="backend", level="ok", text=f"runs as process {holder}: {where}")
        return
    if server is not None and not process_lives(server.get("pid")):
        yield Finding(
            check="backend",
            level="warning",
            text=f"The last backend (process {server.get('pid')}) was killed; its sessions are kept.",
            mend=f"kandev serve brings it back; or remove {home.server_file}",
            fix=lambda: home.server_file.unlink(missing_ok=True),
        )
    else:
        yield Finding(check="backend", level="note", text="does not run; start it with: kandev serve")
    yield from _port(config)


def _port(config: Config) -> Iterator[Finding]:
    host, port = config.server.host, config.server.port
    if not port:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            text = f"Port {port} on {host} cannot be used: {error.strerror}."
            mend = "Start with another one: kandev serve --port 0"
            yield Finding(check="port", level="warning", text=text, mend=mend)
