"""The backend's end of the fork server, and starting agentctl without it."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import h11
import msgspec

import kandev.agentctl
from kandev.agentctl.failpoints import environment_of_agentctl, failpoint
from kandev.errors import AgentctlError

__all__ = ["AgentctlOptions", "ForkServer", "reap_cold", "start_cold"]

_ANSWER_TIMEOUT_S: Final = 30.0

# The package's own __init__ would import the whole backend; agentctl needs only itself and h11. `-S` because what
# the interpreter's site directories run at start may cost more than everything else here.
_BOOT: Final = (
    "import sys, types; "
    "package = types.ModuleType('kandev'); package.__path__ = [sys.argv[1]]; sys.modules['kandev'] = package; "
    "sys.path.append(sys.argv[2]); "
    "from kandev.agentctl.{module} import main; main(sys.argv[3:])"
)


class AgentctlOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a local agentctl is told at its start; see Options in agentctl/sidecar.py."""

    instance_id: str
    directory: str
    cap_bytes: int
    write_timeout_s: float
    idle_s: float = 0


class _Forked(msgspec.Struct, frozen=True, kw_only=True):
    pid: int = 0
    error: str = ""


class ForkServer:
    """A preloaded process that forks agentctls; started at the first need, and again when it died."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    async def warm_up(self) -> None:
        """Start it now, so that the first session does not wait for it."""
        async with self._lock:
            self._ensure()

    async def fork(self, options: AgentctlOptions, descriptors: Sequence[int]) -> int:
        """Fork an agentctl with [listening socket, lifeline] and return its pid; one without the latter outlives us.

        Raises OSError when it cannot be started, AgentctlError when it failed in the middle.
        """
        request = msgspec.json.encode(options)
        async with self._lock:
            try:
                self._send(request, descriptors)
            except OSError:  # it died while idle: the request did not reach it
                self._discard()
                self._send(request, descriptors)
            answer = await self._answer()
        if answer.error:
            raise AgentctlError(f"The fork server could not fork: {answer.error}", reason="fork_server")
        return answer.pid

    async def aclose(self) -> None:
        """End it; the agentctls that it forked go on."""
        async with self._lock:
            self._discard()

    def _send(self, request: bytes, descriptors: Sequence[int]) -> None:
        socket.send_fds(self._ensure(), [request], list(descriptors))

    async def _answer(self) -> _Forked:
        """Read the answer. Without one the fork may or may not have happened, so nobody tries again by himself."""
        assert self._control is not None
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                data = await asyncio.get_running_loop().sock_recv(self._control, 4096)
        except OSError:  # TimeoutError among them
            data = b""
        except BaseException:
            self._discard()  # cancelled: this answer must not meet the next request
            raise
        if not data:
            self._discard()
            raise AgentctlError("The fork server ended or hung in the middle of a start.", reason="fork_server")
        return msgspec.json.decode(data, type=_Forked)

    def _ensure(self) -> socket.socket:
        if self._control is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            failpoint("instance.before_fork_server")
            with theirs:
                self._process = _start("fork_server", [str(theirs.fileno())], [theirs.fileno()])
            failpoint("instance.after_fork_server")
            self._control = ours
        return self._control

    def _discard(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()  # it holds no state
            self._process.wait()
            self._process = None


def start_cold(options: AgentctlOptions, descriptors: Sequence[int]) -> int:
    """Start an agentctl in an interpreter of its own; return its pid. About 100 ms dearer than a fork."""
    listener, *lifeline = descriptors
    arguments = [
        *("--instance-id", options.instance_id, "--dir", options.directory, "--listen", f"fd:{listener}"),
        *("--lifeline", str(lifeline[0] if lifeline else -1), "--cap", str(options.cap_bytes)),
        *("--write-timeout", str(options.write_timeout_s), "--idle", str(options.idle_s), "--log"),
    ]
    process = _start("__main__", arguments, descriptors)
    _unreaped.append(process)
    return process.pid


_unreaped: list[subprocess.Popen[bytes]] = []


def reap_cold() -> None:
    """Collect the agentctls of `start_cold` that ended."""
    _unreaped[:] = [process for process in _unreaped if process.poll() is None]


def _start(module: str, arguments: Sequence[str], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    package = os.path.dirname(os.path.dirname(os.path.abspath(kandev.agentctl.__file__)))
    libraries = os.path.dirname(os.path.dirname(os.path.abspath(h11.__file__)))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _BOOT.format(module=module), package, libraries, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
        env={
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C.UTF-8",
            **environment_of_agentctl(os.environ),
        },
        pass_fds=list(descriptors),
        start_new_session=True,  # Ctrl-C in our terminal is for us only (PROC-4)
    )
