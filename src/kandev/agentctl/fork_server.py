"""A preloaded process that forks agentctls: a start takes a few milliseconds and shares its memory.

It has asyncio and h11 imported, one thread and no loop. It always has one spare: a fork that runs its loop and waits
to be told which instance it is. Requests come over a SOCK_SEQPACKET pair: one JSON object with the options, and the
descriptors [listening socket, lifeline], the latter unless the instance outlives the backend; they go to the spare as
they are. The answer is {"pid"} or {"error"}. Fork
server and spare end when the backend's end of the pair closes.
"""

import asyncio
import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Final, NamedTuple

from kandev.agentctl.failpoints import failpoint
from kandev.agentctl.http import HttpConnection
from kandev.agentctl.platform import boot_id
from kandev.agentctl.server import serve
from kandev.agentctl.sidecar import Options

__all__ = ["main", "redirect_output"]

_REQUEST_BYTES: Final = 64 * 1024
_SPARE_PAUSE_S: Final = 0.3


class _Spare(NamedTuple):
    pid: int
    channel: socket.socket


def main(arguments: Sequence[str]) -> None:
    """Serve forks on the socket whose descriptor is the one argument."""
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps; a forked agentctl sets its own
    boot_id()  # remembered, and so by every fork
    gc.freeze()  # what is loaded by now is shared by all, and no collection shall touch it
    spare: _Spare | None = None
    while True:
        # A fork costs its neighbours time, so the next spare waits until the last start is over.
        if spare is None and not select.select([control], [], [], _SPARE_PAUSE_S)[0]:
            spare = _fork_spare(control)
        try:
            data, descriptors, _flags, _address = socket.recv_fds(control, _REQUEST_BYTES, 2)
        except ConnectionError:  # the backend was killed before it read the last answer
            return
        if not data:
            return
        failpoint("agentctl.before_fork")
        answer = _hand_over(spare, control, data, descriptors)
        failpoint("agentctl.after_fork")
        with contextlib.suppress(ConnectionError):  # killed meanwhile; the next read says so
            control.send(json.dumps(answer).encode())
        spare = None
        for fd in descriptors:
            os.close(fd)


def _hand_over(
    spare: _Spare | None, control: socket.socket, data: bytes, descriptors: Sequence[int]
) -> dict[str, int | str]:
    """Give the request to the spare, or to a new fork when there is none or somebody killed it; return the answer."""
    if spare is not None:
        with spare.channel, contextlib.suppress(OSError):
            socket.send_fds(spare.channel, [data], descriptors)
            return {"pid": spare.pid}
    try:
        fresh = _fork_spare(control)
        with fresh.channel:
            socket.send_fds(fresh.channel, [data], descriptors)
    except OSError as error:
        return {"error": str(error)}
    return {"pid": fresh.pid}


def _fork_spare(control: socket.socket) -> _Spare:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    failpoint("agentctl.before_spare")
    pid = os.fork()
    if pid == 0:
        control.close()
        ours.close()
        _become_agentctl(theirs)
    failpoint("agentctl.after_spare")
    theirs.close()
    return _Spare(pid, ours)


def _become_agentctl(channel: socket.socket) -> None:
    status = 1
    try:
        os.setsid()
        os.chdir("/")
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        asyncio.run(_serve_when_told(channel))
        status = 0
    except BaseException:  # noqa: BLE001  # nothing of the fork server may run on in this process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


async def _serve_when_told(channel: socket.socket) -> None:
    await _rehearse()
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(channel, told.set)
    await told.wait()
    loop.remove_reader(channel)
    data, descriptors, _flags, _address = socket.recv_fds(channel, _REQUEST_BYTES, 2)
    channel.close()
    if not data:  # the fork server has ended
        return
    listener, *lifeline = descriptors
    options = Options(lifeline=lifeline[0] if lifeline else -1, **json.loads(data))
    redirect_output(options.directory)
    await serve(options, [socket.socket(fileno=listener)])


async def _rehearse() -> None:
    """Answer a request that nobody sent: the memory that this takes is then ours, and not copied later."""
    ours, theirs = socket.socketpair()
    far_reader, far_writer = await asyncio.open_unix_connection(sock=theirs)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    writer.write(b"GET /health HTTP/1.1\r\nhost: agentctl\r\n\r\n")
    connection = HttpConnection(far_reader, far_writer)
    await connection.next_request()
    await connection.respond(200, {"status": "rehearsal"})
    await reader.read(_REQUEST_BYTES)
    for end in (writer, far_writer):
        end.close()
        await end.wait_closed()


def redirect_output(directory: str) -> None:
    """Let stdout and stderr go to the instance's log, and stdin come from nowhere."""
    log = os.open(os.path.join(directory, "agentctl.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
