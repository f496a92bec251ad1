"""A socket here that leads to somewhere else; what is there is opened anew for each connection."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from kandev.errors import KandevError
from kandev.runtimes.sockets import listen

__all__ = ["Pipe", "SocketTunnel"]

OPEN_S: Final = 20.0
"""How long the other end may take to be opened, a connection to its host included."""
_PIECE_BYTES: Final = 64 * 1024


class Pipe(Protocol):
    """Bytes both ways. `read` returns b'' at the end; all raise OSError where the way is cut."""

    async def read(self) -> bytes:
        """Return what has come."""
        ...

    async def write(self, data: bytes) -> None:
        """Send, and wait while the other side is slow."""
        ...

    async def aclose(self) -> None:
        """End both ways."""
        ...


class SocketTunnel:
    """Leads from the Unix socket `path` to what `open_pipe` opens, which may raise KandevError, OSError, TimeoutError.

    A way that is cut ends the connections of that moment, not the tunnel.
    """

    def __init__(self, path: str, open_pipe: Callable[[], Awaitable[Pipe]], *, open_s: float = OPEN_S) -> None:
        self._path = path
        self._open_pipe = open_pipe
        self._open_s = open_s
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.trouble = ""
        """Why the other end could not be opened the last time; '' when it could."""

    async def open(self) -> None:
        """Listen."""
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        self._server = await asyncio.start_unix_server(self._connected, sock=listen(self._path))

    async def aclose(self) -> None:
        """End all connections, and listen no more."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._lead(reader, writer), name=f"tunnel {self._path}")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            pipe = await self._opened()
            try:
                await _both_ways(pipe, reader, writer)
            finally:
                await pipe.aclose()
        except (KandevError, OSError):  # TimeoutError among them
            pass  # whoever connected sees the connection end, and asks again
        finally:
            writer.close()

    async def _opened(self) -> Pipe:
        try:
            async with asyncio.timeout(self._open_s):
                pipe = await self._open_pipe()
        except KandevError as error:
            self.trouble = error.message
            raise
        except OSError as error:
            self.trouble = str(error) or f"no answer within {self._open_s:g} s"
            raise
        self.trouble = ""
        return pipe


async def _both_ways(pipe: Pipe, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes until either side ends."""

    async def out() -> None:
        while data := await reader.read(_PIECE_BYTES):
            await pipe.write(data)

    async def back() -> None:
        while data := await pipe.read():
            writer.write(data)
            await writer.drain()

    tasks = [asyncio.ensure_future(out()), asyncio.ensure_future(back())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
