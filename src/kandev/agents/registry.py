"""The agents that there are: the built-in ones, and what the configuration adds or changes."""

import importlib
import pkgutil
import shutil
from collections.abc import Mapping
from types import ModuleType

import msgspec

from kandev.agents import builtin
from kandev.agents.base import (
    AgentConfig,
    AgentOverride,
    agent_from_override,
    apply_override,
    launch_command,
    launch_environment,
    missing_environment,
)
from kandev.errors import Invalid, NotFound


def discover(package: ModuleType) -> dict[str, AgentConfig]:
    """Return the agents of a package by name: each of its modules defines one as `AGENT`. In order of the files."""
    modules = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    agents: list[AgentConfig] = [importlib.import_module(f"{package.__name__}.{name}").AGENT for name in modules]
    return {agent.name: agent for agent in agents}


BUILT_IN: Mapping[str, AgentConfig] = discover(builtin)


class AgentCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What `agents check` says. `path` is the program found, or empty; `problem` is empty when it can be started."""

    name: str
    found: bool
    path: str
    launchable: bool
    problem: str
    missing_environment: tuple[str, ...]
    install_hint: str
    login_hint: str


class AgentRegistry:
    """Agents by name. Immutable: an edited configuration makes a new one, and reaches new sessions only."""

    def __init__(self, overrides: Mapping[str, AgentOverride] | None = None) -> None:
        """Lay the tables [agents.NAME] over the built-in agents. Raises `Invalid` for one that has no command."""
        agents = dict(BUILT_IN)
        for name, override in (overrides or {}).items():
            _check_name(name)
            known = agents.get(name)
            agents[name] = apply_override(known, override) if known else agent_from_override(name, override)
        self._agents: Mapping[str, AgentConfig] = agents

    def get(self, name: str) -> AgentConfig:
        """The agent of that name. Raises `NotFound`, which names the known ones."""
        agent = self._agents.get(name)
        if agent is None:
            raise NotFound(f"No agent {name!r}. Known: {', '.join(sorted(self._agents))}.", agent=name)
        return agent

    def all(self) -> list[AgentConfig]:
        """Every agent: the built-in ones first, then one's own, each in the order of definition."""
        return list(self._agents.values())

    def check(self, name: str, environ: Mapping[str, str]) -> AgentCheck:
        """Tell whether the agent could be started from `environ` now. Nothing is started. Raises `NotFound`."""
        agent = self.get(name)
        path = find_program(agent, environ)
        missing = missing_environment(agent, environ)
        return AgentCheck(
            name=name,
            found=bool(path),
            path=path,
            launchable=agent.launchable,
            problem=_problem(agent, path, missing),
            missing_environment=missing,
            install_hint=agent.install_hint,
            login_hint=agent.login_hint,
        )


def find_program(agent: AgentConfig, environ: Mapping[str, str]) -> str:
    """The full path of the agent's program, looked up on the PATH that the agent would get; empty when not there."""
    search = launch_environment(agent, environ).get("PATH", "")
    return shutil.which(launch_command(agent)[0], path=search) or ""


def _problem(agent: AgentConfig, path: str, missing: tuple[str, ...]) -> str:
    if not agent.launchable:
        return agent.not_launchable_reason
    if not path:
        hint = f" Install it with: {agent.install_hint}" if agent.install_hint else ""
        return f"{launch_command(agent)[0]!r} is not on the PATH.{hint}"
    if missing:
        return f"Not set in the backend's environment: {', '.join(missing)}."
    return ""


def _check_name(name: str) -> None:
    plain = name.replace("-", "").replace("_", "")
    if not (plain.isascii() and plain.isalnum() and name[0] not in "-_"):
        raise Invalid(f"An agent's name has letters, digits, - and _ only, not {name!r}", field=f"agents.{name}")
