"""HTTP/1.1 for agentctl: h11 reads the heads; the body of a stream is written raw, in chunks."""

import asyncio
import json
from collections.abc import AsyncIterator, Container, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import h11

from kandev.agentctl.refusal import Refusal

__all__ = ["HttpConnection", "Request"]

_READ_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 128 << 20
"""No line to an agent is longer than 64 MiB; the rest is room for a configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, read whole but for a body that is read by `pieces`.

    `query` holds plain values: ids and numbers need no unquoting.
    """

    method: str
    path: str
    query: Mapping[str, str]
    authorization: str
    body: bytes

    def json(self) -> Mapping[str, Any]:
        """Return the body as an object. Raises Refusal bad_request."""
        try:
            value = json.loads(self.body or b"{}")
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Refusal(400, "bad_request", "The body is no JSON object.")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """Return a query value as a number from 0 up. Raises Refusal bad_request."""
        text = self.query.get(name, "" if default is None else str(default))
        if not (text.isascii() and text.isdigit()):
            raise Refusal(400, "bad_request", f"{name} is missing or no number.")
        return int(text)


class HttpConnection:
    """One connection of a client, with requests one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._h11 = h11.Connection(h11.SERVER)

    async def next_request(self, streamed: Container[tuple[str, str]] = ()) -> Request | None:
        """Read one request; None when the client has gone. Raises Refusal for what is no HTTP.

        The body of a method and path that is in `streamed` is left to be read by `pieces`.
        """
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
        try:
            head = await self._next_event()
            if not isinstance(head, h11.Request):
                return None
            method = head.method.decode("ascii")
            path, _, query = head.target.decode("ascii", "replace").partition("?")
            body = b"" if (method, path) in streamed else await self._read_body()
        except h11.RemoteProtocolError as error:
            raise Refusal(error.error_status_hint, "bad_request", str(error)) from error
        headers = dict(head.headers)
        return Request(
            method=method,
            path=path,
            query=dict(pair.split("=", 1) for pair in query.split("&") if "=" in pair),
            authorization=headers.get(b"authorization", b"").decode("latin-1"),
            body=body,
        )

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body of a streamed request, as it comes. Raises ConnectionError when it ends too early."""
        try:
            while isinstance(event := await self._next_event(), h11.Data):
                yield bytes(event.data)
        except h11.RemoteProtocolError as error:
            raise ConnectionError(str(error)) from error

    async def respond(self, status: int, payload: Mapping[str, Any]) -> None:
        """Answer with a JSON object."""
        if self._h11.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        body = json.dumps(payload, separators=(",", ":")).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        out = self._h11.send(h11.Response(status_code=status, headers=headers, reason=_reason(status))) or b""
        out += self._h11.send(h11.Data(data=body)) or b""
        out += self._h11.send(h11.EndOfMessage()) or b""
        self.writer.write(out)
        await self.writer.drain()

    def begin_stream(self) -> None:
        """Answer 200 with a body that is written by `send_chunk`; the connection ends with it."""
        headers = [("content-type", "application/octet-stream"), ("transfer-encoding", "chunked")]
        self.writer.write(self._h11.send(h11.Response(status_code=200, headers=headers, reason=b"OK")) or b"")

    async def send_chunk(self, data: bytes) -> None:
        """Write one chunk of a stream; b'' is the last one. Waits while the client does not read."""
        self.writer.writelines((b"%x\r\n" % len(data), data, b"\r\n"))
        await self.writer.drain()

    @property
    def reusable(self) -> bool:
        """True when a next request may follow."""
        return self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    async def _read_body(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while isinstance(event := await self._next_event(), h11.Data):
            pieces.append(bytes(event.data))
            size += len(event.data)
            if size > MAX_BODY_BYTES:
                raise Refusal(413, "too_large", f"A body of more than {MAX_BODY_BYTES} bytes is not taken.")
        return b"".join(pieces)

    async def _next_event(self) -> Any:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            if self._h11.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                self.writer.write(self._h11.send(go_on) or b"")
            self._h11.receive_data(await self.reader.read(_READ_BYTES))
        return event


def _reason(status: int) -> bytes:
    return HTTPStatus(status).phrase.encode()
