"""`kandev serve` on a home of its own, as a user starts it, with the flooding agent configured."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from benchmarks.bare import COMMAND
from benchmarks.processes import tree
from benchmarks.wire import Wire

CONFIG = f"""
[limits]
max_live_agents = 1000
[agents.flood]
command = {json.dumps(COMMAND)}
native_session_resume = true
"""
START_S = 120.0
STOP_S = 30.0
PACE_S = 0.001


class Server:
    """One home and its backend. Use it as a context manager: the home is removed at the end."""

    def __init__(
        self, *, home: Path | None = None, environment: Mapping[str, str] | None = None, config: str = CONFIG
    ) -> None:
        self.home = home or Path(tempfile.mkdtemp(prefix="kandev-bench-"))
        (self.home / "config.toml").write_text(config)
        self._environment = {**os.environ, "KANDEV_HOME": str(self.home), **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ("127.0.0.1", 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The backend's process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Start the backend; return the seconds until its port answered."""
        self._address = ("127.0.0.1", _free_port())
        command = [sys.executable, "-m", "kandev", "serve", "--port", str(self._address[1])]
        began = time.perf_counter()
        with (self.home / "bench.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        while not self._answers():
            if self._process.poll() is not None or time.perf_counter() - began > START_S:
                raise RuntimeError((self.home / "bench.log").read_text())
            time.sleep(PACE_S)
        return time.perf_counter() - began

    def stop(self) -> None:
        """End the backend in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the backend, and wait until what it had started is gone too, but for what outlives it."""
        rows = self.rows("SELECT agent_pid, agentctl_pid FROM executors_running WHERE runtime <> 'standalone'")
        left = set(tree(self.pid)[1:]).difference(*rows)
        self._end(signal.SIGKILL)
        deadline = time.monotonic() + STOP_S
        while any(_alive(pid) for pid in left) and time.monotonic() < deadline:
            time.sleep(PACE_S)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(*self._address, timeout=START_S)
        with contextlib.closing(connection), contextlib.suppress(OSError):
            connection.request("GET", "/healthz", headers={"Authorization": f"Bearer {self._token()}"})
            return connection.getresponse().status == http.HTTPStatus.OK
        return False

    def _token(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.home / "token").read_text().strip()
        return ""

    @contextlib.contextmanager
    def client(self) -> Iterator[Wire]:
        """A WebSocket client."""
        host, port = self._address
        with Wire(f"ws://{host}:{port}/ws", self._token()) as wire:
            yield wire

    def new_session(self, wire: Wire) -> tuple[str, str]:
        """Create a task, subscribe to its session, and wait for the end of a first turn; return both ids."""
        created = wire.call("task.create", agent="flood", description="chunks 1", start=False)
        task_id, session_id = created["task"]["id"], created["session"]["id"]
        wire.call("session.subscribe", session_id=session_id)
        wire.call("task.session.start", task_id=task_id, session_id=session_id)
        wire.until("session.turn.completed")
        return task_id, session_id

    def rows(self, query: str, *args: Any) -> list[Any]:
        """Read the database beside the backend."""
        uri = f"file:{self.home / 'kandev.db'}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            return connection.execute(query, args).fetchall()

    def pids(self, session_id: str) -> dict[str, int]:
        """Return the processes that a session's updates go through, this one included: it is the subscriber."""
        query = "SELECT agent_pid, agentctl_pid FROM executors_running WHERE session_id = ?"
        agent, agentctl = self.rows(query, session_id)[0]
        return {"agent": agent, "agentctl": agentctl, "backend": self.pid, "subscriber": os.getpid()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
