"""The agents as people and clients see them: found or not, login, version, how each resumes. No agent is opened."""

import asyncio
import os
from typing import Any

import msgspec

from kandev.agents.base import AgentConfig, launch_environment
from kandev.agents.home_files import credentials_found, session_directory, setting_wanted
from kandev.agents.registry import AgentRegistry
from kandev.orchestrator.installed_version import installed_version
from kandev.orchestrator.known_agents import how_it_resumes, login_view, offers
from kandev.store.store import Store


class AgentList:
    """Views of the agents: what the configuration says, what is on the disk, and what they let know when they ran."""

    def __init__(self, store: Store, registry: AgentRegistry) -> None:
        self._store = store
        self._registry = registry

    async def all(self) -> list[dict[str, Any]]:
        """Return every agent; `version` is that of its last run."""
        return [self._view(agent) for agent in self._registry.all()]

    async def all_with_versions(self) -> list[dict[str, Any]]:
        """Return the same, with `installed_version`: each program that is there is asked, all at once, for seconds."""
        agents = self._registry.all()
        versions = await asyncio.gather(*(installed_version(agent, os.environ) for agent in agents))
        return [{**self._view(a), "installed_version": v} for a, v in zip(agents, versions, strict=True)]

    async def one(self, name: str) -> dict[str, Any]:
        """Return one agent. Raises NotFound."""
        return self._view(self._registry.get(name))

    def _view(self, agent: AgentConfig) -> dict[str, Any]:
        environ = launch_environment(agent, os.environ)
        known = next(iter(self._store.known_versions(agent.name, limit=1)), None)
        login = login_view(agent, known, self._store.known_login(agent.name))
        return {
            "display_name": agent.display_name,
            "protocol": agent.protocol,
            "runtime": agent.runtime,
            "native_session_resume": agent.session.native_session_resume,
            "history_context_injection": agent.session.history_context_injection,
            "resume_flag": agent.session.resume_flag,
            **msgspec.structs.asdict(self._registry.check(agent.name, os.environ)),
            "version": known.version if known else "",
            "seen_at": known.seen_at if known else "",
            "offers": offers(known),
            "resumes": how_it_resumes(agent, known),
            "session_directory": session_directory(agent, environ),
            "login": {**msgspec.to_builtins(login), "credentials": credentials_found(agent, environ)},
            "warning": setting_wanted(agent, environ),
        }
