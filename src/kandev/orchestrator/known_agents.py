"""What agents let know while they run, kept for the next start and for people: versions, refusals, logins.

The functions that take a `Tx` run inside the transaction of what they follow from.
"""

import shlex
from collections.abc import Mapping
from typing import Any

from kandev.agents.base import AgentConfig
from kandev.domain.known_agents import KnownLogin, KnownVersion
from kandev.domain.models import now
from kandev.protocols.acp import AgentInfo, AuthMethod
from kandev.store.database import Tx
from kandev.store.rows import to_json

SAID_CHARACTERS = 500


def introduced(tx: Tx, agent: str, initialize: Mapping[str, Any]) -> None:
    """Keep what a version of an agent says of itself; a later answer of the same version replaces an earlier one."""
    info = AgentInfo.from_initialize(initialize)
    tx.run(
        "agent_version_put",
        agent=agent,
        version=info.version,
        program=info.name,
        initialize=to_json(initialize),
        now=now(),
    )


def login_needed(tx: Tx, agent: str, said: str) -> None:
    """Keep that the agent asked for a login (TOK-13)."""
    tx.run("agent_login_needed", agent=agent, said=said[:SAID_CHARACTERS], now=now())


def session_opened(tx: Tx, agent: str) -> None:
    """Forget that a login was needed: the agent came up since. Whether it works, its next turn tells."""
    tx.run("agent_login_open", agent=agent)


def turn_ended(tx: Tx, agent: str) -> None:
    """Keep that the agent answered a prompt, so that no login is missing."""
    tx.run("agent_login_worked", agent=agent, now=now())


def how_it_resumes(config: AgentConfig, known: KnownVersion | None) -> str:
    """Say in a few words how a session of the agent comes back.

    The flags of its configuration count; what the version that ran last said of itself wins where it says no.
    """
    session = config.session
    if session.native_session_resume:
        return _natively(known) or ("recorded conversation" if session.history_context_injection else "starts new")
    if session.continue_session_cmd or session.resume_flag:
        return "by its command line"
    if session.history_context_injection:
        return "recorded conversation"
    return "starts without memory"


def _natively(known: KnownVersion | None) -> str:
    if known is None or not known.initialize:
        return "restores its own session"
    info = AgentInfo.from_initialize(known.initialize)
    if known.refuses_restore:
        return ""
    return "session/resume" if info.resume_session else "session/load" if info.load_session else ""


def login_view(config: AgentConfig, known: KnownVersion | None, login: KnownLogin | None) -> dict[str, Any]:
    """Return what a person needs for a login: whether one is needed, in whose words, by which command or method.

    `command` is the configured hint, or the agent's own where there is none. `methods` are those of its `initialize`.
    """
    methods = AgentInfo.from_initialize(known.initialize).auth_methods if known else ()
    commands = {method.id: _command(config, method) for method in methods}
    return {
        "state": login.state if login else "unknown",
        "said": login.said if login else "",
        "at": login.at if login else "",
        "command": config.login_hint or next(filter(None, commands.values()), ""),
        "methods": [
            {"id": m.id, "name": m.name, "description": m.description, "command": commands[m.id]} for m in methods
        ],
    }


def _command(config: AgentConfig, method: AuthMethod) -> str:
    words = method.command or ((config.command[0], *method.arguments) if method.arguments else ())
    return shlex.join(words)
