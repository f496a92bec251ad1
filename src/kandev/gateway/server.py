"""The server's life: bind, announce, serve, stop in order."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import structlog
import uvicorn

from kandev.domain.constants import FRAME_BYTES
from kandev.domain.models import now
from kandev.errors import Invalid
from kandev.gateway.backend import Backend
from kandev.gateway.http import PAGE, Gateway
from kandev.gateway.listening import bind, url_of
from kandev.gateway.metrics import Metrics
from kandev.gateway.security import Policy, is_loopback
from kandev.home import Home

REQUEST_GRACE_S = 1.0  # requests that run when the stop begins
SOCKETS_GRACE_S = 3.0  # sending what waits for open sockets and downloads
TICK_S = 1.0  # the Date header

log = structlog.get_logger(__name__)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A running server. `url` has no token in it."""

    url: str
    metrics: Metrics


@contextlib.asynccontextmanager
async def serve(
    backend: Backend,
    home: Home,
    *,
    host: str,
    port: int,
    token: str,
    sessions_by_state: Callable[[], Mapping[str, int]] = dict,
    page: Path = PAGE,
) -> AsyncIterator[Server]:
    """Serve the backend while the block runs; `server.json` is there exactly as long.

    `token` is '' for no authentication, which is refused beyond loopback (SEC-1). Raises Unavailable when the port is
    in use (PROC-5). Takes no signals: the caller leaves the block. The stop refuses new requests, lets running ones end
    within REQUEST_GRACE_S, and closes WebSockets with 1012.
    """
    if not token and not is_loopback(host):
        raise Invalid("Without a token the server listens on loopback only.", field="server.auth", expected="true")
    if not token:
        log.warning("no token is asked for: every user and program of this machine can use the server")
    listener = bind(host, port)
    gateway = Gateway(backend, sessions_by_state=sessions_by_state, page=page)
    own_port = listener.getsockname()[1]
    # Cookies do not know ports, so two backends on one machine need two names.
    policy = Policy(token=token, host=host, cookie_name=f"kandev_token_{own_port}")
    server = _Uvicorn(_config(gateway, policy, compress=not is_loopback(host)))
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http server")
    try:
        await _started(server, task)
        with _announced(home, url_of(listener), backend.boot_id):
            yield Server(url=url_of(listener), metrics=gateway.metrics)
    finally:
        await gateway.work.finish(REQUEST_GRACE_S)
        gateway.close_sockets()
        server.stop.set()
        await asyncio.shield(task)
        listener.close()


def _config(gateway: Gateway, policy: Policy, *, compress: bool) -> uvicorn.Config:
    return uvicorn.Config(
        gateway.application(policy),
        loop="asyncio",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=FRAME_BYTES,
        ws_per_message_deflate=compress,
        lifespan="off",
        interface="asgi3",
        # Accepted WebSockets are logged at level info with their query string, so with the token (SEC-3).
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=int(SOCKETS_GRACE_S),
    )


class _Uvicorn(uvicorn.Server):
    """Tells when it has started, stops at once when told, and leaves the signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self.stop = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        counter = 0
        while not await self.on_tick(counter):
            counter += 10  # its unit is 0.1 s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self.stop.wait()
                return


async def _started(server: _Uvicorn, task: asyncio.Task[None]) -> None:
    waiting = asyncio.create_task(server.listening.wait(), name="http server starts")
    try:
        await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if task.done():
        await task  # raises what went wrong


@contextlib.contextmanager
def _announced(home: Home, url: str, boot_id: str) -> Iterator[None]:
    """Write `server.json` whole or not at all, 0600, and remove it at the end if it is still ours."""
    content = msgspec.json.encode({"pid": os.getpid(), "url": url, "boot_id": boot_id, "started_at": now()})
    draft = home.path / f"server.json.{secrets.token_hex(4)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, content + b"\n")
    finally:
        os.close(descriptor)
    os.replace(draft, home.server_file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            if msgspec.json.decode(home.server_file.read_bytes()).get("boot_id") == boot_id:
                home.server_file.unlink()
