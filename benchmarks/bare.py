"""The baseline: the least that a client can do. It spawns the same agent, reads lines, and parses them with `json`."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

AGENT = Path(__file__).with_name("flood_agent.py")
COMMAND = [sys.executable, "-I", "-S", str(AGENT)]
PIPE_BYTES = 1 << 20


class BareClient:
    """An agent behind two pipes. Use it as a context manager; the agent is killed at the end."""

    def __init__(self) -> None:
        self._agent = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=PIPE_BYTES, pipesize=PIPE_BYTES
        )
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._agent.kill()
        self._agent.wait()
        for pipe in (self._agent.stdin, self._agent.stdout):
            assert pipe is not None
            pipe.close()

    def open(self, session_id: str = "") -> None:
        """Initialize, then load the session, or make a new one."""
        for _ in self.ask("initialize", {"protocolVersion": 1, "clientCapabilities": {}}):
            pass
        params = {"cwd": "/", "mcpServers": [], **({"sessionId": session_id} if session_id else {})}
        for _ in self.ask("session/load" if session_id else "session/new", params):
            pass

    def prompt(self, text: str) -> Iterator[tuple[dict[str, Any], int]]:
        """Send a prompt and yield its updates, each with the time of its receipt in nanoseconds."""
        params = {"sessionId": "any", "prompt": [{"type": "text", "text": text}]}
        for message in self.ask("session/prompt", params):
            yield message["params"]["update"], time.monotonic_ns()

    def ask(self, method: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Send a request and yield what comes before its answer."""
        stdin, stdout = self._agent.stdin, self._agent.stdout
        assert stdin is not None
        assert stdout is not None
        self._number += 1
        request = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()
        while True:
            message = json.loads(stdout.readline())
            if message.get("id") == self._number:
                return
            yield message
