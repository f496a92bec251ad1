"""A real backend for tests: `python -m kandev serve` on a home of its own, killed and started as a test wants.

    async with Backend(tmp_path) as backend:
        await backend.start()
        async with backend.client() as client:
            created = await client.call("task.create", {"agent": "demo", "description": "remember apple"})
            await client.call("session.subscribe", {"session_id": created["session"]["id"]})
            await client.wait_event("session.turn.completed")
            await backend.kill9()
            await backend.start()

The names of files, actions and events are those of docs/protocol.md. Nothing here knows the inside of the server.
"""

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from leftovers import end_process, ended, processes_naming
from wire_client import LIMIT, Client

PACE = 0.02
"""Seconds between two looks at what another process writes and nobody announces."""

STOP_LIMIT = 30.0
"""Seconds until a stop by SIGTERM counts as failed: the server's own budget is 20."""

LEFTOVERS_LIMIT = 10.0
"""Seconds that agents have to end after their backend: a killed one's are ended by agentctl 2 s later."""

PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ")


class CliResult(NamedTuple):
    """What a command ended with: exit code, the JSON of its standard output (a list where it is lines), its errors."""

    code: int
    answer: Any
    errors: str


class Backend:
    """One home and the backend that runs on it, if any.

    `config` is the text of config.toml and `environment` is added to the process's; both may be changed between
    starts. Homes are made under the system's temporary directory, because a Unix socket's path has room for 107 bytes.
    """

    def __init__(self, directory: Path, *, config: str = "", environment: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.config = config
        self.environment = dict(environment or {})
        self.home = Path(tempfile.mkdtemp(prefix="kandev-"))
        self.user_home = directory / "user"
        self.log = directory / "backend.log"
        self.server: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        self.user_home.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._process is not None:
                await self.stop()
            left = await self.end_leftovers()
        finally:
            self._say_log()
            shutil.rmtree(self.home, ignore_errors=True)
        assert not left, f"processes outlived the backend: {left}"

    # The process

    async def start(self, *arguments: str) -> None:
        """Starts the backend and returns once it answers; `arguments` are added to `kandev serve --port 0`."""
        assert self._process is None, "the backend runs already"
        if self.config:
            (self.home / "config.toml").write_text(self.config)
        self._process = self._spawn([sys.executable, "-m", "kandev", "serve", "--port", "0", *arguments])
        async with asyncio.timeout(LIMIT):
            while not self._is_announced() or not await asyncio.to_thread(self._is_healthy):
                code = self._process.poll()
                if code is not None:
                    self._process = None
                    raise AssertionError(f"the backend ended with {code} at its start:\n{self._log_tail()}")
                await asyncio.sleep(PACE)

    async def kill9(self) -> None:
        """Kills the backend, and only it, with SIGKILL; returns once it is gone."""
        await self._end(signal.SIGKILL)

    async def died(self) -> int:
        """Waits for a backend that ends by itself, as at a failpoint; its exit code, negative for a signal."""
        process = self._process
        assert process is not None, "the backend does not run"
        await ended(process.pid)
        self._process = None
        return process.wait()

    async def stop(self) -> int:
        """Ends the backend by SIGTERM; its exit code. One that does not end is killed, which fails the test."""
        return await self._end(signal.SIGTERM)

    async def restart(self) -> None:
        """Ends the backend in order and starts it again on the same home."""
        await self.stop()
        await self.start()

    async def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        assert process is not None, "the backend does not run"
        process.send_signal(number)
        try:
            async with asyncio.timeout(STOP_LIMIT):
                await ended(process.pid)
        except TimeoutError:
            process.kill()
            process.wait()
            raise AssertionError(f"the backend ignored {number.name} for {STOP_LIMIT} s:\n{self._log_tail()}") from None
        return process.wait()

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        # Into a file, not a pipe: an agent that inherits it may outlive the backend. A session of its own, so that
        # Ctrl-C on the tests ends it by the fixture, in order.
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, env=self.env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _is_announced(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            self.server = json.loads((self.home / "server.json").read_text())
        return self._process is not None and self.server.get("pid") == self._process.pid

    def _is_healthy(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/healthz")[0] == http.HTTPStatus.OK
        return False

    # What a test asks it

    @property
    def pid(self) -> int:
        """The process id of the running backend."""
        assert self._process is not None, "the backend does not run"
        return self._process.pid

    @property
    def url(self) -> str:
        """Where the backend of the last start listens: http://HOST:PORT."""
        return str(self.server["url"]).rstrip("/")

    @property
    def token(self) -> str:
        """The token that the backend made for this home."""
        return (self.home / "token").read_text().strip()

    def env(self) -> dict[str, str]:
        """The environment of backend and command line: little of this process's, so that nobody's own setup counts."""
        passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        return {**passed_on, "HOME": str(self.user_home), "KANDEV_HOME": str(self.home), **self.environment}

    def get(self, path: str) -> tuple[int, bytes]:
        """(status, body) of an HTTP request with the token; blocks for LIMIT at most."""
        address = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=LIMIT)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=self._authorization())
            response = connection.getresponse()
            return response.status, response.read()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A WebSocket client; it ends with the block or with the backend."""
        address = self.url.replace("http", "ws", 1) + "/ws"
        async with Client.connected(address, self._authorization()) as client:
            yield client

    async def cli(self, *arguments: str, stdin: str = "") -> CliResult:
        """Runs `kandev ARGUMENTS --json` against this home."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kandev", *arguments, "--json"),
            env=self.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(LIMIT):
                out, errors = await process.communicate(stdin.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return CliResult(process.returncode, parse_output(out.decode()), errors.decode())

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that no event tells, such as a file that an agent writes."""
        async with asyncio.timeout(LIMIT):
            while not condition():
                await asyncio.sleep(PACE)

    def _authorization(self) -> dict[str, str]:
        with contextlib.suppress(FileNotFoundError):
            return {"Authorization": f"Bearer {self.token}"}
        return {}

    # What it leaves behind

    def processes(self) -> dict[int, str]:
        """Command lines by pid of every process that names this home: backend, agentctls, agents and their children."""
        return processes_naming(str(self.home))

    async def end_leftovers(self) -> dict[int, str]:
        """Waits until nothing of a stopped backend runs, kills what stays, and tells it.

        A test whose agents are meant to outlive the backend calls this at its end.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEFTOVERS_LIMIT):
                while running := self.processes():
                    await asyncio.gather(*map(ended, running))
        left = self.processes()
        for pid in left:
            end_process(pid, naming=str(self.home))
        return left

    def _log_tail(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self.log.read_text(errors="replace")[-8000:]
        return "(it wrote nothing)"

    def _say_log(self) -> None:
        sys.stdout.write(f"--- the end of {self.log}\n{self._log_tail()}\n")


def parse_output(text: str) -> Any:
    """What a command printed: one JSON value, or a list where each line is one; the text itself where it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return text
