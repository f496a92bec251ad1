"""The backend of an episode: on a small file system of its own, killed and started whenever the schedule says so."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import fakes
import invariants
from backend import PACE, Backend
from chaos.places import place_of
from kandev.agentctl.platform import descendants, is_alive, process_stat
from leftovers import ended
from runtimes.engine import DockerEngine

DISK_MB: Final = 24
START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 40.0

Process = tuple[int, int]
"""A process id, and when the process began: together they name one process."""

FEW_SECONDS: Final = {
    "KANDEV__TIMING__IN_USE_RETRY_S": "2",
    "KANDEV__TIMING__CANCEL_FORCE_S": "1",
    "KANDEV__TIMING__AGENTCTL_SILENT_S": "1",
    "KANDEV__TIMING__STOP_GRACE_S": "1",
    "KANDEV__TIMING__RPC_INACTIVITY_S": "20",
    "KANDEV__TIMING__REPLAY_QUIET_S": "0.05",
}


AGENTS: Final = "agents"
"""Where the scripts, logs and stores of an episode's agents are, in its directory."""
FAKES: Final = Path(fakes.__file__).parent


def docker_table(engine: DockerEngine, mounts: Sequence[str]) -> str:
    """The table of config.toml for sessions in containers."""
    return f"\n[runtimes.docker]\nimage = {json.dumps(engine.image)}\nmounts = {json.dumps(mounts)}\n"


class DidNotStart(Exception):
    """Raised when the backend ended at its start: what it said."""


class Stage(Backend):
    """A home, on a tmpfs where `mounted`, and the backend on it. Leave it by `close`.

    Its agents are in containers where there is an `engine`; whoever takes that away, or needs it, has `engine_free`.
    """

    def __init__(
        self, directory: Path, *, config: str, mounted: bool, runtime: str, engine: DockerEngine | None = None
    ) -> None:
        environment = {**FEW_SECONDS, "KANDEV__RUNTIMES__DEFAULT": runtime}
        super().__init__(directory, config=config, environment=environment)
        self.engine = engine
        self.engine_free = asyncio.Lock()
        if engine is not None:
            self.config += docker_table(engine, [str(directory / AGENTS), f"{FAKES}:{FAKES}:ro"])
            self.environment["DOCKER_HOST"] = engine.url
        self.runtime = runtime
        self.lasting = runtime != "standalone"
        self.place = place_of(runtime, self.home, self.glance)
        self.mounted = mounted
        self.starts = 0
        self.own_ends: list[str] = []
        self.family: set[Process] = set()
        self._answered = False
        self._life = asyncio.Lock()
        self.user_home.mkdir(parents=True, exist_ok=True)
        if mounted:
            options = f"size={DISK_MB}m,mode=700"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "chaos", str(self.home)], check=True)

    @property
    def up(self) -> bool:
        """Whether the backend's process runs, as far as anybody asked."""
        return self._process is not None and self._process.poll() is None

    # The process

    def spawn(self) -> None:
        """Starts the process and does not wait for it."""
        assert self._process is None, "the backend runs already"
        (self.home / "config.toml").write_text(self.config)
        self.starts += 1
        self._answered = False
        self._process = self._spawn([sys.executable, "-m", "kandev", "serve", "--port", "0"])

    async def answering(self) -> None:
        """Returns once the spawned backend answers. Raises DidNotStart when it ends instead, or does not answer."""
        try:
            async with asyncio.timeout(START_LIMIT_S):
                while not self._is_announced() or not await asyncio.to_thread(self._is_healthy):
                    if self._process is None:
                        return  # killed in the middle, by somebody who starts it again
                    if (code := self._process.poll()) is not None:
                        self._process = None
                        raise DidNotStart(f"it ended with {code} at its start:\n{self._log_tail()}")
                    await asyncio.sleep(PACE)
        except TimeoutError:
            raise DidNotStart(f"it did not answer within {START_LIMIT_S:g} s:\n{self._log_tail()}") from None
        self._answered = True
        self.meet()

    async def ensure_up(self) -> None:
        """Starts the backend unless it runs."""
        async with self._life:
            if not self.up:
                if self._process is not None and self._answered:
                    self.own_ends.append(f"it ended by itself, with {self._process.poll()}:\n{self._log_tail()}")
                self._process = None
                self.spawn()
            await self.answering()

    async def end(self, number: signal.Signals) -> int | None:
        """Sends a signal and waits for the end; the exit code, None when nothing ran. Raises TimeoutError."""
        self.meet()
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(number)
        async with asyncio.timeout(STOP_LIMIT_S):
            await ended(process.pid)
        return process.wait()

    # Its family

    def meet(self) -> None:
        """Remembers every process below the backend: its fork servers and agentctls name no home."""
        if self._process is not None:
            for pid in (self._process.pid, *descendants(self._process.pid)):
                stat = process_stat(pid)
                if stat is not None:
                    self.family.add((pid, stat.start_time))

    def living_family(self) -> list[Process]:
        """Those of them that still live."""
        self.family = {process for process in self.family if is_alive(*process)}
        return sorted(self.family)

    # Its disk

    def fill(self) -> None:
        """Leaves no byte of room."""
        with (self.home / "ballast").open("ab", 0) as file:
            os.fchmod(file.fileno(), 0o600)
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass

    def make_room(self) -> None:
        """Takes the ballast away."""
        (self.home / "ballast").unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Holds the database as another program does; False where that was not possible just now."""
        with contextlib.closing(sqlite3.connect(self.home / "kandev.db", isolation_level=None, timeout=1)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                yield False
                return
            yield True
            with contextlib.suppress(sqlite3.OperationalError):
                other.execute("ROLLBACK")

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """What the database of the running backend holds."""
        with invariants.reading(self.home) as database:
            return [dict(row) for row in database.execute(query, values)]

    def glance(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """The same, in the middle of everything: nothing while it cannot be read."""
        try:
            return self.rows(query, *values)
        except sqlite3.OperationalError:
            return []

    async def close(self) -> None:
        """Ends everything of this home, whatever is left, and takes the home away."""
        try:
            await self.end(signal.SIGKILL)
            self._remove_containers()
            for pid, began in self.living_family():
                if is_alive(pid, began):
                    os.kill(pid, signal.SIGKILL)
            await self.end_leftovers()
        finally:
            self._take_away()

    def _remove_containers(self) -> None:
        if self.engine is not None and (left := self.engine.docker("ps", "-aq").split()):
            self.engine.docker("rm", "-f", *left)

    def _take_away(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.home)], check=False)
        shutil.rmtree(self.home, ignore_errors=True)
