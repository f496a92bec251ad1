"""A small WebSocket client of the backend: calls that may overlap, and the notifications in between.

The protocol is in docs/protocol.md: JSON messages, several to a frame, separated by a newline.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from kandev.cli.address import Address, NoBackend
from kandev.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    Internal,
    Invalid,
    KandevError,
    NotFound,
    TimedOut,
    Unauthorized,
    Unavailable,
    UnknownAction,
)

OPEN_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 120.0
FRAME_BYTES = 16 * 1024 * 1024

_ERRORS = {
    kind.code: kind
    for kind in (
        *(BadRequest, Invalid, NotFound, Conflict, Unauthorized),
        *(Forbidden, UnknownAction, Unavailable, TimedOut, Internal),
    )
}


class ConnectionLost(Exception):
    """Raised when the socket closed; whether the backend took the last request is not known."""


def new_client_id() -> str:
    """Return an id for `client_message_id` or `client_task_id`: a repeat with it is the same request (PROMPT-2)."""
    return secrets.token_hex(10)


def error_from_payload(payload: dict[str, Any]) -> KandevError:
    """Return the error that an error frame carries, as the class that the backend raised."""
    details = dict(payload.get("details") or {})
    reason = str(details.pop("reason", ""))
    error = _ERRORS.get(str(payload.get("code")), Internal)(str(payload.get("message", "")), reason=reason)
    error.details = details
    return error


class Client:
    """One open socket. `async with await Client.open(address) as client: await client.call("health.check")`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._lost = False
        self._last_id = 0
        self._reader = asyncio.create_task(self._read(), name="kandev-client-reader")

    @classmethod
    async def open(cls, address: Address) -> Self:
        """Connect; raises NoBackend, or Unauthorized or Forbidden where the backend refuses."""
        headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
        try:
            socket = await connect(
                address.websocket,
                additional_headers=headers,
                max_size=FRAME_BYTES,
                compression=None,
                open_timeout=OPEN_TIMEOUT_S,
                proxy=None,
            )
        except InvalidStatus as error:
            raise _refusal(error.response.status_code, address) from None
        except (InvalidHandshake, ValueError) as error:
            if isinstance(error.__cause__, EOFError | OSError):
                raise _nobody(address) from None  # it ended just now
            raise NoBackend(f"What answers at {address.url} is no kandev backend.") from None
        except (OSError, TimeoutError):
            raise _nobody(address) from None
        return cls(socket)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the socket and wait for the reader."""
        self._reader.cancel()
        await asyncio.wait([self._reader])  # not it itself: a cancel of the caller would pass for the reader's own
        await self._socket.close()

    async def call(self, action: str, /, **payload: Any) -> dict[str, Any]:
        """Send one request and return the payload of its answer.

        Raises the KandevError of the backend, TimedOut, ConnectionLost, and Invalid for what is no text. Fields that
        are None are left out, as the backend reads a missing field.
        """
        return await self.call_within(CALL_TIMEOUT_S, action, **payload)

    async def call_within(self, timeout_s: float | None, action: str, /, **payload: Any) -> dict[str, Any]:
        """Call with another time limit; None waits as long as the socket is open."""
        if self._lost:
            raise ConnectionLost
        self._last_id += 1
        number = str(self._last_id)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await self._socket.send(_request(number, action, payload))
            async with asyncio.timeout(timeout_s):
                return await answer
        except ConnectionClosed:
            raise ConnectionLost from None
        except TimeoutError:
            raise TimedOut(f"The backend gave no answer to {action} within {timeout_s or 0:g} s.") from None
        finally:
            del self._waiting[number]

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield notifications as {action, payload} in order, until the socket closes."""
        while (event := await self._events.get()) is not None:
            yield event

    async def _read(self) -> None:
        try:
            async for frame in self._socket:
                for line in (frame.encode() if isinstance(frame, str) else frame).split(b"\n"):
                    self._take(line)
        except ConnectionClosed:
            pass  # how it closed makes no difference: whoever waits connects again
        finally:
            self._lost = True
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionLost())
            self._events.put_nowait(None)

    def _take(self, line: bytes) -> None:
        if not line:
            return
        message = msgspec.json.decode(line)
        kind, payload = message.get("type"), message.get("payload") or {}
        if kind == "notification":
            self._events.put_nowait({"action": message.get("action", ""), "payload": payload})
            return
        answer = self._waiting.get(str(message.get("id")))
        if answer is None or answer.done():
            return
        if kind == "response":
            answer.set_result(payload)
        elif kind == "error":
            answer.set_exception(error_from_payload(payload))


def _request(number: str, action: str, payload: dict[str, Any]) -> str:
    message = {
        "id": number,
        "type": "request",
        "action": action,
        "payload": {name: value for name, value in payload.items() if value is not None},
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    try:
        return msgspec.json.encode(message).decode()
    except UnicodeEncodeError:
        raise Invalid(f"{action} was not sent: what was typed is not UTF-8.") from None


def _nobody(address: Address) -> NoBackend:
    return NoBackend(f"No backend answers at {address.url}. Start it with: kandev serve")


def _refusal(status: int, address: Address) -> Exception:
    if status == 401:
        return Unauthorized(
            f"The backend at {address.url} did not accept the token. It is in the file `token` of the backend's home: "
            "set KANDEV_HOME to that home, or KANDEV_TOKEN to the token."
        )
    if status == 403:
        return Forbidden(f"The backend at {address.url} does not answer under this host name.")
    return NoBackend(f"What answers at {address.url} is no kandev backend (HTTP {status}).")
