"""The client's HTTP: keep-alive connections to one agentctl, answers with a length, and one endless chunked body."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from typing import Final, NamedTuple

from kandev.errors import AgentctlError

__all__ = ["READ_BYTES", "Answer", "HttpPool"]

READ_BYTES: Final = 64 * 1024


class Answer(NamedTuple):
    """Status and body of an answer."""

    status: int
    body: bytes


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class HttpPool:
    """Sends requests to `url` ("unix:/path" or "http://host:port"). Every OSError becomes ConnectionError.

    A request takes an idle connection or opens one, so that a slow one (a stop with grace) delays no other.
    """

    def __init__(self, url: str, *, token: str = "") -> None:
        self._url = url
        self._authorization = f"authorization: Bearer {token}\r\n" if token else ""
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()

    async def call(self, method: str, target: str, body: bytes = b"") -> Answer:
        """Send one request and return its answer. Raises ConnectionError when no whole answer came."""
        connection, reused = await self._take()
        self._busy.add(connection)
        try:
            connection.writer.write(self._head(method, target, len(body)) + body)
            status, fields = await _read_head(connection.reader)
            content = await connection.reader.readexactly(int(fields.get("content-length", "0")))
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            connection.writer.close()
            # An idle connection may have ended while nobody looked; that says nothing about agentctl.
            if reused and method == "GET":
                return await self.call(method, target, body)
            raise ConnectionError(str(error) or type(error).__name__) from error
        except BaseException:
            connection.writer.close()  # cancelled: the rest of the answer must not meet the next request
            raise
        finally:
            self._busy.discard(connection)
        self._idle.append(connection)
        return Answer(status, content)

    async def upload(self, target: str, pieces: Iterable[bytes], length: int) -> Answer:
        """POST a body of `length` bytes, piece by piece, on a connection of its own; return the answer.

        Raises ConnectionError when no whole answer came.
        """
        connection = await self._open()
        self._busy.add(connection)
        try:
            connection.writer.write(self._head("POST", target, length))
            for piece in pieces:
                connection.writer.write(piece)
                await connection.writer.drain()
            status, fields = await _read_head(connection.reader)
            return Answer(status, await connection.reader.readexactly(int(fields.get("content-length", "0"))))
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        finally:
            self._busy.discard(connection)
            connection.writer.close()

    async def stream(self, target: str) -> AsyncGenerator[bytes, None] | Answer:
        """Send a GET whose answer is long or endless; return its pieces, or the answer itself when it is not 200.

        The pieces are at most 64 KiB. They raise ConnectionError when the body ends before its end.
        """
        connection = await self._open()
        try:
            connection.writer.write(self._head("GET", target, 0))
            status, fields = await _read_head(connection.reader)
            if status == 200:
                return self._pieces(connection, fields.get("content-length"))
            body = await connection.reader.readexactly(int(fields.get("content-length", "0")))
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            connection.writer.close()
            raise ConnectionError(str(error) or type(error).__name__) from error
        except BaseException:
            connection.writer.close()
            raise
        connection.writer.close()
        return Answer(status, body)

    async def aclose(self) -> None:
        """Close every connection; a request in flight fails with ConnectionError."""
        connections = [*self._idle, *self._busy]
        self._idle.clear()
        for connection in connections:
            connection.writer.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                await connection.writer.wait_closed()

    async def _take(self) -> tuple[_Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if not connection.reader.at_eof() and not connection.writer.is_closing():
                return connection, True
            connection.writer.close()
        return await self._open(), False

    async def _open(self) -> _Connection:
        try:
            if self._url.startswith("unix:"):
                return _Connection(
                    *await asyncio.open_unix_connection(self._url.removeprefix("unix:"), limit=READ_BYTES)
                )
            host, _, port = self._url.removeprefix("http://").rstrip("/").rpartition(":")
            return _Connection(*await asyncio.open_connection(host.strip("[]"), int(port), limit=READ_BYTES))
        except ConnectionError:
            raise
        except FileNotFoundError as error:  # the socket was removed: nobody listens there
            raise ConnectionRefusedError(str(error)) from error
        except OSError as error:
            raise ConnectionError(str(error)) from error

    def _head(self, method: str, target: str, length: int) -> bytes:
        return (
            f"{method} {target} HTTP/1.1\r\nhost: agentctl\r\n{self._authorization}content-length: {length}\r\n\r\n"
        ).encode()

    async def _pieces(self, connection: _Connection, length: str | None) -> AsyncGenerator[bytes, None]:
        """Yield a body of that length, or in chunks: an engine measures an answer that is small enough."""
        reader = connection.reader
        self._busy.add(connection)
        try:
            left = int(await reader.readuntil(b"\r\n"), 16) if length is None else int(length)
            while left:
                piece = await reader.read(min(left, READ_BYTES))
                if not piece:
                    raise ConnectionError("the stream ended before its end")
                left -= len(piece)
                yield piece
                if length is None and not left:
                    await reader.readexactly(2)
                    left = int(await reader.readuntil(b"\r\n"), 16)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        finally:
            self._busy.discard(connection)
            connection.writer.close()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read the head of an answer: status and fields, by lower-case name."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    if not version.startswith("HTTP/1."):
        raise AgentctlError("What answers there is not agentctl.", reason="not_agentctl")
    fields = (line.partition(":") for line in lines[1:] if line)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in fields}
