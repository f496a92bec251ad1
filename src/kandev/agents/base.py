"""What an agent is: its command, its protocol, what it can restore, and the environment that it gets.

All values are frozen, and msgspec stores them as JSON with the session that was created with them. Nothing in
them is resolved: `"$NAME"` in an environment stays as it stands until a launch.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from kandev.agents.place import HERE, Place
from kandev.errors import Invalid

Protocol = Literal["acp", "stream-json", "amp"]
RuntimeName = Literal["standalone", "detached", "docker", "remote_docker", "sprites"]
# Neither endless nor NaN: it is stored as JSON with each session, and JSON has no word for those.
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
ToolKind = Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"]
# "ask": a person decides; "deny": every request is refused; kinds: these are allowed, the rest is asked.
Permissions = Literal["ask", "deny"] | tuple[ToolKind, ...]

# The protocols that this version speaks. An agent of another one is listed, and says why it cannot be started.
SPOKEN_PROTOCOLS: frozenset[str] = frozenset({"acp", "stream-json", "amp"})

# Names (a trailing * is a prefix) that every agent gets from the backend's environment (design, section 6).
# TMPDIR is not among them: each agent gets a temporary directory of its own (PROC-7).
BASE_ENVIRONMENT: tuple[str, ...] = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "COLORTERM", "NO_COLOR"),
    *("XDG_*", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
)

_REFERENCE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an agent gets its memory back (specification, "Agent Resume Capabilities").

    The flags and commands are for agents that resume by their command line. `fork_session_cmd` and
    `continue_session_cmd` take the place of the command's first word, and are followed by the token; `fork_flag` makes
    a copy of the session that `resume_flag` names. `load_next_minute`: a session that was opened in this minute is
    restored in the next one, because an agent that names its files by the minute writes over it before.
    """

    native_session_resume: bool = False
    load_next_minute: bool = False
    history_context_injection: bool = False
    resume_flag: str = ""
    resume_at_flag: str = ""
    fork_flag: str = ""
    fork_session_cmd: tuple[str, ...] = ()
    continue_session_cmd: tuple[str, ...] = ()

    @property
    def forks(self) -> bool:
        """True when the agent can begin a session as a copy of another one."""
        return bool(self.fork_flag or self.fork_session_cmd)


class SettingNeeded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A setting in an agent's own JSON file, without which it loses sessions that it restores.

    `file` is a place as in `AgentConfig`, `key` the way down to the value, `why` what happens otherwise.
    """

    file: str
    key: tuple[str, ...]
    value: bool
    why: str


class McpServer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tool server that the agent is told of. `env` and `headers` may hold `"$NAME"`."""

    name: str
    type: Literal["stdio", "http", "sse"] = "stdio"
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agent. `command` may begin with `{python}` and hold paths under `{kandev}`: see `launch_command`.

    What `version_command` writes names the version of the program. `mode_flag` takes the mode, for an agent that is
    told of it only at its start.
    `idle_minutes` None means the limit of the whole backend, `runtime` '' its default. `close_grace_s` is how long the
    agent may take to end after its stdin was closed (PROC-6). `session_directory` is where the agent keeps its
    sessions: what must last for it to restore them. `credentials` are variables ("$NAME") and files by which it is
    logged in; only whether they are there is looked at. A place begins with `~` or `${NAME:-default}`: see
    `agents.home_files`.
    """

    name: str
    display_name: str
    command: tuple[str, ...]
    protocol: Protocol = "acp"
    session: SessionConfig = SessionConfig()
    version_command: tuple[str, ...] = ()
    session_directory: str = ""
    restore_needs: SettingNeeded | None = None
    credentials: tuple[str, ...] = ()
    env: dict[str, str] = {}
    env_allow: tuple[str, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()
    model: str = ""
    mode: str = ""
    mode_flag: str = ""
    permissions: Permissions = "ask"
    idle_minutes: float | None = None
    runtime: str = ""
    login_hint: str = ""
    install_hint: str = ""
    close_grace_s: float = 5.0

    @property
    def launchable(self) -> bool:
        """True when this version speaks the agent's protocol."""
        return self.protocol in SPOKEN_PROTOCOLS

    @property
    def not_launchable_reason(self) -> str:
        """Why the agent cannot be started, in a sentence; empty when it can."""
        if self.launchable:
            return ""
        return (
            f"{self.display_name} speaks {self.protocol!r}, and this version speaks only "
            f"{', '.join(sorted(SPOKEN_PROTOCOLS))}. Give [agents.{self.name}] a command of an adapter and "
            f'protocol = "acp" in config.toml to use it.'
        )


class AgentOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table [agents.NAME] of the configuration: the keys that differ, or a whole agent of one's own."""

    display_name: str | UnsetType = UNSET
    command: tuple[str, ...] | UnsetType = UNSET
    protocol: Protocol | UnsetType = UNSET
    native_session_resume: bool | UnsetType = UNSET
    load_next_minute: bool | UnsetType = UNSET
    history_context_injection: bool | UnsetType = UNSET
    resume_flag: str | UnsetType = UNSET
    resume_at_flag: str | UnsetType = UNSET
    fork_flag: str | UnsetType = UNSET
    fork_session_cmd: tuple[str, ...] | UnsetType = UNSET
    continue_session_cmd: tuple[str, ...] | UnsetType = UNSET
    version_command: tuple[str, ...] | UnsetType = UNSET
    session_directory: str | UnsetType = UNSET
    credentials: tuple[str, ...] | UnsetType = UNSET
    env: dict[str, str] | UnsetType = UNSET
    env_allow: tuple[str, ...] | UnsetType = UNSET
    mcp_servers: tuple[McpServer, ...] | UnsetType = UNSET
    model: str | UnsetType = UNSET
    mode: str | UnsetType = UNSET
    mode_flag: str | UnsetType = UNSET
    permissions: Permissions | UnsetType = UNSET
    idle_minutes: _Time | UnsetType | None = UNSET
    runtime: RuntimeName | UnsetType = UNSET
    login_hint: str | UnsetType = UNSET
    install_hint: str | UnsetType = UNSET
    close_grace_s: _Time | UnsetType = UNSET


_SESSION_FIELDS = frozenset(SessionConfig.__struct_fields__)
_ADDED_FIELDS = frozenset({"env", "env_allow"})


def apply_override(base: AgentConfig, override: AgentOverride) -> AgentConfig:
    """Lay an override over an agent. Keys that it does not name stay; `env` and `env_allow` are added to."""
    given = {name: value for name in override.__struct_fields__ if (value := getattr(override, name)) is not UNSET}
    session = {name: value for name, value in given.items() if name in _SESSION_FIELDS}
    plain = {name: value for name, value in given.items() if name not in _SESSION_FIELDS | _ADDED_FIELDS}
    changed: AgentConfig = msgspec.structs.replace(
        base,
        session=msgspec.structs.replace(base.session, **session),
        env={**base.env, **given.get("env", {})},
        env_allow=(*base.env_allow, *given.get("env_allow", ())),
        **plain,
    )
    _check(changed)
    return changed


def agent_from_override(name: str, override: AgentOverride) -> AgentConfig:
    """Make an agent of one's own. Raises `Invalid` when it has no command."""
    return apply_override(AgentConfig(name=name, display_name=name, command=()), override)


def _check(config: AgentConfig) -> None:
    field = f"agents.{config.name}"
    if not config.command or not config.command[0]:
        raise Invalid(f"[{field}] needs a command, as a list of words", field=f"{field}.command")
    for server in config.mcp_servers:
        wanted = "command" if server.type == "stdio" else "url"
        if not getattr(server, wanted):
            raise Invalid(f"[{field}] mcp server {server.name!r} needs {wanted!r}", field=f"{field}.mcp_servers")


