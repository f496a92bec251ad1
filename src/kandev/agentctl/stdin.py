"""Lines to the agent's stdin, each at most once: a line has a number, and only the next number is taken."""

import asyncio
import hashlib
import os
from collections import OrderedDict
from typing import Final

from kandev.agentctl.failpoints import failpoint
from kandev.agentctl.journal import Journal
from kandev.agentctl.records import StdinLine, StdinWritten
from kandev.agentctl.refusal import Refusal

__all__ = ["StdinWriter"]

_REMEMBERED_LINES: Final = 64


class StdinWriter:
    """Owns the write end of the agent's stdin. A line that was begun is finished, however slowly the agent reads."""

    def __init__(self, fd: int, *, journal: Journal, loop: asyncio.AbstractEventLoop) -> None:
        os.set_blocking(fd, False)
        self.last_line = 0
        self.closed = False
        self._fd = fd
        self._journal = journal
        self._loop = loop
        self._digests: OrderedDict[int, bytes] = OrderedDict()
        self._rest = memoryview(b"")
        self._written: asyncio.Future[None] | None = None

    async def send(self, n: int, line: bytes, *, timeout_s: float) -> None:
        """Write line `n`; the same line again is a success without a second write.

        Raises Refusal: line_gap, line_conflict, stdin_closed, disk_full (nothing was written), agent_not_reading
        (`timeout_s` passed; the write goes on, and the same request again waits for it).
        """
        data = line if line.endswith(b"\n") else line + b"\n"
        digest = hashlib.sha256(data).digest()
        if not self._is_repeat(n, digest):
            await self._settle(timeout_s)
            if not self._is_repeat(n, digest):  # asked again: two requests with one line may have waited together
                self._begin(n, data, digest)
        await self._settle(timeout_s)

    def close(self) -> None:
        """Close the pipe. A line that is being written is given up."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_writer(self._fd)
        os.close(self._fd)
        self._settled_by(_stdin_closed())

    def _is_repeat(self, n: int, digest: bytes) -> bool:
        known = self._digests.get(n)
        if known is None and n == self.last_line + 1:
            return False
        if known is None:
            raise Refusal(409, "line_gap", f"The next line is {self.last_line + 1}.", last_line=self.last_line)
        if known != digest:
            raise Refusal(409, "line_conflict", f"Line {n} was another line.", last_line=self.last_line)
        return True

    def _begin(self, n: int, data: bytes, digest: bytes) -> None:
        if self.closed:
            raise _stdin_closed()
        failpoint("agentctl.before_line")
        if not self._journal.announce(StdinLine(n=n)):
            raise Refusal(507, "disk_full", "There is no room for the journal; the line was not written.")
        failpoint("agentctl.announced")
        self.last_line = n
        self._digests[n] = digest
        if len(self._digests) > _REMEMBERED_LINES:
            self._digests.popitem(last=False)
        self._rest = memoryview(data)
        self._written = self._loop.create_future()
        self._loop.add_writer(self._fd, self._write)
        self._write()

    def _write(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._fd, self._rest) :]
                if self._rest:
                    failpoint("agentctl.half_written")
        except BlockingIOError:
            return
        except OSError:  # EPIPE: the agent closed its stdin, or ended
            self.close()
            return
        self._loop.remove_writer(self._fd)
        failpoint("agentctl.before_written")
        self._journal.write_record(StdinWritten(n=self.last_line))
        failpoint("agentctl.after_written")
        self._settled_by(None)

    def _settled_by(self, refusal: Refusal | None) -> None:
        future = self._written
        if future is None or future.done():
            return
        if refusal is None:
            future.set_result(None)
        else:
            future.set_exception(refusal)
            future.exception()  # nobody may be waiting; that is no fault

    async def _settle(self, timeout_s: float) -> None:
        """Wait until the line that was last begun is in the pipe as a whole."""
        if self._written is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._written)
        except TimeoutError:
            raise Refusal(
                503, "agent_not_reading", "The agent does not read its stdin; the line is still being written."
            ) from None


def _stdin_closed() -> Refusal:
    return Refusal(409, "stdin_closed", "The agent's stdin is closed.")
