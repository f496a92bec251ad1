"""A socket here that leads to a port in a sandbox; each connection is a WebSocket of its own, opened as needed."""

import asyncio
import contextlib
import json
import os
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from kandev.errors import AgentctlError, KandevError, RuntimeUnreachable
from kandev.runtimes.sockets import listen
from kandev.runtimes.sprites_api import SpritesApi

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse

__all__ = ["Tunnel"]

CONNECT_S: Final = 30.0
"""How long a sandbox that sleeps may take to wake up and connect."""
_PIECE_BYTES: Final = 64 * 1024


class Tunnel:
    """Leads from the Unix socket `path` to `port` of the sandbox `name`. Its pauses cut connections, not the tunnel."""

    def __init__(self, api: SpritesApi, name: str, port: int, path: str) -> None:
        self._api = api
        self._name = name
        self._port = port
        self._path = path
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.gone = False
        """True once the service said that there is no such sandbox."""

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
        task = asyncio.get_running_loop().create_task(self._lead(reader, writer), name=f"tunnel {self._name}")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._api.socket(f"/{quote(self._name)}/proxy") as socket:
                async with asyncio.timeout(CONNECT_S):
                    await self._connect(socket)
                await _both_ways(socket, reader, writer)
        except AgentctlError as error:
            self.gone = self.gone or error.reason == "sandbox_gone"
        except (KandevError, TimeoutError, OSError):
            pass  # whoever connected sees the connection end, and asks again
        finally:
            writer.close()

    async def _connect(self, socket: "ClientWebSocketResponse") -> None:
        await socket.send_str(json.dumps({"host": "localhost", "port": self._port}))
        answer = await socket.receive()
        status = json.loads(answer.data).get("status") if isinstance(answer.data, str) else ""
        if status != "connected":
            raise RuntimeUnreachable("Nobody listens in the sandbox.", reason="unreachable")


async def _both_ways(
    socket: "ClientWebSocketResponse", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carry bytes until either side ends."""

    async def out() -> None:
        while data := await reader.read(_PIECE_BYTES):
            await socket.send_bytes(data)

    async def back() -> None:
        async for message in socket:
            if isinstance(message.data, bytes):
                writer.write(message.data)
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
