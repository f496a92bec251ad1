"""The listening socket, and who has it when we cannot."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

from kandev.errors import Invalid, Unavailable

BACKLOG = 256
STUCK_CLIENT_MS = 30_000  # a client that takes no byte for this long is cut off by the kernel


def bind(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket; port 0 is any free one.

    Raises Unavailable (reason `port_in_use`, with the owner's pid where it can be known, PROC-5) or Invalid for a host
    that is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With proto 0 asyncio would not set TCP_NODELAY, and each kept-alive request would take 43 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STUCK_CLIENT_MS)
        listener.bind((host.strip("[]"), port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise _in_use(host, port) from None
        if error.errno == errno.EACCES:
            raise Invalid(f"Port {port} needs more rights. Take one above 1023.", field="server.port") from None
        raise Invalid(f"Cannot listen on {host}:{port}: {error.strerror or error}.", field="server.host") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address to open: http://HOST:PORT. Listening everywhere is reached by loopback."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _in_use(host: str, port: int) -> Unavailable:
    owner = port_owner(port)
    who = f" by process {owner[0]} ({owner[1]})" if owner else ""
    details = {"pid": owner[0], "command": owner[1]} if owner else {}
    return Unavailable(
        f"Port {port} on {host} is in use{who}. End it, or choose another: kandev serve --port 0 takes any free one.",
        reason="port_in_use",
        port=port,
        **details,
    )


def port_owner(port: int) -> tuple[int, str] | None:
    """Return (pid, command) of who listens on the port, or None where this user cannot see it."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port)}
    if not inodes:
        return None
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if inodes.intersection(_open_files(pid)):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as comm:
                return int(pid), comm.read().strip()
    return None


def _listening(port: int) -> Iterator[str]:
    """Yield the inodes of sockets in state LISTEN (0A) on the port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as lines:
            for fields in map(str.split, lines):
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _open_files(pid: str) -> Iterator[str]:
    directory = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for number in os.listdir(directory):
            with contextlib.suppress(OSError):
                yield os.readlink(f"{directory}/{number}")
