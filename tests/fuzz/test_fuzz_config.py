"""Any config.toml and any environment give a configuration or one `Invalid` that says where and what."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzed import HARD_TEXTS, HOSTILE, QUIET, damaged, ends, fuzz, near, peak_bytes
from kandev.agents.base import launch_command, launch_environment, mcp_servers_for_launch, missing_environment
from kandev.agents.registry import AgentRegistry
from kandev.config import Config, Sections, explain, load_config
from kandev.errors import Invalid
from kandev.protocols.jsonrpc import clean_text

pytestmark = QUIET

WHOLE: dict[str, Any] = {
    "server": {"host": "127.0.0.1", "port": 0, "auth": True},
    "limits": {"max_live_agents": 3, "idle_minutes": 1.5, "context_chars": 1000},
    "worktrees": {"setup": ["make"], "copy": [".env"]},
    "hooks": {"on": ["done"], "command": "notify"},
    "runtimes": {"docker": {"image": "x", "mounts": ["/a:/a"]}, "sprites": {"token": "$T"}, "standalone": {}},
    "timing": {"stall_notice_s": 5, "recover_s": 0.5},
    "agents": {
        "codex": {"model": "m", "env": {"KEY": "$KEY"}, "permissions": ["edit"], "idle_minutes": 0},
        "own": {
            "command": ["own", "--acp"],
            "native_session_resume": True,
            "mcp_servers": [{"name": "a", "command": "x", "args": [], "env": {"A": "b"}}],
        },
    },
}
TABLES = near(st.just(WHOLE), changes=2)


def toml_of(value: Any) -> str:
    """A value as inline TOML; what TOML does not have becomes a date, which it has and JSON has not."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case str():
            return msgspec.json.encode(clean_text(value)).decode()
        case dict():
            return "{" + ", ".join(f"{toml_of(str(key))} = {toml_of(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(toml_of, value)) + "]"
        case _:
            return "1979-05-27T07:32:00Z"


def file_of(tables: Any) -> bytes:
    """The file: one key of the top level a line."""
    if not isinstance(tables, dict):
        return toml_of(tables).encode()
    return "\n".join(f"{toml_of(str(key))} = {toml_of(value)}" for key, value in tables.items()).encode()


MAZES = st.sampled_from(
    [
        b"x = " + b"[" * 5000 + b"]" * 5000,
        b"x = " + b"{a=" * 5000,
        b"[" + b"a." * 5000 + b"a]\nx = 1",
        b"limits.max_live_agents = 1" + b"0" * 5000,
        b"limits.idle_minutes = 1e400",
        b"limits.idle_minutes = nan",
        b"timing.recover_s = inf",
        b"agents.codex.close_grace_s = nan",
        b"agents.codex.idle_minutes = inf",
        b"server.port = 0x" + b"f" * 400,
        b"server = 1\nserver.port = 2",
        b"[server]\n[server]",
        b"agents.codex = 99999-99-99",
        b"\xff\xfe",
        b"\0",
    ]
)
FILES = st.one_of(
    TABLES.map(file_of),
    TABLES.flatmap(lambda tables: damaged(file_of(tables))),
    MAZES,
    st.binary(max_size=40),
)
ROOMS = [*Sections.__struct_fields__, "AGENTS__CODEX", "AGENTS__OWN_ONE", "RUNTIMES__DOCKER", "AGENTS__CODEX__ENV"]
KEYS = [
    "PORT",
    "IDLE_MINUTES",
    "CLOSE_GRACE_S",
    "COMMAND",
    "ON",
    "MODEL",
    "ENV",
    "PERMISSIONS",
    "IMAGE",
    "",
    "X__Y",
    "\udcff",
]
PLACES = ["", "__", "SERVER", "AGENTS", "AGENTS__", "RUNTIMES", "\u0130", "RUNTIMES__DOCKER", "AGENTS__A__B__C__D"]
NAMES = st.one_of(
    st.builds("KANDEV__{}__{}".format, st.sampled_from([room.upper() for room in ROOMS]), st.sampled_from(KEYS)),
    st.builds("KANDEV__{}".format, st.sampled_from(PLACES)),
)
TEXTS = st.one_of(
    st.sampled_from(["1", "-1", "1.5", "nan", "inf", "1e400", "9" * 5000, "true", "yes", "$HOME", "$$", "\udcff"]),
    st.sampled_from(["[", "[" * 5000, "{" * 9, "[]", "{}", '["a"]', '{"a":1}', '["\\ud800"]', "[" + "9" * 5000 + "]"]),
    st.sampled_from(['{"image":"x"}', '{"x":{}}', '{"codex":{"model":"m"}}', '{"docker":{"cpus":"nan"}}']),
    HARD_TEXTS.map(lambda text: text.replace("\0", "")),
    HOSTILE.map(lambda value: repr(value)[:2000].replace("\0", "")),
)
ENVIRONMENTS = st.dictionaries(NAMES, TEXTS, max_size=4)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def used(config: Config) -> None:
    """What a backend does with a configuration before anything is started."""
    for setting in explain(config):
        msgspec.json.encode(setting)
    for agent in AgentRegistry(config.agents).all():
        environ = {"KEY": "value", "HOME": "/"}
        launch_environment(agent, environ)
        missing_environment(agent, environ)
        mcp_servers_for_launch(agent, environ)
        assert launch_command(agent)
        # It is stored with each session, and read again.
        assert msgspec.json.decode(msgspec.json.encode(agent), type=type(agent)) == agent
    times = (*msgspec.structs.astuple(config.timing), config.limits.idle_minutes)
    assert all(time == time for time in times)  # noqa: PLR0124 - NaN is a time that never comes and never is over


