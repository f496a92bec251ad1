"""Installs the real agents and runs their tests where nothing but loopback can be reached.

    PYTHONPATH=tests python -m real_agents.run [NAME...] [-- PYTEST ARGUMENTS]

Names: only these agents are installed, and tests of others are skipped. A network namespace of its own needs root, or
user namespaces; where there is neither the tests run in the network as it is, and that is said.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from real_agents import install

TESTS = Path(__file__).parent
ISOLATIONS = (("unshare", "--net"), ("unshare", "--map-root-user", "--net"))
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1


def main(arguments: Sequence[str]) -> int:
    """Installs, tests, and returns pytest's exit code, or 1 where an agent could not be installed."""
    here = arguments.index("--") if "--" in arguments else len(arguments)
    failed = install.install_all(arguments[:here])
    isolation = find_isolation()
    if not isolation:
        sys.stdout.write("No network namespace can be made here: the agents could reach other hosts.\n")
    sys.stdout.flush()
    command = [sys.executable, "-m", "real_agents.run", "--inside", *arguments[here + 1 :]]
    return subprocess.run([*isolation, *command], check=False).returncode or min(failed, 1)


def find_isolation() -> Sequence[str]:
    """The words before a command that is to run without a network; none where that cannot be had."""
    if shutil.which("unshare"):
        for words in ISOLATIONS:
            if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
                return words
    return ()


def inside(arguments: Sequence[str]) -> None:
    """Becomes pytest, with loopback up: in a new namespace it is down."""
    up = struct.pack("16sH22x", b"lo", IFF_UP)
    # In the machine's own network, where it is up, this is refused.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, contextlib.suppress(PermissionError):
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, up)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", str(TESTS), *arguments])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2:])
    sys.exit(main(sys.argv[1:]))
