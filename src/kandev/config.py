"""The configuration: config.toml, then the environment over it, then flags; as frozen structs.

A variable is named by its place: KANDEV__SERVER__PORT is `port` of [server]. In the names of agents `_` stands for
`-`: KANDEV__AGENTS__CLAUDE_CODE__MODEL. A value of a variable that begins with [ or { is read as JSON where it is.
"""

import contextlib
import tomllib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta

from kandev.agents.base import AgentOverride, RuntimeName
from kandev.agents.registry import AgentRegistry
from kandev.domain import constants
from kandev.domain.constants import Timing
from kandev.errors import Invalid
from kandev.home import Home, home_from

__all__ = ["Config", "Home", "Setting", "explain", "home_from", "load_config"]

_PREFIX = "KANDEV__"
_Table = TypeVar("_Table")
_Count = Annotated[int, Meta(ge=1)]
# A text is given to a shell; a list of words is run as it stands.
Command = str | tuple[str, ...]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of config.toml; a key that it does not have is refused."""


class ServerConfig(_Section, frozen=True, kw_only=True):
    """[server]. Port 0 is any free port."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 38430
    auth: bool = True


class LimitsConfig(_Section, frozen=True, kw_only=True):
    """[limits]. `idle_minutes` 0 means that an idle agent is never ended."""

    max_live_agents: _Count = constants.MAX_LIVE_AGENTS
    idle_minutes: Annotated[float, Meta(ge=0)] = constants.IDLE_MINUTES
    line_bytes: _Count = constants.LINE_BYTES
    journal_cap_bytes: _Count = constants.JOURNAL_CAP_BYTES
    event_buffer_count: _Count = constants.EVENT_BUFFER_COUNT
    event_buffer_bytes: _Count = constants.EVENT_BUFFER_BYTES
    context_chars: _Count = constants.CONTEXT_CHARS
    restart_parallel: _Count = constants.RESTART_PARALLEL


class WorktreesConfig(_Section, frozen=True, kw_only=True):
    """[worktrees]. `setup` runs in each new worktree; `copy` names files of the repository, such as .env."""

    setup: Command = ()
    copy: tuple[str, ...] = ()


class HooksConfig(_Section, frozen=True, kw_only=True):
    """[hooks]: `command` runs when a session reaches one of `on`."""

    on: tuple[Literal["waiting", "permission", "failed", "done"], ...] = ()
    command: Command = ()


class StandaloneConfig(_Section, frozen=True, kw_only=True):
    """[runtimes.standalone]: nothing to set so far."""


class DetachedConfig(_Section, frozen=True, kw_only=True):
    """[runtimes.detached]. Without a backend an agent that says nothing for `idle_minutes` ends; 0 is never."""

    idle_minutes: Annotated[float, Meta(ge=0)] = constants.UNATTENDED_MINUTES


class DockerConfig(_Section, frozen=True, kw_only=True):
    """[runtimes.docker]. An empty `host` and `context` mean what the docker command itself would use.

    `images` maps agents to images of their own, `mounts` are "/PATH[:/INSIDE[:ro]]", `env` may hold "$NAME". Without a
    backend an agent that says nothing for `idle_minutes` ends; 0 is never. `user` '' is whoever runs the backend.
    """

    image: str = ""
    images: dict[str, str] = {}
    host: str = ""
    context: str = ""
    network: str = ""
    user: str = ""
    mounts: tuple[str, ...] = ()
    env: dict[str, str] = {}
    memory_mb: Annotated[int, Meta(ge=0)] = 0
    cpus: Annotated[float, Meta(ge=0, le=1e6)] = 0
    idle_minutes: Annotated[float, Meta(ge=0)] = constants.UNATTENDED_MINUTES


class RemoteDockerConfig(DockerConfig, frozen=True, kw_only=True):
    """[runtimes.remote_docker]: an engine behind SSH or TLS."""

    identity_file: str = ""
    known_hosts: str = ""
    tls_directory: str = ""


