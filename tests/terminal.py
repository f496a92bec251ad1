"""A program on a terminal of its own: type to it, wait for what it shows."""

import asyncio
import contextlib
import os
import pty
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from leftovers import ended
from wire_client import LIMIT


class Terminal:
    """Runs `command` on a pseudo-terminal. `shown` is everything that it wrote so far."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._command = command
        self._env = {**env, "TERM": "xterm"}
        self._arrived = asyncio.Event()
        self.shown = ""

    async def __aenter__(self) -> Self:
        self._master, slave = pty.openpty()
        try:
            self.process = subprocess.Popen(  # noqa: ASYNC220 - spawning is quick, and a pidfd tells the end
                self._command, stdin=slave, stdout=slave, stderr=slave, env=self._env, start_new_session=True
            )
        finally:
            os.close(slave)
        asyncio.get_running_loop().add_reader(self._master, self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._master, text.encode() + b"\n")

    async def expect(self, text: str, *, times: int = 1) -> None:
        """Wait until `text` was shown so many times."""
        try:
            async with asyncio.timeout(LIMIT):
                while self.shown.count(text) < times:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise AssertionError(f"{text!r} was not shown {times} times in:\n{self.shown}") from None

    async def ended(self) -> int:
        """Wait for the program's end and return its exit code."""
        async with asyncio.timeout(LIMIT):
            await ended(self.process.pid)
        return self.process.wait()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody has the other side open any more
            if piece := os.read(self._master, 65536):
                self.shown += piece.decode(errors="replace")
                self._arrived.set()
                return
        asyncio.get_running_loop().remove_reader(self._master)
