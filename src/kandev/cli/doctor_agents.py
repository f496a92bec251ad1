"""Checks of the agents: which can be started here, which want a login, and a setting that one of them needs."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping

import msgspec

from kandev.agents.base import AgentConfig, launch_environment
from kandev.agents.home_files import credentials_found, setting_wanted
from kandev.agents.registry import AgentRegistry
from kandev.cli.doctor_state import open_read_only
from kandev.cli.finding import Finding, Level
from kandev.config import Config
from kandev.domain.known_agents import KnownLogin, KnownVersion
from kandev.home import Home
from kandev.orchestrator.known_agents import login_view
from kandev.store.rows import from_row


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the agents let know when they ran here, by name: their last version, and their login."""

    versions: Mapping[str, KnownVersion] = {}
    logins: Mapping[str, KnownLogin] = {}


def check_agents(config: Config, home: Home) -> Iterator[Finding]:
    """Look at each agent. One that is not installed is no problem, unless it was configured."""
    registry, known = AgentRegistry(config.agents), _known(home)
    for agent in registry.all():
        checked = registry.check(agent.name, os.environ)
        if checked.problem:
            level: Level = "warning" if agent.name in config.agents else "note"
            yield Finding(check="agent", level=level, text=f"{agent.name}: {checked.problem}")
            continue
        yield from _startable(agent, checked.path, known)


def _startable(agent: AgentConfig, path: str, known: Known) -> Iterator[Finding]:
    environ = launch_environment(agent, os.environ)
    version = known.versions.get(agent.name)
    login = login_view(agent, version, known.logins.get(agent.name))
    words = [f"{agent.name}: {path}"]
    if version is not None and version.version:
        words.append(f"version {version.version} ran last")
    if login.state != "needed" and (found := credentials_found(agent, environ)):
        words.append(f"login in {found[0]}")
    yield Finding(check="agent", level="ok", text=", ".join(words))
    if login.state == "needed":
        yield _login_needed(agent, login.said, login.command, [one.name or one.id for one in login.methods])
    if wanted := setting_wanted(agent, environ):
        yield Finding(check="agent", level="warning", text=f"{agent.name}: {wanted}")


def _login_needed(agent: AgentConfig, said: str, command: str, methods: list[str]) -> Finding:
    ways = f" Its ways to log in: {', '.join(methods)}." if methods else ""
    text = f"{agent.name} asked for a login ({said.rstrip('.')}).{ways} Its sessions are kept."
    mend = f"{command or 'Log in'}; then: kandev resume SESSION"
    return Finding(check="login", level="warning", text=text, mend=mend)


def _known(home: Home) -> Known:
    """Read what is stored. A database that is not there, older, or damaged knows nothing; its own check tells more."""
    if not home.database.exists():
        return Known()
    with contextlib.suppress(sqlite3.Error), contextlib.closing(open_read_only(home.database)) as connection:
        rows = connection.execute("SELECT * FROM agent_versions ORDER BY seen_at").fetchall()
        logins = connection.execute("SELECT * FROM agent_logins").fetchall()
        return Known(
            versions={row["agent"]: from_row(KnownVersion, row) for row in rows},
            logins={row["agent"]: from_row(KnownLogin, row) for row in logins},
        )
    return Known()
