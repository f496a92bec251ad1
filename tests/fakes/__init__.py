"""Agents that do as they are told, for tests."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Json = dict[str, Any]
Found = TypeVar("Found")

PATIENCE_S = 30.0
"""How long a test waits for something that must come, in seconds."""


class FakeAgent:
    """The scriptable agent (see fake_agent.py for the keys), and what all its processes received.

    `FakeAgent(tmp_path, on={"session/load": {"error": {"code": -32002, "message": "gone"}}})`
    """

    def __init__(self, directory: Path, **script: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._path = directory / "script.json"
        self._script: Json = {}
        self.update(**script)

    @property
    def command(self) -> list[str]:
        """The command line that starts one process of this agent."""
        return [sys.executable, "-I", "-S", str(Path(__file__).with_name("fake_agent.py")), str(self._path)]

    def update(self, **script: Any) -> None:
        """Set keys of the script; processes that start from now on follow it."""
        self._script |= script
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(self._script))
        draft.replace(self._path)

    def open_gate(self, name: str) -> None:
        """Let the `gate` steps of this name go on."""
        gates = self.directory / "gates"
        gates.mkdir(exist_ok=True)
        (gates / name).touch()

    def entries(self) -> list[Json]:
        """Return the whole log of all processes, oldest first."""
        try:
            lines = (self.directory / "log.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        # What stands behind the last newline is a line that is just being written.
        return [json.loads(line) for line in lines[:-1]]

    def events(self, name: str) -> list[Json]:
        """Return the entries of one event: start, spawned, mark, rule, sigterm or eof."""
        return [entry for entry in self.entries() if entry.get("event") == name]

    def received(self) -> list[Json]:
        """Return every message that any process got."""
        return [entry["message"] for entry in self.entries() if "message" in entry]

    def requests(self, method: str) -> list[Json]:
        """Return the messages of one method, notifications too."""
        return [message for message in self.received() if message.get("method") == method]

    def prompts(self) -> list[str]:
        """Return the text of every prompt."""
        blocks = [message["params"]["prompt"] for message in self.requests("session/prompt")]
        return ["\n".join(block["text"] for block in prompt if block["type"] == "text") for prompt in blocks]

    def pids(self) -> list[int]:
        """Return the ids of all processes that ever started, oldest first."""
        return [entry["pid"] for entry in self.events("start")]

    def spawned(self) -> list[int]:
        """Return the ids of all grandchildren."""
        return [entry["child"] for entry in self.events("spawned")]

    def marks(self) -> list[str]:
        """Return the names of the `mark` steps that were reached."""
        return [entry["name"] for entry in self.events("mark")]

    def alive(self) -> list[int]:
        """Return the processes and grandchildren that still run; a zombie does not."""
        return [pid for pid in self.pids() + self.spawned() if runs(pid)]

    def kill(self) -> None:
        """Kill what still runs, for the end of a test."""
        for pid in self.alive():
            end(pid)

    def wait(self, look: Callable[[], Found], seconds: float = PATIENCE_S) -> Found:
        """Look again and again until something is found, and return it. TimeoutError if nothing is."""
        deadline = time.monotonic() + seconds
        while not (found := look()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing found; the log ends with {self.entries()[-5:]}")
            time.sleep(0.01)
        return found

    async def until(self, look: Callable[[], Found], seconds: float = PATIENCE_S) -> Found:
        """Do the same as `wait`, without stopping the loop."""
        return await asyncio.to_thread(self.wait, look, seconds)


def runs(pid: int) -> bool:
    """Tell whether a process is there and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] not in {b"Z", b"X"}
    except (FileNotFoundError, ProcessLookupError):
        return False


def end(pid: int) -> None:
    """Kill a process that may be gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
