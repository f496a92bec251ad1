"""A blocking WebSocket client, so that what is measured is the server and not a client's event loop."""

import contextlib
import socket
from collections import deque
from typing import Any, Self

import msgspec
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

FRAME_BYTES = 16 << 20
READ_BYTES = 1 << 18
TIMEOUT_S = 120.0


class Message(msgspec.Struct, frozen=True):
    """One message of the server; `payload` is left as text until somebody wants it."""

    type: str
    action: str
    payload: msgspec.Raw
    id: str = ""

    def value(self) -> Any:
        """Return the payload."""
        return msgspec.json.decode(self.payload)


class Failed(Exception):
    """Raised for an error frame."""


_decode = msgspec.json.Decoder(Message).decode


class Wire:
    """One connection. Use it as a context manager."""

    def __init__(self, url: str, token: str) -> None:
        address = parse_uri(url)
        self._socket = socket.create_connection((address.host, address.port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._protocol = ClientProtocol(address, max_size=FRAME_BYTES)
        self._lines: deque[bytes] = deque()
        self._kept: deque[Message] = deque()
        self._partial: list[bytes] = []
        self._number = 0
        request = self._protocol.connect()
        request.headers["Authorization"] = f"Bearer {token}"
        self._protocol.send_request(request)
        while self._protocol.state is State.CONNECTING:
            self._read()
        if self._protocol.handshake_exc is not None:
            raise self._protocol.handshake_exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._protocol.send_close(1000)
            self._flush()
        self._socket.close()

    def call(self, action: str, **payload: Any) -> Any:
        """Return the payload of the answer; notifications that come before it are kept for `event`."""
        self._number += 1
        number = str(self._number)
        request = {"id": number, "type": "request", "action": action, "payload": payload}
        self._protocol.send_text(msgspec.json.encode(request))
        self._flush()
        while True:
            message = self._next()
            if message.id == number:
                break
            self._kept.append(message)
        if message.type == "error":
            raise Failed(f"{action}: {bytes(message.payload).decode()}")
        return message.value()

    def event(self) -> Message:
        """Return the next notification, in the order of the server."""
        return self._kept.popleft() if self._kept else self._next()

    def until(self, action: str) -> Any:
        """Skip notifications until one of this kind, and return its payload."""
        while (message := self.event()).action != action:
            pass
        return message.value()

    def _next(self) -> Message:
        while not self._lines:
            self._read()
        return _decode(self._lines.popleft())

    def _read(self) -> None:
        self._flush()
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise ConnectionError(f"the server closed with {self._protocol.close_code}")
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            raise ConnectionError(f"the server closes with {self._protocol.close_code}")
        if frame.opcode not in {Opcode.TEXT, Opcode.CONT}:
            return
        self._partial.append(bytes(frame.data))
        if frame.fin:
            self._lines.extend(b"".join(self._partial).split(b"\n"))
            self._partial.clear()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            self._socket.sendall(data)
