"""The requests that are being answered, for as long as they take, whether their client is still there or not."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Work:
    """A supervisor of named tasks. Each handles its own errors; `stopping` refuses new ones (see Connection)."""

    def __init__(self) -> None:
        self.stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `coroutine` to its end; a socket that closes does not end it (RACE-4)."""
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, grace_s: float) -> None:
        """Refuse new work, wait for what runs, then cancel the rest and wait until it has ended."""
        self.stopping = True
        if not self._tasks:
            return
        _, left = await asyncio.wait(set(self._tasks), timeout=grace_s)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
