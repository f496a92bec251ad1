"""How many agents live: idle ones end after a while, and a start waits until there is room."""

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from kandev.lifecycle.execution import AgentExecution
from kandev.lifecycle.manager import LifecycleManager

log = structlog.get_logger(__name__)

IDLE = "idle"
LONGEST_WAIT_S = 3600.0


class LiveLimit:
    """Watches the executions of a manager. `busy` tells of a session whether its queue has something to send."""

    def __init__(
        self, manager: LifecycleManager, *, most: int, idle_minutes: float, busy: Callable[[str], bool]
    ) -> None:
        self._manager = manager
        self._most = most
        self._idle_s = idle_minutes * 60
        self._busy = busy
        self._reserved: set[str] = set()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def changed(self) -> None:
        """Say that a turn or an agent ended."""
        self._changed.set()

    def release(self, session_id: str) -> None:
        """Give the place of a start back; its agent, if it lives, counts by itself."""
        self._reserved.discard(session_id)
        self.changed()

    async def make_room(self, session_id: str) -> None:
        """Wait until one more agent may live; the one that was idle for longest is ended for it."""
        while len(self._occupied(session_id)) >= self._most:
            idle = self._idle_executions()
            if idle:
                oldest = min(idle, key=lambda execution: execution.active_at)
                log.info("agent.made_room", session_id=oldest.ref.session_id)
                await self._end(oldest)
                continue
            self._changed.clear()
            await self._changed.wait()
        self._reserved.add(session_id)

    def _occupied(self, session_id: str) -> set[str]:
        living = {execution.ref.session_id for execution in self._manager.all()}
        return (living | self._reserved) - {session_id}

    def _idle_executions(self) -> list[AgentExecution]:
        return [
            execution
            for execution in self._manager.all()
            if execution.ready
            and not execution.ending
            and not execution.in_turn
            and not self._busy(execution.ref.session_id)
        ]

    async def _end(self, execution: AgentExecution) -> None:
        await self._manager.stop(execution, why=IDLE, grace_s=execution.config.close_grace_s)

    def _idle_limit(self, execution: AgentExecution) -> float:
        minutes = execution.config.idle_minutes
        return self._idle_s if minutes is None else minutes * 60

    async def run(self) -> None:
        """End agents that were idle for long enough; a limit of 0 never ends one."""
        while True:
            now = self._loop.time()
            due = []
            next_at = now + LONGEST_WAIT_S
            for execution in self._idle_executions():
                limit = self._idle_limit(execution)
                if limit and execution.active_at + limit <= now:
                    due.append(execution)
                elif limit:
                    next_at = min(next_at, execution.active_at + limit)
            for execution in due:
                log.info("agent.idle", session_id=execution.ref.session_id)
                await self._end(execution)
            if due:
                continue
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_at - now):
                    await self._changed.wait()
