"""Lines that a person types, read by the event loop: no thread that would hold up the end of the program."""

import asyncio
import os
import sys
from types import TracebackType
from typing import Self


class Keyboard:
    """Reads lines from stdin while it is open. Only for a terminal or a pipe."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._rest = b""
        self._file = -1

    def __enter__(self) -> Self:
        self._file = sys.stdin.fileno()
        asyncio.get_running_loop().add_reader(self._file, self._read)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._file)

    async def line(self) -> str | None:
        """Return the next line without its end; None when the input ended (Ctrl-D)."""
        return await self._lines.get()

    def _read(self) -> None:
        piece = os.read(self._file, 65536)
        if not piece:
            asyncio.get_running_loop().remove_reader(self._file)
            self._lines.put_nowait(None)
            return
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._lines.put_nowait(line.decode("utf-8", "replace").rstrip("\r"))
