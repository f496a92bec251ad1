"""What there is: agents, runtimes, and the ids that a person shortened."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kandev.agents.registry import AgentRegistry
from kandev.errors import Conflict, NotFound
from kandev.store.database import Database

# What an agent of a runtime survives beside its own idleness.
SURVIVES: Mapping[str, Sequence[str]] = {"standalone": []}


class Catalog:
    """Lists and looks up. Nothing is started."""

    def __init__(self, database: Database, registry: AgentRegistry, *, runtimes: Sequence[str]) -> None:
        self._db = database
        self._registry = registry
        self._runtimes = runtimes

    async def list_agents(self) -> list[dict[str, Any]]:
        """Return the agents with their flags, and whether each could be started now."""
        return [self._agent_view(agent.name) for agent in self._registry.all()]

    async def check_agent(self, name: str) -> dict[str, Any]:
        """Return one agent. Raises NotFound."""
        return self._agent_view(name)

    def _agent_view(self, name: str) -> dict[str, Any]:
        agent, check = self._registry.get(name), self._registry.check(name, os.environ)
        return {
            "display_name": agent.display_name,
            "protocol": agent.protocol,
            "native_session_resume": agent.session.native_session_resume,
            "history_context_injection": agent.session.history_context_injection,
            "resume_flag": agent.session.resume_flag,
            **msgspec.structs.asdict(check),
        }

    async def list_runtimes(self) -> list[dict[str, Any]]:
        """Return the runtimes of this backend and what their agents survive."""
        return [{"name": name, "survives": SURVIVES.get(name, [])} for name in self._runtimes]

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
