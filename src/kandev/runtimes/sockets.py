"""Listening sockets of local agentctls: 0600, in a directory of 0700, at a path that fits."""

import hashlib
import os
import socket
import stat
from typing import Final

from kandev.errors import AgentctlError

__all__ = ["listen", "socket_path"]

_PATH_LIMIT: Final = 107
_BACKLOG: Final = 64


def socket_path(directory: str) -> str:
    """Return the path of the instance's socket: in its directory, or elsewhere when that is over 107 bytes long.

    Elsewhere is `$XDG_RUNTIME_DIR/kandev`, or a directory of ours under /tmp. Raises AgentctlError when somebody else
    owns that.
    """
    path = os.path.join(directory, "sock")
    if len(os.fsencode(path)) <= _PATH_LIMIT:
        return path
    name = hashlib.sha256(os.fsencode(os.path.abspath(directory))).hexdigest()[:24]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    parent = os.path.join(runtime, "kandev") if runtime else f"/tmp/kandev-{os.geteuid()}"  # noqa: S108  # checked below
    if len(os.fsencode(parent)) + len(name) + 1 > _PATH_LIMIT:
        parent = f"/tmp/kandev-{os.geteuid()}"  # noqa: S108  # checked below
    _make_private(parent)
    return os.path.join(parent, name)


def listen(path: str) -> socket.socket:
    """Return a listening Unix socket at `path`, in the place of one that nobody serves any more."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(path):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _make_private(directory: str) -> None:
    """Make `directory` 0700, or make sure that it is ours alone: others may write to its parent."""
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise AgentctlError(
                f"{directory} is not a directory of this user alone; remove it, or set XDG_RUNTIME_DIR.",
                reason="socket_directory",
            ) from None
