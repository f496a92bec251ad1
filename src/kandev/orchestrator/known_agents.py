"""What agents let know while they run, kept for the next start and for people: versions, refusals, logins.

The functions that take a `Tx` run inside the transaction of what they follow from.
"""

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from kandev.agents.base import AgentConfig
from kandev.domain.known_agents import KnownLogin, KnownVersion, LoginMethod, LoginView
from kandev.domain.models import now
from kandev.protocols.acp import AgentInfo, AuthMethod
from kandev.store.database import Tx
from kandev.store.rows import to_json
from kandev.store.store import Store

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


def offers(known: KnownVersion | None) -> list[str]:
    """Return what the version that ran last offers beyond new sessions and prompts, in the protocol's words."""
    info = AgentInfo.from_initialize(known.initialize if known else {})
    told = {
        "session/load": info.load_session,
        "session/resume": info.resume_session,
        "session/list": info.list_sessions,
        "session/close": info.close_session,
        "session/fork": info.fork_session,
        "image": info.image,
        "audio": info.audio,
        "embeddedContext": info.embedded_context,
    }
    return [name for name, offered in told.items() if offered]


def login_of(store: Store, session_id: str) -> LoginView:
    """Return the login of a session's agent, as it was configured when the session was created."""
    config = msgspec.json.decode(store.settings(session_id).agent_config, type=AgentConfig)
    known = next(iter(store.known_versions(config.name, limit=1)), None)
    return login_view(config, known, store.known_login(config.name))


def login_view(config: AgentConfig, known: KnownVersion | None, login: KnownLogin | None) -> LoginView:
    """Return what a person needs for a login.

    `command` is the configured hint, or the agent's own where there is none. `methods` are those of its `initialize`.
    """
    told = AgentInfo.from_initialize(known.initialize).auth_methods if known else ()
    methods = tuple(
        LoginMethod(id=one.id, name=one.name, description=one.description, command=_command(config, one))
        for one in told
    )
    return LoginView(
        state=login.state if login else "unknown",
        said=login.said if login else "",
        at=login.at if login else "",
        command=config.login_hint or next((one.command for one in methods if one.command), ""),
        methods=methods,
    )


def _command(config: AgentConfig, method: AuthMethod) -> str:
    words = method.command or ((config.command[0], *method.arguments) if method.arguments else ())
    return shlex.join(words)
