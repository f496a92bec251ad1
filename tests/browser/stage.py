"""A real backend for tests in a browser, which are synchronous: the backend of `backend.py`, driven from a thread."""

import asyncio
import socket
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from backend import Backend

T = TypeVar("T")
LIMIT = 60.0
SHORT_WAITS = {"KANDEV__TIMING__IN_USE_RETRY_S": "1", "KANDEV__TIMING__CANCEL_FORCE_S": "2"}


class Stage:
    """One home, and the backend on it at one port for all its starts: an open page comes back to the same address."""

    def __init__(self, directory: Path, *, config: str = "") -> None:
        self.backend = Backend(directory, config=config, environment=SHORT_WAITS)
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stage")

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self.backend.__aenter__())
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._run(self.backend.__aexit__(kind, error, traceback))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(LIMIT)
            self._loop.close()

    def start(self) -> None:
        """Starts the backend and returns once it answers."""
        self._run(self.backend.start("--port", str(self.port)))

    def kill9(self) -> None:
        """Kills the backend, and only it."""
        self._run(self.backend.kill9())

    def stop(self) -> None:
        """Ends the backend in order."""
        self._run(self.backend.stop())

    def kill_and_start(self) -> None:
        """What a crash and a restart do."""
        self.kill9()
        self.start()

    def call(self, action: str, /, **payload: Any) -> Any:
        """One action, as another client sends it."""

        async def ask() -> Any:
            async with self.backend.client() as client:
                return await client.call(action, payload)

        return self._run(ask())

    def create(self, description: str, *, agent: str = "demo", **fields: Any) -> "Session":
        """A task with its session."""
        made = self.call("task.create", description=description, agent=agent, **fields)
        return Session(self, made["task"]["id"], made["session"]["id"])

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT)


class Session:
    """A session as another client sees it."""

    def __init__(self, stage: Stage, task_id: str, session_id: str) -> None:
        self._stage = stage
        self.task_id = task_id
        self.id = session_id
        self.path = f"/tasks/{task_id}/sessions/{session_id}"

    def call(self, action: str, /, **payload: Any) -> Any:
        """An action on this session."""
        return self._stage.call(action, task_id=self.task_id, session_id=self.id, **payload)

    def status(self) -> Any:
        """The answer of task.session.status."""
        return self.call("task.session.status")

    def resumes(self) -> list[str]:
        """How each start went, newest first."""
        answer = self._stage.call("task.session.get", session_id=self.id)
        return [one["how"] for one in answer["resumes"]]

    def prompts(self) -> list[str]:
        """What people said, oldest first."""
        messages = self._stage.call("message.list", session_id=self.id, limit=200)["messages"]
        return [one["content"] for one in messages if one["author_type"] == "user"]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
