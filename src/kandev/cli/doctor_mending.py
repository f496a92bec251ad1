"""What `kandev doctor --fix` does for a session that is parked or stuck: through the backend, or without one."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from kandev.cli.address import NoBackend, find_backend
from kandev.config import Config
from kandev.errors import Invalid, KandevError
from kandev.home import Home
from kandev.home_lock import home_lock

_UNPARK = """
UPDATE task_sessions SET parked_reason = '', failures = '[]',
    queue_held = CASE queue_held WHEN 'parked' THEN '' ELSE queue_held END
WHERE id = ? AND parked_reason <> ''
"""
_BUSY_S = 5.0


class Mending(Protocol):
    """How sessions are brought out; each raises what stopped it. `settles` says, with the id, who else does it."""

    settles: ClassVar[str]

    def why_stuck(self, row: Mapping[str, Any]) -> str:
        """Return why a session that is STARTING or RUNNING cannot go on; '' where it can. `row` is the session's."""

    def settle(self, task_id: str, session_id: str) -> None:
        """Bring a stuck session to a state from which it goes on."""

    def unpark(self, task_id: str, session_id: str) -> None:
        """Forget that the agent kept ending, so that it may be started again."""


class Connected:
    """Through the backend that runs: both are `task.session.recover`, which starts the agent."""

    settles: ClassVar[str] = "kandev recover {} --action resume"

    def why_stuck(self, row: Mapping[str, Any]) -> str:
        """A session of a running backend has an agent, or a start under way."""
        try:
            status = asyncio.run(_ask("task.session.status", task_id=row["task_id"], session_id=row["id"]))
        except (KandevError, NoBackend):
            return ""  # a backend that starts just now, or ends, says nothing of it
        lives = status["is_agent_running"] or status["stage"] or status["state"] not in {"STARTING", "RUNNING"}
        return "" if lives else "no agent runs for it"

    def settle(self, task_id: str, session_id: str) -> None:
        """Resume it: what is left of its agent is proven dead first."""
        asyncio.run(_ask("task.session.recover", task_id=task_id, session_id=session_id, action="resume"))

    def unpark(self, task_id: str, session_id: str) -> None:
        """Try again, as a person would."""
        asyncio.run(_ask("task.session.recover", task_id=task_id, session_id=session_id, action="resume"))


class Alone:
    """Without a backend, under the home's lock. No agent is started; the next `kandev serve` goes on."""

    settles: ClassVar[str] = "kandev serve settles {} and says what was kept."

    def __init__(self, home: Home, config: Config | None) -> None:
        self._home = home
        self._config = config
        self._settled = False

    def why_stuck(self, row: Mapping[str, Any]) -> str:
        """An agent of the standalone runtime ends with its backend; what lasts longer, the next one takes over."""
        return "its backend ended" if row["runtime"] == "standalone" else ""

    def settle(self, task_id: str, session_id: str) -> None:  # noqa: ARG002 - all of the home are settled together
        """Do what a start does before its port opens: end what is left, read the journals, close the turns."""
        if self._settled:
            return
        if self._config is None:
            raise Invalid("The configuration must be mended first.")
        from kandev.logs import open_logs

        with open_logs(self._home.logs):
            asyncio.run(_settle(self._config))
        self._settled = True

    def unpark(self, task_id: str, session_id: str) -> None:  # noqa: ARG002 - the session alone names the row
        """Reset the count in the database; a queue that was held by it is open again."""
        with home_lock(self._home.lock), contextlib.closing(self._open()) as database, database:
            database.execute(_UNPARK, (session_id,))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._home.database, timeout=_BUSY_S)


async def _settle(config: Config) -> None:
    from kandev.app import Settling

    async with Settling.open(config):
        pass


async def _ask(request: str, **payload: str) -> dict[str, Any]:
    from kandev.cli.client import Client

    async with await Client.open(find_backend(None)) as client:
        return await client.call(request, **payload)
