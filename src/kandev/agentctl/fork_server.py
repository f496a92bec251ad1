"""A preloaded process that forks agentctls: a start takes a few milliseconds and shares its memory.

It has asyncio and h11 imported, one thread and no loop. Requests come over a SOCK_SEQPACKET pair: one JSON object
with the options, and the descriptors [listening socket, lifeline]. The answer is {"pid"} or {"error"}. It ends when
its backend's end of the pair closes.
"""

import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence

from kandev.agentctl.server import run
from kandev.agentctl.sidecar import Options

__all__ = ["main", "redirect_output"]

_REQUEST_BYTES = 64 * 1024


def main(arguments: Sequence[str]) -> None:
    """Serve forks on the socket whose descriptor is the one argument."""
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps; a forked agentctl sets its own
    gc.freeze()  # what is loaded by now is shared by all, and no collection shall touch it
    while True:
        data, descriptors, _flags, _address = socket.recv_fds(control, _REQUEST_BYTES, 2)
        if not data:
            return
        control.send(json.dumps(_fork(control, data, descriptors)).encode())
        for fd in descriptors:
            os.close(fd)


def _fork(control: socket.socket, data: bytes, descriptors: Sequence[int]) -> dict[str, int | str]:
    try:
        listener, lifeline = descriptors
        options = Options(lifeline=lifeline, **json.loads(data))
        pid = os.fork()
    except (OSError, TypeError, ValueError) as error:
        return {"error": str(error)}
    if pid == 0:
        control.close()
        _become_agentctl(options, listener)
    return {"pid": pid}


def _become_agentctl(options: Options, listener: int) -> None:
    status = 1
    try:
        os.setsid()
        os.chdir("/")
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        redirect_output(options.directory)
        run(options, socket.socket(fileno=listener))
        status = 0
    except BaseException:  # noqa: BLE001  # nothing of the fork server may run on in this process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def redirect_output(directory: str) -> None:
    """Let stdout and stderr go to the instance's log, and stdin come from nowhere."""
    log = os.open(os.path.join(directory, "agentctl.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