@fuzz(500)
@given(content=FILES, environment=st.one_of(st.just({}), ENVIRONMENTS))
def test_a_file_and_an_environment_are_read_or_refused(home: Path, content: bytes, environment: dict[str, str]) -> None:
    """A refusal is `Invalid` with words that can be printed; what is accepted can be used, shown and stored."""
    (home / "config.toml").write_bytes(content)
    with ends():
        try:
            config = load_config({"KANDEV_HOME": str(home), **environment})
        except Invalid as error:
            msgspec.json.encode(dict(error.payload()))
            return
        used(config)


@fuzz(500)
@given(environment=ENVIRONMENTS)
def test_an_environment_alone_is_read_or_refused(home: Path, environment: dict[str, str]) -> None:
    """The same without a file, as most backends have it; the error names the variable."""
    (home / "config.toml").unlink(missing_ok=True)
    with ends():
        try:
            used(load_config({"KANDEV_HOME": str(home), **environment}))
        except Invalid as error:
            refusal = error.payload()
        else:
            return
    assert "KANDEV__" in refusal["message"]
    msgspec.json.encode(refusal)


@fuzz(200)
@given(name=st.binary(min_size=1, max_size=60).map(os.fsdecode).map(lambda text: text.replace("\0", "")))
def test_any_home_is_a_home_or_refused(name: str) -> None:
    """KANDEV_HOME may be any bytes that a system allows: a directory is not made by looking."""
    environ = {"KANDEV_HOME": name, "HOME": "/nonexistent"}
    with ends():
        try:
            config = load_config(environ)
        except Invalid:
            return
    assert config.home.path.is_absolute()


def test_a_file_costs_memory_in_proportion_to_its_length(home: Path) -> None:
    """One long text, many keys, or a maze."""
    size = 1 << 20
    many = b"".join(b"k%d = 1\n" % n for n in range(size // 10))
    for content in (b'[server]\nhost = "' + b"x" * size + b'"', many, b"x = " + b"[" * size, b"# " + b"x" * size):
        (home / "config.toml").write_bytes(content)

        def load() -> None:
            try:
                load_config({"KANDEV_HOME": str(home)})
            except Invalid:
                return

        with ends():
            assert peak_bytes(load) < 100 * size
