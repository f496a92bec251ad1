"""What there is: runtimes, and the ids that a person shortened."""

import asyncio
from typing import Any

from kandev.errors import Conflict, NotFound
from kandev.lifecycle.manager import LifecycleManager
from kandev.runtimes.base import RuntimeReport
from kandev.store.database import Database


class Catalog:
    """Lists and looks up. Nothing is started."""

    def __init__(self, database: Database, *, manager: LifecycleManager, default_runtime: str) -> None:
        self._db = database
        self._manager = manager
        self._default_runtime = default_runtime

    async def list_runtimes(self) -> list[dict[str, Any]]:
        """Return the runtimes of this backend: available or why not, what their agents survive, and who lives there."""
        reports = await asyncio.gather(*(self._manager.runtime(name).report() for name in self._manager.runtime_names))
        return [self._runtime_view(report) for report in reports]

    def _runtime_view(self, report: RuntimeReport) -> dict[str, Any]:
        living = [execution for execution in self._manager.all() if execution.runtime.name == report.name]
        return {
            "name": report.name,
            "default": report.name == self._default_runtime,
            "available": not report.problem,
            "problem": report.problem,
            "survives": list(report.survives),
            "on_backend_restart": report.on_backend_restart,
            "on_host_restart": report.on_host_restart,
            "agents": [
                {
                    "session_id": execution.ref.session_id,
                    "task_id": execution.ref.task_id,
                    "agent": execution.ref.agent,
                    "instance_id": execution.instance.instance_id,
                    "in_turn": execution.in_turn,
                }
                for execution in living
            ],
        }

    async def find(self, prefix: str) -> dict[str, str]:
        """Return the session, or the newest session of the task, whose id begins with `prefix`."""
        database = self._db
        sessions = database.all("ids_like_session", prefix=prefix)
        tasks = database.all("ids_like_task", prefix=prefix)
        candidates = [row["id"] for row in (*sessions, *tasks)]
        exact = [c for c in candidates if c == prefix]
        if len(exact or candidates) > 1:
            raise Conflict(f"{prefix!r} could be any of several.", reason="ambiguous", candidates=candidates)
        if not candidates:
            raise NotFound(f"No session and no task begins with {prefix!r}.", id=prefix)
        if sessions:
            return {"task_id": sessions[0]["task_id"], "session_id": sessions[0]["id"]}
        newest = database.one("newest_session_of_task", task_id=tasks[0]["id"])
        return {"task_id": tasks[0]["id"], "session_id": newest["id"] if newest else ""}
