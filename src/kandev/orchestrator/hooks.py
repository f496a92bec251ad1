"""[hooks] of the configuration: a command of the user's own runs when a session waits, asks, fails, or is done."""

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import structlog

from kandev.domain.models import Event, SessionState
from kandev.errors import KandevError
from kandev.worktrees.program import run_program

log = structlog.get_logger(__name__)

HOOK_S: Final = 60.0
WATCHED: Final = ("session.state_changed", "permission.requested")
_STATES: Final[Mapping[str, str]] = {
    SessionState.WAITING_FOR_INPUT: "waiting",
    SessionState.FAILED: "failed",
    SessionState.COMPLETED: "done",
}


class Hooks:
    """Runs the command with KANDEV_EVENT, KANDEV_TASK_ID and KANDEV_SESSION_ID in its environment.

    It gets no prompt, no token and no text of an agent. What it prints is not kept; a failing one is logged.
    """

    def __init__(
        self,
        on: Sequence[str],
        command: str | Sequence[str],
        *,
        directory: str,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        self._on = frozenset(on)
        self._command = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        self._directory = directory
        self._spawn = spawn

    def tell(self, event: Event) -> None:
        """Look at a published event; runs the command where it was asked for."""
        name = hook_of(event)
        if name in self._on:
            self._spawn(self._run(name, event), f"hook {name}")

    async def _run(self, name: str, event: Event) -> None:
        told = {"KANDEV_EVENT": name, "KANDEV_TASK_ID": event.task_id, "KANDEV_SESSION_ID": event.session_id}
        try:
            finished = await run_program(
                self._command, cwd=self._directory, environ={**os.environ, **told}, timeout_s=HOOK_S
            )
        except KandevError as error:
            log.warning("hook.failed", hook=name, error=error.message)
            return
        if finished.code:
            log.warning("hook.failed", hook=name, code=finished.code)


def hook_of(event: Event) -> str:
    """Return which hook an event is for: waiting, permission, failed, done; or ''."""
    if event.action == "permission.requested":
        return "permission"
    came_up = event.payload.get("new_state") == SessionState.WAITING_FOR_INPUT
    if came_up and event.payload.get("old_state") == SessionState.STARTING:
        return ""  # an agent that came up has said nothing yet
    return _STATES.get(event.payload.get("new_state", ""), "")
