"""The backend as a program: it serves until it is told to stop."""

import asyncio
import gc
import signal

import structlog

from kandev.app import Backend
from kandev.config import Config
from kandev.gateway.security import load_or_make_token
from kandev.gateway.server import serve
from kandev.logs import open_logs
from kandev.store.failures import file_failure

log = structlog.get_logger(__name__)

COLLECT_AFTER = 50_000
"""Objects between two collections of cycles. Streams make millions of objects and no cycles."""


async def run(config: Config) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    gc.freeze()  # modules and classes stay for good: no collection goes through them again
    gc.set_threshold(COLLECT_AFTER, 20, 20)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    config.home.prepare()
    try:
        await _serve(config, stop)
    except OSError as error:
        if error.errno is None:
            raise  # no error of a file
        raise file_failure(error, config.home.path) from error
    return 0


async def _serve(config: Config, stop: asyncio.Event) -> None:
    with open_logs(config.home.logs):
        async with Backend.open(config) as backend:
            token = load_or_make_token(config.home) if config.server.auth else ""
            async with serve(
                backend,
                config.home,
                host=config.server.host,
                port=config.server.port,
                token=token,
                sessions_by_state=backend.sessions_by_state,
            ) as server:
                backend.watch_commits(server.metrics.commit_seconds.observe)
                log.info("serving", url=server.url, home=str(config.home.path), boot_id=backend.boot_id)
                await stop.wait()
                log.info("stopping")
