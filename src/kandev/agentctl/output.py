"""The agent's stdout into the journal, with back-pressure: nothing is read that has no place."""

import asyncio
import os
from typing import Final

from kandev.agentctl.failpoints import failpoint
from kandev.agentctl.journal import Journal
from kandev.agentctl.platform import PIPE_BYTES, grow_pipe
from kandev.agentctl.records import Overflow

__all__ = ["OutputPump"]

_READ_BYTES: Final = 256 * 1024
_RETRY_S: Final = 0.5
_DRAIN_S: Final = 0.2


class OutputPump:
    """Owns the read end of the agent's stdout. It stands while the journal is full or has no room.

    A line that alone fills the journal could never be acknowledged: it is ended there, its rest is dropped (WIRE-2).
    """

    def __init__(self, fd: int, *, journal: Journal, cap_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        os.set_blocking(fd, False)
        grow_pipe(fd)
        self._fd = fd
        self._journal = journal
        self._cap_bytes = cap_bytes
        self._loop = loop
        self._reading = False
        self._over_cap = False
        self._dropping_line = False
        self._at_end = asyncio.Event()
        self._flowing = asyncio.Event()
        self._retry: asyncio.TimerHandle | None = None
        self.adjust()

    @property
    def paused(self) -> str:
        """Why stdout is not being read: 'cap', 'disk_full', or '' while it is."""
        if self._journal.trouble:
            return "disk_full"
        return "cap" if self._over_cap else ""

    def adjust(self) -> None:
        """Read, or stop reading, as the journal has room; to be called when something was acknowledged."""
        over = self._journal.unacknowledged > self._cap_bytes
        if over and not self._over_cap:
            self._over_cap = True
            self._journal.write_record(Overflow(unacknowledged=self._journal.unacknowledged))
        self._over_cap = over
        if over and self._journal.one_line:
            self._journal.finish_line()
            self._dropping_line = True
        if self._journal.trouble:
            self._flowing.clear()
            self._retry = self._retry or self._loop.call_later(_RETRY_S, self._try_again)
        else:
            self._flowing.set()
        wanted = not self.paused and not self._at_end.is_set()
        if wanted and not self._reading:
            self._loop.add_reader(self._fd, self._read)
        elif self._reading and not wanted:
            self._loop.remove_reader(self._fd)
        self._reading = wanted

    async def finish(self) -> None:
        """After the agent's exit: take what it left in the pipe, then close.

        Reads to end-of-file, but for 200 ms at most: a grandchild may hold the pipe open (WIRE-8, CRASH-17). The cap
        does not count any more; a full disk is waited for.
        """
        self._cap_bytes = 1 << 62
        self.adjust()
        await self._flowing.wait()
        try:
            async with asyncio.timeout(_DRAIN_S):
                await self._at_end.wait()
        except TimeoutError:
            await self._drain_rest()
        self._close()

    async def _drain_rest(self) -> None:
        """Take what one pipe can hold: all that the agent wrote, even if this process did not run for a while."""
        taken = 0
        while not self._at_end.is_set() and taken < PIPE_BYTES:
            await self._flowing.wait()
            count = self._read()
            if count == 0:
                return
            taken += count

    def _read(self) -> int:
        """Move one piece to the journal and return its length; 0 when there is none now."""
        if self._at_end.is_set():
            return 0
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return 0
        count = len(data)
        if not count:
            self._at_end.set()
        if self._dropping_line:
            _, newline, data = data.partition(b"\n")
            self._dropping_line = not newline
        if data:
            failpoint("agentctl.before_journal")
            self._journal.write_output(data)
            failpoint("agentctl.after_journal")
        if not count or self._journal.trouble or self._journal.unacknowledged > self._cap_bytes:
            self.adjust()
        return count

    def _try_again(self) -> None:
        self._retry = None
        self._journal.retry()
        self.adjust()

    def _close(self) -> None:
        self._at_end.set()
        self.adjust()
        os.close(self._fd)