class SpritesConfig(_Section, frozen=True, kw_only=True):
    """[runtimes.sprites]. `token` is best a reference, "$NAME". An empty `url` is that of the public service."""

    url: str = ""
    token: str = "$SPRITES_TOKEN"  # noqa: S105 - the name of a variable


class RuntimesConfig(_Section, frozen=True, kw_only=True):
    """[runtimes] and [runtimes.NAME]. `default` is where agents run that name no runtime of their own."""

    default: RuntimeName = "standalone"
    standalone: StandaloneConfig = StandaloneConfig()
    detached: DetachedConfig = DetachedConfig()
    docker: DockerConfig = DockerConfig()
    remote_docker: RemoteDockerConfig = RemoteDockerConfig()
    sprites: SpritesConfig = SpritesConfig()


class Sections(_Section, frozen=True, kw_only=True):
    """All tables of config.toml."""

    server: ServerConfig = ServerConfig()
    limits: LimitsConfig = LimitsConfig()
    worktrees: WorktreesConfig = WorktreesConfig()
    hooks: HooksConfig = HooksConfig()
    runtimes: RuntimesConfig = RuntimesConfig()
    agents: dict[str, AgentOverride] = {}
    timing: Timing = Timing()


class Config(Sections, frozen=True, kw_only=True):
    """What is configured, and where it came from. `sources` maps a dotted key to a file, a variable or a flag."""

    home: Home
    sources: Mapping[str, str]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `kandev config`."""

    key: str
    value: Any
    source: str


class _Layer(msgspec.Struct, frozen=True):
    source: str
    tables: dict[str, Any]
    strict: bool  # in TOML a number is a number; variables and flags are texts


def load_config(environ: Mapping[str, str], flags: Mapping[str, Any] | None = None) -> Config:
    """Read the configuration. Nothing is made or written.

    `flags` maps dotted keys (and "home") to what the command line gave; None means not given. Raises `Invalid`, with
    the file or variable and the key, for an unknown key, a wrong value, and a file that is not TOML.
    """
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    home = home_from(environ, given.pop("home", None))
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in (_file_layer(home), *_variable_layers(environ), *_flag_layers(given)):
        sections = _convert(layer)
        for path in _leaves(layer.tables):
            _put(merged, path, msgspec.to_builtins(_value_at(sections, path)))
            sources[".".join(path)] = layer.source
    sections = msgspec.convert(merged, Sections)
    _check_together(sections, sources)
    tables = {name: getattr(sections, name) for name in Sections.__struct_fields__}
    return Config(home=home, sources=sources, **tables)


def explain(config: Config) -> list[Setting]:
    """Every setting with its value and source, in the order of the tables. Secrets are not shown (SEC-3)."""
    settings = [Setting(key="home", value=str(config.home.path), source="")]
    for section in Sections.__struct_fields__:
        for path, value in _settings_of((section,), getattr(config, section)):
            key = ".".join(path)
            settings.append(
                Setting(key=key, value=_without_secrets(path[-1], value), source=config.sources.get(key, "default"))
            )
    return settings


def _file_layer(home: Home) -> _Layer:
    source = str(home.config_file)
    try:
        with home.config_file.open("rb") as file:
            return _Layer(source, tomllib.load(file), strict=True)
    except FileNotFoundError:
        return _Layer(source, {}, strict=True)
    except RecursionError as error:
        raise Invalid(f"{source} is not TOML: it is nested too deeply", field=source) from error
    except ValueError as error:  # also what is no UTF-8, and a number of thousands of digits
        raise Invalid(f"{source} is not TOML: {error}", field=source) from error
    except OSError as error:
        raise Invalid(f"{source} cannot be read: {error.strerror}", field=source) from error


def _variable_layers(environ: Mapping[str, str]) -> Iterator[_Layer]:
    """One layer per variable, so that an error names the variable."""
    for name in sorted(name for name in environ if name.startswith(_PREFIX)):
        if not (_is_text(name) and _is_text(environ[name])):
            shown = name.encode(errors="backslashreplace").decode()
            raise Invalid(f"environment {shown}: name or value is not UTF-8", field=shown)
        path = name[len(_PREFIX) :].lower().split("__")
        if path[0] == "agents" and len(path) > 1:
            path[1] = path[1].replace("_", "-")
        tables: dict[str, Any] = {}
        _put(tables, path, _parsed(environ[name]))
        yield _Layer(f"environment {name}", tables, strict=False)


def _is_text(value: str) -> bool:
    """Bytes that are no UTF-8 come out of the environment as half surrogate pairs."""
    return not any("\ud800" <= char <= "\udfff" for char in value)


def _flag_layers(flags: Mapping[str, Any]) -> Iterator[_Layer]:
    for key, value in flags.items():
        path = key.split(".")
        tables: dict[str, Any] = {}
        _put(tables, path, value)
        yield _Layer(f"flag --{path[-1].replace('_', '-')}", tables, strict=False)


def _parsed(text: str) -> Any:
    if text.startswith(("[", "{")):
        # A shell's test command begins with [ too, and is no JSON.
        with contextlib.suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            return msgspec.json.decode(text)
    return text


def _convert(layer: _Layer) -> Sections:
    agents = layer.tables.get("agents")
    for name, table in agents.items() if isinstance(agents, dict) else ():
        # msgspec does not say which entry of a dictionary is wrong, so each is converted on its own first.
        _converted(layer, table, AgentOverride, f"agents.{name}")
    return _converted(layer, layer.tables, Sections, "")


def _converted(layer: _Layer, raw: Any, kind: type[_Table], place: str) -> _Table:
    try:
        return msgspec.convert(raw, kind, strict=layer.strict)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        inside = where.rstrip("`").lstrip(".")
        key = ".".join(part for part in (place, inside) if part)
        raise Invalid(f"{layer.source}: {key or 'top level'}: {what}", field=key) from error


def _check_together(sections: Sections, sources: Mapping[str, str]) -> None:
    """What no single table can tell: own agents are whole, and hooks have something to run."""
    try:
        AgentRegistry(sections.agents)
    except Invalid as error:
        field = str(error.details.get("field", ""))
        agent = ".".join(field.split(".")[:2])
        source = next((name for key, name in sources.items() if key.startswith(f"{agent}.")), "")
        raise Invalid(f"{source}: {error.message}" if source else error.message, field=field) from error
    if sections.hooks.on and not sections.hooks.command:
        raise Invalid(f"{sources['hooks.on']}: [hooks] has `on` and no `command`", field="hooks.command")


def _is_table_of_tables(section: str) -> bool:
    return section in {"agents", "runtimes"}


def _leaves(tables: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Paths of the values that a layer sets: section.key, and agents.NAME.key or runtimes.NAME.key."""
    for section, table in tables.items():
        for key, value in table.items():
            if _is_table_of_tables(section) and isinstance(value, Mapping):
                yield from ((section, key, inner) for inner in value)
            else:
                yield (section, key)


def _settings_of(path: tuple[str, ...], table: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths and values below a table; of an agent only what is set."""
    entries = table.items() if isinstance(table, dict) else msgspec.structs.asdict(table).items()
    for key, value in entries:
        if isinstance(value, msgspec.Struct):
            yield from _settings_of((*path, key), value)
        elif value is not UNSET:
            yield (*path, key), msgspec.to_builtins(value)


def _without_secrets(key: str, value: Any) -> Any:
    """Replace values of environments, headers and tokens; a reference "$NAME" is shown, as it is no secret."""
    if isinstance(value, dict):
        hide = key in {"env", "headers"}
        return {name: _without_secrets("token" if hide else name, inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(key, inner) for inner in value]
    if key == "token" and isinstance(value, str) and value and not value.startswith("$"):
        return "(set)"
    return value


def _value_at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


def _put(tables: dict[str, Any], path: list[str] | tuple[str, ...], value: Any) -> None:
    *parents, last = path
    for name in parents:
        tables = tables.setdefault(name, {})
    tables[last] = value
