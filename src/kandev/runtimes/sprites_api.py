"""The public API of Sprites (sprites.dev), as far as it is needed here: sandboxes, files, commands, services, tunnels.

aiohttp is imported at the first use. What says "later" (429, 503) is waited for, within bounds; whatever else is no
answer makes the sandbox unknown, and never gone. The token is in a header of each request, and in no error.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import quote

import msgspec

from kandev.errors import AgentctlError, Conflict, RuntimeUnreachable

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, ClientWebSocketResponse

__all__ = ["Entry", "Ran", "Sprite", "SpritesApi"]

CALL_S: Final = 30.0
CREATE_S: Final = 120.0
UPLOAD_S: Final = 600.0
WAIT_S: Final = 120.0
"""How long in all a request is repeated that was told to come later, or had no answer."""
_PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
_CLOSE_S: Final = 1.0
_PIECE_BYTES: Final = 64 * 1024
_KEPT_BYTES: Final = 1 << 20
_LATER: Final = frozenset({429, 503})
_FAULTS: Final = frozenset({408, 500, 502, 504})
_REFUSED: Final = frozenset({401, 403})
_GONE: Final = 404
_STDIN, _STDOUT, _STDERR, _EXIT, _STDIN_END = range(5)

T = TypeVar("T")


class Sprite(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox. `status` is cold, warm or running: a cold one has lost its memory, and starts its services again."""

    name: str
    status: str = ""
    labels: list[str] | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A file or directory in a sandbox."""

    name: str
    path: str
    is_dir: bool = msgspec.field(default=False, name="isDir")


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended, and the first 1 MiB of what it wrote."""

    code: int
    out: bytes
    err: bytes


class _Listing(msgspec.Struct, frozen=True):
    entries: list[Entry] = []


class _Problem(msgspec.Struct, frozen=True):
    error: str = ""
    message: str = ""
    retry_after_seconds: float | None = None


