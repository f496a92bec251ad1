"""A backend to try things with: `kandev serve` as a process of its own on a temporary home, of which nothing stays."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from kandev.cli.address import Address, read_token
from kandev.cli.client import Client
from kandev.errors import KandevError

STOP_S = 25.0  # the backend's own budget is 20


@contextlib.asynccontextmanager
async def scratch_backend(purpose: str) -> AsyncIterator["ScratchBackend"]:
    """Make a backend on a new home, not started yet; `purpose` is part of the home's name.

    Home and processes are gone afterwards, however the block ends, also by Ctrl-C and SIGTERM.
    """
    backend = ScratchBackend(Path(tempfile.mkdtemp(prefix=f"kandev-{purpose}-")))
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield backend
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        await asyncio.shield(_clean_up(backend))


class ScratchBackend:
    """`kandev serve` as a process on `home`, with the environment of this one except for KANDEV_ names."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._log = home / "scratch-backend.log"
        self._process: asyncio.subprocess.Process | None = None
        self.address = Address(url="", token="")

    @property
    def pid(self) -> int:
        """The process's number; 0 when none runs."""
        return self._process.pid if self._process else 0

    async def connect(self) -> Client:
        """Return a new connection."""
        return await Client.open(self.address)

    async def start(self) -> None:
        """Start and return once its port answers; raises KandevError with its last words when it ends instead."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KANDEV_")}
        environment |= {"KANDEV_HOME": str(self.home), "KANDEV_DEMO_AGENT_HOME": str(self.home / "demo-agent")}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kandev", "serve", "--port", "0", "--json"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this program, which ends the backend in order
            )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            raise KandevError(f"The backend ended with {code} at its start.\n{self.last_words()}")
        self.address = Address(url=json.loads(line)["url"], token=read_token(self.home))

    async def kill(self) -> None:
        """End it as a power cut would."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End it in order; one that does not end is killed."""
        try:
            async with asyncio.timeout(STOP_S):
                await self._end(signal.SIGTERM)
        except TimeoutError:
            await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        await process.wait()
        self._process = None

    def last_words(self) -> str:
        """Return the last lines of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])
        return ""


async def _clean_up(backend: ScratchBackend) -> None:
    await backend.stop()
    for descriptor in _left_behind(backend.home):
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            await _gone(descriptor)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)
    shutil.rmtree(backend.home, ignore_errors=True)


def _left_behind(home: Path) -> Iterator[int]:
    """Yield a pidfd of each process that names the home; its random name is in no other process."""
    mark = str(home).encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(int(entry.name))
            if mark in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                yield descriptor
            else:
                os.close(descriptor)


async def _gone(descriptor: int) -> None:
    """Return once the process of a pidfd has ended."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
