"""The processes below agentctl: reaping them, learning how the agent ended, and killing them all.

agentctl is a subreaper, so nothing below it can leave: who loses its parent becomes our child. When the kernel says
that we have no child, no process of the agent is left (PROC-1).
"""

import asyncio
import contextlib
import os
import signal
from typing import Final

from kandev.agentctl.platform import become_subreaper, descendants

__all__ = ["ProcessTree"]

_RESCAN_S: Final = 0.01
_STOP_ROUNDS: Final = 10


class ProcessTree:
    """Owns every child of this process; nobody else may wait for one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._expected: dict[int, asyncio.Future[int]] = {}
        self._changed = asyncio.Event()
        become_subreaper()
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def expect(self, pid: int) -> asyncio.Future[int]:
        """Return a future of the exit code of our child `pid`; a signal is its negative number."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._expected[pid] = future
        pidfd = os.pidfd_open(pid)
        self._loop.add_reader(pidfd, self.reap)
        future.add_done_callback(lambda _: self._forget(pidfd))
        return future

    def reap(self) -> bool:
        """Collect every child that ended; True when no child is left at all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._changed.set()
                return True
            if pid == 0:
                return False
            self._changed.set()
            future = self._expected.pop(pid, None)
            if future is not None and not future.done():
                future.set_result(os.waitstatus_to_exitcode(status))

    async def kill(self, timeout_s: float) -> bool:
        """Kill everything below this process; True once nothing is left, False when it would not die in time."""
        deadline = self._loop.time() + timeout_s
        while not self.reap():
            if self._loop.time() > deadline:
                return False
            self._changed.clear()
            self._kill_once()
            # A process that got away between scan and signal is found by the next scan.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESCAN_S):
                    await self._changed.wait()
        return True

    def close(self) -> None:
        """Give the signal back."""
        self._loop.remove_signal_handler(signal.SIGCHLD)

    def _forget(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)

    @staticmethod
    def _kill_once() -> None:
        """Stop all, so that none forks while it is killed, then kill all."""
        stopped: set[int] = set()
        for _ in range(_STOP_ROUNDS):
            fresh = set(descendants(os.getpid())) - stopped
            if not fresh:
                break
            for pid in fresh:
                _signal(pid, signal.SIGSTOP)
            stopped |= fresh
        for pid in stopped:
            _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    # Our descendants cannot be reused pids: a zombie keeps its number until its parent or we reap it. A grandchild
    # may be reaped by its own parent in between; the number is then free for microseconds, not for a round of pids.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