class SpritesApi:
    """A client with one token. `telling` says what is waited for; without it nobody is told."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        told: Callable[[], None] = lambda: None,
        wait_s: float = WAIT_S,
        session: "ClientSession | None" = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._told = told
        self._wait_s = wait_s
        self._session = session

    def telling(self, told: Callable[[], None]) -> Self:
        """Return the same client, which calls `told` each time that it begins to wait."""
        return type(self)(self._url, self._token, told=told, wait_s=self._wait_s, session=self._open())

    async def get(self, name: str) -> Sprite | None:
        """Return the sandbox; None only where the service says that there is none."""
        answer = await self._call("GET", f"/{quote(name)}", missing=b"")
        return msgspec.json.decode(answer, type=Sprite) if answer else None

    async def create(self, name: str, labels: Sequence[str]) -> Sprite:
        """Make a sandbox. Raises Conflict, reason name_taken or what the service calls its limit."""
        body = {"name": name, "labels": list(labels), "wait_for_capacity": True}
        return msgspec.json.decode(await self._call("POST", "", json=body, timeout_s=CREATE_S), type=Sprite)

    async def destroy(self, name: str) -> None:
        """Remove a sandbox with everything in it; one that is gone is no error."""
        await self._call("DELETE", f"/{quote(name)}", missing=b"")

    async def write(self, name: str, path: str, data: bytes | Path, *, mode: int) -> None:
        """Write a file, and the directories on its way. A Path is sent piece by piece."""
        query = {"path": path, "mode": f"{mode:04o}", "mkdirParents": "true"}
        await self._call("PUT", f"/{quote(name)}/fs/write", query=query, data=data, timeout_s=UPLOAD_S)

    async def listing(self, name: str, path: str) -> list[Entry]:
        """Return what is in a directory; nothing where there is none."""
        answer = await self._call("GET", f"/{quote(name)}/fs/list", query={"path": path}, missing=b"{}")
        return msgspec.json.decode(answer, type=_Listing).entries

    async def read(self, name: str, path: str, target: Path) -> None:
        """Copy a file of the sandbox to one here, piece by piece."""

        async def copy(response: "ClientResponse") -> None:
            with target.open("wb") as file:
                async for piece in response.content.iter_chunked(_PIECE_BYTES):
                    file.write(piece)

        query = {"path": path}
        await self._request("GET", f"/{quote(name)}/fs/read", copy, query=query, timeout_s=UPLOAD_S)

    async def put_service(self, name: str, service: str, command: Sequence[str]) -> None:
        """Define a service and start it. Raises AgentctlError when the service tells that it did not start."""

        async def begun(response: "ClientResponse") -> None:
            async for line in response.content:  # more comes as long as it runs, and nobody waits for that
                event = _decoded(line)
                if event.get("type") == "error":
                    raise AgentctlError(f"The service did not start: {event.get('data')}", reason="service_failed")
                if event.get("type") in {"started", "complete"}:
                    return

        first, *rest = command
        body = {"cmd": first, "args": rest}
        path = f"/{quote(name)}/services/{quote(service)}"
        await self._request("PUT", path, begun, query={"duration": "1s"}, json=body)

    async def delete_service(self, name: str, service: str) -> None:
        """End a service and forget it; one that is gone is no error."""
        path = f"/{quote(name)}/services/{quote(service)}"
        if not await self._call("GET", path, missing=b""):
            return
        await self._call("POST", f"{path}/stop", query={"timeout": "10s"}, missing=b"")
        await self._call("DELETE", path, missing=b"")

    async def run(self, name: str, command: Sequence[str], *, stdin: bytes = b"", timeout_s: float = CALL_S) -> Ran:
        """Run a command, give it a short input, and wait for its end."""
        query = [("cmd", word) for word in command] + [("path", command[0]), ("stdin", "true")]
        out, err, code = bytearray(), bytearray(), None
        try:
            async with asyncio.timeout(timeout_s), self.socket(f"/{quote(name)}/exec", query) as socket:
                if stdin:
                    await socket.send_bytes(bytes([_STDIN]) + stdin)
                await socket.send_bytes(bytes([_STDIN_END]))
                async for message in socket:
                    code = _exit_code(message.data)
                    if code is not None:
                        break
                    if isinstance(message.data, bytes) and message.data:
                        kept = out if message.data[0] == _STDOUT else err
                        kept += message.data[1 : 1 + _KEPT_BYTES - len(kept)]
        except TimeoutError:
            raise RuntimeUnreachable(f"{command[0]} did not end in the sandbox in time.", reason="no_answer") from None
        if code is None:
            raise RuntimeUnreachable("The connection to the sandbox was cut.", reason="unreachable")
        return Ran(code=code, out=bytes(out), err=bytes(err))

    @contextlib.asynccontextmanager
    async def socket(
        self, path: str, query: Sequence[tuple[str, str]] = ()
    ) -> AsyncIterator["ClientWebSocketResponse"]:
        """Open a WebSocket. Raises RuntimeUnreachable, and AgentctlError sandbox_gone."""
        import aiohttp  # noqa: PLC0415 - only where Sprites are used

        url = f"{self._url.replace('http', 'ws', 1)}/v1/sprites{path}"
        for attempt in range(1 << 30):
            try:
                socket = await self._open().ws_connect(
                    url, params=query, headers=self._headers(), heartbeat=15, max_msg_size=0, autoclose=True
                )
            except aiohttp.WSServerHandshakeError as error:
                status, pause = error.status, _after(error.headers or {}, None)
                # Not `from error`: its representation has the headers of the request, and so the token.
                if status not in _LATER or not await self._pause(attempt, pause):
                    raise _refusal(status, _Problem()) from None
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise RuntimeUnreachable(f"Sprites cannot be reached: {_words(error)}", reason="unreachable") from None
            else:
                break
        try:
            yield socket
        except (aiohttp.ClientError, OSError) as error:
            raise RuntimeUnreachable(f"The connection was cut: {_words(error)}", reason="unreachable") from None
        finally:
            # The other side may take its time to close: nobody waits for that.
            with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
                async with asyncio.timeout(_CLOSE_S):
                    await socket.close()

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        json: object = None,
        data: bytes | Path | None = None,
        timeout_s: float = CALL_S,
        missing: bytes | None = None,
    ) -> bytes:
        async def whole(response: "ClientResponse") -> bytes:
            return await response.read()

        try:
            answer = await self._request(method, path, whole, query=query, json=json, data=data, timeout_s=timeout_s)
        except AgentctlError as error:
            if missing is None or error.reason != "sandbox_gone":
                raise
            return missing
        return answer

    async def _request(
        self,
        method: str,
        path: str,
        take: "Callable[[ClientResponse], Awaitable[T]]",
        *,
        query: Mapping[str, str] | None = None,
        json: object = None,
        data: bytes | Path | None = None,
        timeout_s: float = CALL_S,
    ) -> T:
        """Send a request, and again while the service says later, or does not answer; give the answer to `take`."""
        import aiohttp  # noqa: PLC0415 - only where Sprites are used

        began = asyncio.get_running_loop().time()
        for attempt in range(1 << 30):
            pause: float | None = None
            try:
                async with asyncio.timeout(timeout_s), contextlib.AsyncExitStack() as stack:
                    body = stack.enter_context(data.open("rb")) if isinstance(data, Path) else data
                    url, headers = f"{self._url}/v1/sprites{path}", self._headers()
                    sent = self._open().request(method, url, params=query, json=json, data=body, headers=headers)
                    response = await stack.enter_async_context(sent)
                    if response.ok:
                        return await take(response)
                    problem = await _problem(response)
                    refusal: Exception = _refusal(response.status, problem)
                    if response.status not in _LATER | _FAULTS:
                        raise refusal
                    pause = _after(response.headers, problem.retry_after_seconds)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                refusal = RuntimeUnreachable(f"Sprites cannot be reached: {_words(error)}", reason="unreachable")
            if not await self._pause(attempt, pause, began=began):
                raise refusal from None
        raise AssertionError

    async def _pause(self, attempt: int, pause: float | None, *, began: float | None = None) -> bool:
        """Wait before the next try; False when that would be too long for whoever waits."""
        loop = asyncio.get_running_loop()
        waits = pause if pause is not None else _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]
        spent = loop.time() - began if began is not None else attempt * waits
        if spent + waits > self._wait_s:
            return False
        self._told()
        await asyncio.sleep(waits)
        return True

    def _open(self) -> "ClientSession":
        if self._session is None:
            import aiohttp  # noqa: PLC0415 - only where Sprites are used

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
            self._session = aiohttp.ClientSession(timeout=timeout)
        return self._session

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}


def _refusal(status: int, problem: _Problem) -> AgentctlError | RuntimeUnreachable | Conflict:
    words = problem.message or problem.error or f"status {status}"
    if status == _GONE:
        return AgentctlError(f"Sprites: {words}", reason="sandbox_gone")
    if status in _REFUSED:
        return RuntimeUnreachable("Sprites does not accept the token.", reason="unauthorized")
    if status in _LATER:
        return RuntimeUnreachable(f"Sprites asks to come later: {words}", reason=problem.error or "rate_limited")
    if status in _FAULTS:
        return RuntimeUnreachable(f"Sprites does not answer: {words}", reason="unreachable")
    return Conflict(f"Sprites refuses: {words}", reason=problem.error or "sprites_refused", status=status)


async def _problem(response: "ClientResponse") -> _Problem:
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(await response.content.read(_PIECE_BYTES), type=_Problem)
    return _Problem()


def _after(headers: Mapping[str, str], told: float | None) -> float | None:
    """Return how many seconds the service asks to wait."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(headers.get("Retry-After", "")))
    return told


def _exit_code(data: object) -> int | None:
    """Return the exit code that a message of a running command tells, if it tells one."""
    if isinstance(data, bytes):
        return data[1] if data[:1] == bytes([_EXIT]) and len(data) > 1 else None
    event = _decoded(data) if isinstance(data, str) else {}
    code = event.get("exit_code")
    return code if event.get("type") == "exit" and isinstance(code, int) else None


def _decoded(text: str | bytes) -> dict[str, Any]:
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(text, type=dict[str, Any])
    return {}


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