def launch_command(
    config: AgentConfig, *, token: str = "", last_message_uuid: str = "", place: Place = HERE
) -> list[str]:
    """The words that start the agent at a place, `{python}` and `{kandev}` put in.

    With a token, an agent that resumes by its command line gets it there; one that restores natively gets it in its
    protocol. The placeholders are put in at each launch, so that a stored session still starts after Python or this
    package was moved.
    """
    words = place.expand(config.command)
    session = config.session
    if not token or session.native_session_resume:
        return words
    _refuse_option(token)
    if session.continue_session_cmd:
        return [*place.expand(session.continue_session_cmd), token, *words[1:]]
    if not session.resume_flag:
        return words
    words += [session.resume_flag, token]
    if session.resume_at_flag and last_message_uuid:
        _refuse_option(last_message_uuid)
        words += [session.resume_at_flag, last_message_uuid]
    return words


def fork_command(config: AgentConfig, *, token: str, place: Place = HERE) -> list[str]:
    """The words that make a copy, at a place, of the session that the token names. Raises `Invalid` without any."""
    if not config.session.fork_session_cmd:
        raise Invalid(f"{config.display_name} cannot fork a session by its command line", field="agent")
    _refuse_option(token)
    return [*place.expand(config.session.fork_session_cmd), token]


def _refuse_option(value: str) -> None:
    """A token comes from an agent; one that looks like an option would change what is started."""
    if value.startswith("-"):
        raise Invalid("the agent's session id begins with '-', so it cannot be given on a command line", field="token")


def launch_environment(config: AgentConfig, environ: Mapping[str, str], place: Place = HERE) -> dict[str, str]:
    """The environment that the agent gets: allowed names of `environ`, then the agent's own, resolved.

    At a place with an environment of its own that is added to it, and paths of `environ`, which lead nowhere there,
    are left out.

    A reference to a name that is not set is left out (`missing_environment` names it). Names that begin with
    KANDEV_ are never passed on unless the agent names them whole.
    """
    own = _resolve(config.env, environ)
    if place.own_environment:
        allowed = select_environment(environ, config.env_allow)
        return {**{name: value for name, value in allowed.items() if not value.startswith("/")}, **own}
    return {**select_environment(environ, (*BASE_ENVIRONMENT, *config.env_allow)), **own}


def select_environment(environ: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """The entries whose names are among `patterns`; a trailing * makes a pattern a prefix."""
    patterns = tuple(patterns)
    exact = frozenset(patterns)
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return {
        name: value
        for name, value in environ.items()
        if name in exact or (name.startswith(prefixes) and not name.startswith("KANDEV_"))
    }


def missing_environment(config: AgentConfig, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names that the agent's tables refer to by `"$NAME"` and that `environ` does not have, sorted."""
    tables = [config.env, *(table for server in config.mcp_servers for table in (server.env, server.headers))]
    wanted = {found[1] for table in tables for value in table.values() if (found := _REFERENCE.fullmatch(value))}
    return tuple(sorted(wanted - environ.keys()))


def mcp_servers_for_launch(config: AgentConfig, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """`mcpServers` as ACP wants it: stdio entries without `type`, the arrays there even when empty (WIRE-11)."""
    return [_mcp_entry(server, environ) for server in config.mcp_servers]


def _mcp_entry(server: McpServer, environ: Mapping[str, str]) -> dict[str, Any]:
    if server.type == "stdio":
        env = _pairs(_resolve(server.env, environ))
        return {"name": server.name, "command": server.command, "args": list(server.args), "env": env}
    headers = _pairs(_resolve(server.headers, environ))
    return {"type": server.type, "name": server.name, "url": server.url, "headers": headers}


def _pairs(table: Mapping[str, str]) -> Sequence[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in table.items()]


def _resolve(table: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    resolved: dict[str, str] = {}
    for name, value in table.items():
        reference = _REFERENCE.fullmatch(value)
        if reference is None:
            # "$$NAME" is the text "$NAME".
            resolved[name] = value[1:] if value.startswith("$$") else value
        elif reference[1] in environ:
            resolved[name] = environ[reference[1]]
    return resolved
