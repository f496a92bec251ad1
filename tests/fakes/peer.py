"""A bare ACP client on one agent process, for tests of the agents themselves. It checks nothing and repairs nothing."""

import json
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Json = dict[str, Any]

PATIENCE_S = 30.0
"""How long a test waits for a message that must come, in seconds."""


class Peer:
    """Starts an agent, sends lines, reads lines. Leaving the block kills the process."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        )
        self.seen: list[Json] = []
        """What came since the last request was sent, without its answer."""
        self.rubbish: list[bytes] = []
        """Lines that were not JSON objects."""
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._last_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def send(self, **message: Any) -> None:
        """Send one JSON-RPC message."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def line(self) -> bytes:
        """Return the next line, b"" at the end of stdout."""
        return self._lines.get(timeout=PATIENCE_S)

    def receive(self) -> Json:
        """Return the next message that is an object. EOFError when the agent closed its stdout."""
        while line := self.line():
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if isinstance(message, dict):
                return message
            self.rubbish.append(line)
        raise EOFError

    def until(self, wanted: Callable[[Json], bool]) -> Json:
        """Read until a message is wanted and return it; the others are in `seen`."""
        while not wanted(message := self.receive()):
            self.seen.append(message)
        return message

    def start(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        self._last_id += 1
        self.seen.clear()
        self.send(id=self._last_id, method=method, params=params)
        return self._last_id

    def answer(self, request_id: int) -> Json:
        """Wait for the answer to a request, and return the whole message."""
        return self.until(lambda message: message.get("id") == request_id and "method" not in message)

    def ask(self, method: str, **params: Any) -> Json:
        """Send a request and return its answer."""
        return self.answer(self.start(method, **params))

    def new(self, cwd: Path) -> str:
        """Initialize, make a session and return its id."""
        self.ask("initialize", protocolVersion=1, clientCapabilities={})
        session_id = self.ask("session/new", cwd=str(cwd), mcpServers=[])["result"]["sessionId"]
        assert isinstance(session_id, str)
        return session_id

    def restore(self, method: str, session_id: str, cwd: Path) -> Json:
        """Initialize, load or resume a session and return the answer."""
        self.ask("initialize", protocolVersion=1, clientCapabilities={})
        return self.ask(method, sessionId=session_id, cwd=str(cwd), mcpServers=[])

    def prompt(self, session_id: str, text: str) -> Json:
        """Send a prompt and return its answer."""
        return self.ask("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": text}])

    def updates(self, *kinds: str) -> list[Json]:
        """Return the updates of these kinds (none: of all) in `seen`."""
        updates = [message["params"]["update"] for message in self.seen if message.get("method") == "session/update"]
        return [update for update in updates if not kinds or update["sessionUpdate"] in kinds]

    def text(self) -> str:
        """Return the agent's text in `seen`."""
        return "".join(update["content"]["text"] for update in self.updates("agent_message_chunk"))

    def ended(self) -> tuple[int, str]:
        """Wait for the end of the process; return its exit code and what it wrote to stderr."""
        assert self.process.stderr
        stderr = self.process.stderr.read().decode()
        return self.process.wait(PATIENCE_S), stderr

    def close(self) -> int:
        """Close stdin as a client that goes away does, and return the exit code."""
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """Kill the process with SIGKILL and wait for it."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe
            try:
                pipe.close()
            except BrokenPipeError:
                continue
