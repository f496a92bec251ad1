"""The way to agentctl in a sandbox: a port there; each connection is a WebSocket of its own, opened as needed."""

import contextlib
import json
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from kandev.errors import AgentctlError
from kandev.runtimes.socket_tunnel import Pipe, SocketTunnel
from kandev.runtimes.sprites_api import SpritesApi

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse

__all__ = ["SandboxDoor"]

CONNECT_S: Final = 30.0
"""How long a sandbox that sleeps may take to wake up and connect."""


class SandboxDoor:
    """Leads from the Unix socket `path` to `port` of the sandbox `name`. Its pauses cut connections, not the door."""

    def __init__(self, api: SpritesApi, name: str, port: int, path: str) -> None:
        self._api = api
        self._name = name
        self._port = port
        self._tunnel = SocketTunnel(path, self._open_pipe, open_s=CONNECT_S)
        self.gone = False
        """True once the service said that there is no such sandbox."""

    async def open(self) -> None:
        """Listen at the instance's address."""
        await self._tunnel.open()

    async def aclose(self) -> None:
        """End all connections."""
        await self._tunnel.aclose()

    async def _open_pipe(self) -> Pipe:
        async with contextlib.AsyncExitStack() as opened:
            try:
                socket = await opened.enter_async_context(self._api.socket(f"/{quote(self._name)}/proxy"))
            except AgentctlError as error:
                self.gone = self.gone or error.reason == "sandbox_gone"
                raise
            await socket.send_str(json.dumps({"host": "localhost", "port": self._port}))
            answer = await socket.receive()
            status = json.loads(answer.data).get("status") if isinstance(answer.data, str) else ""
            if status != "connected":
                raise ConnectionRefusedError("nobody listens in the sandbox")
            kept = opened.pop_all()
        return _WebSocketPipe(socket, kept)


class _WebSocketPipe:
    def __init__(self, socket: "ClientWebSocketResponse", opened: contextlib.AsyncExitStack) -> None:
        self._socket = socket
        self._opened = opened

    async def read(self) -> bytes:
        async for message in self._socket:
            if isinstance(message.data, bytes) and message.data:
                return message.data
        return b""

    async def write(self, data: bytes) -> None:
        await self._socket.send_bytes(data)

    async def aclose(self) -> None:
        await self._opened.aclose()
