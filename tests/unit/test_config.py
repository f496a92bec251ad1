"""The configuration and the home: what wins, what is refused, and what is left alone."""

import stat
from pathlib import Path

import pytest

from kandev.agents import AgentRegistry
from kandev.config import Config, Home, explain, home_from, load_config
from kandev.domain import constants
from kandev.errors import Invalid


def load(home: Path, toml: str = "", environ: dict[str, str] | None = None, **flags: object) -> Config:
    """Load a configuration from a file with that text."""
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(toml)
    named = {key.replace("__", "."): value for key, value in flags.items()}
    return load_config({"KANDEV_HOME": str(home), **(environ or {})}, named)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_without_anything_the_defaults_are_those_of_the_contract(tmp_path: Path) -> None:
    """No file and no variable: loopback, the known port, and nothing is made."""
    config = load_config({"KANDEV_HOME": str(tmp_path / "none")})
    assert (config.server.host, config.server.port, config.server.auth) == ("127.0.0.1", 38430, True)
    assert config.limits.idle_minutes == 30
    assert config.timing.recently_seen_s == constants.RECENTLY_SEEN_S
    assert config.sources == {}
    assert not (tmp_path / "none").exists()


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    """Each key is taken from the strongest place that gives it, and its source is kept."""
    toml = '[server]\nhost = "127.0.0.2"\nport = 1\n[limits]\nmax_live_agents = 3\n'
    config = load(tmp_path, toml, {"KANDEV__SERVER__PORT": "2", "KANDEV__LIMITS__MAX_LIVE_AGENTS": "4"}, server__port=5)
    assert (config.server.host, config.server.port, config.limits.max_live_agents) == ("127.0.0.2", 5, 4)
    assert config.sources == {
        "server.host": str(tmp_path / "config.toml"),
        "server.port": "flag --port",
        "limits.max_live_agents": "environment KANDEV__LIMITS__MAX_LIVE_AGENTS",
    }


def test_a_flag_that_was_not_given_changes_nothing(tmp_path: Path) -> None:
    """None is what the command line has for an absent flag."""
    config = load(tmp_path, "[server]\nport = 7\n", server__port=None)
    assert config.server.port == 7


@pytest.mark.parametrize(
    ("toml", "key", "what"),
    [
        ("[server]\nprt = 1\n", "server", "unknown field `prt`"),
        ('[server]\nport = "8080"\n', "server.port", "Expected `int`, got `str`"),
        ("[server]\nport = 70000\n", "server.port", "<= 65535"),
        ("[sever]\n", "", "unknown field `sever`"),
        ("server = 1\n", "server", "Expected `object`"),
        ("[limits]\nmax_live_agents = 0\n", "limits.max_live_agents", ">= 1"),
        ("[agents.mine]\ncommand = ['x']\ncolour = 1\n", "agents.mine", "unknown field `colour`"),
        ("[agents.codex]\npermissions = 'yes'\n", "agents.codex.permissions", "Invalid enum value"),
        ("[agents.codex]\npermissions = ['fly']\n", "agents.codex.permissions[0]", "Invalid enum value"),
        ("[agents.codex]\nprotocol = 'x'\n", "agents.codex.protocol", "Invalid enum value"),
        ("[agents.mine]\nmodel = 'm'\n", "agents.mine.command", "needs a command"),
        ("[runtimes.podman]\n", "runtimes", "unknown field `podman`"),
        ("[hooks]\non = ['sometimes']\n", "hooks.on[0]", "Invalid enum value"),
        ("[hooks]\non = ['done']\n", "hooks.command", "no `command`"),
        ("[timing]\nstall_notice_s = -1\n", "timing.stall_notice_s", "> 0"),
    ],
)
def test_an_unknown_key_or_wrong_value_is_refused_with_file_and_key(
    tmp_path: Path, toml: str, key: str, what: str
) -> None:
    """The error names the file, the key and what is wrong."""
    with pytest.raises(Invalid) as caught:
        load(tmp_path, toml)
    assert str(tmp_path / "config.toml") in caught.value.message
    assert what in caught.value.message
    assert caught.value.details["field"] == key


def test_a_file_that_is_not_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    """A syntax error says where it is."""
    with pytest.raises(Invalid, match=r"config\.toml is not TOML: .*line 2"):
        load(tmp_path, "[server]\nport ==\n")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A directory in the file's place is an error, and not an absent file."""
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(Invalid, match="cannot be read: Is a directory"):
        load_config({"KANDEV_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("KANDEV__SERVER__PORT", "many", "server.port"),
        ("KANDEV__SERVER__PRT", "1", "unknown field `prt`"),
        ("KANDEV__SERVER", "x", "Expected `object`"),
        ("KANDEV__", "x", "unknown field"),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(tmp_path: Path, name: str, value: str, what: str) -> None:
    """The error names the variable that is wrong."""
    with pytest.raises(Invalid) as caught:
        load(tmp_path, environ={name: value})
    assert f"environment {name}: " in caught.value.message
    assert what in caught.value.message


def test_variables_reach_agents_lists_and_timing(tmp_path: Path) -> None:
    """An underscore in an agent's name is a hyphen there, lists are JSON, and a shell's test is a text."""
    environ = {
        "KANDEV__AGENTS__CLAUDE_CODE__MODEL": "opus",
        "KANDEV__AGENTS__MINE__COMMAND": '["mine", "--acp"]',
        "KANDEV__AGENTS__MINE__NATIVE_SESSION_RESUME": "true",
        "KANDEV__WORKTREES__SETUP": "[ -f x ] && make",
        "KANDEV__TIMING__RECENTLY_SEEN_S": "0.5",
    }
    config = load(tmp_path, environ=environ)
    agents = AgentRegistry(config.agents)
    assert agents.get("claude-code").model == "opus"
    assert agents.get("mine").command == ("mine", "--acp")
    assert agents.get("mine").session.native_session_resume
    assert config.worktrees.setup == "[ -f x ] && make"
    assert config.timing.recently_seen_s == 0.5


def test_a_variable_changes_one_key_of_an_agent_of_the_file(tmp_path: Path) -> None:
    """The other keys of the file's table stay."""
    toml = '[agents.mine]\ncommand = ["mine"]\nmodel = "a"\nmode = "plan"\n'
    mine = load(tmp_path, toml, {"KANDEV__AGENTS__MINE__MODEL": "b"}).agents["mine"]
    assert (mine.command, mine.model, mine.mode) == (("mine",), "b", "plan")


def test_the_contracts_example_is_understood(tmp_path: Path) -> None:
    """The tables that the contract shows make the agent that it describes."""
    toml = """
[agents.my-agent]
command = ["my-agent", "--acp"]
protocol = "acp"
native_session_resume = true
history_context_injection = false
env = { MY_KEY = "$MY_KEY" }
permissions = ["read", "search"]
idle_minutes = 5
mcp_servers = [{ name = "files", command = "mcp-files", args = ["."] }]
[worktrees]
setup = "make deps"
copy = [".env"]
[hooks]
on = ["waiting", "permission", "failed", "done"]
command = ["notify-send", "kandev"]
[runtimes.docker]
image = "agents:latest"
"""
    config = load(tmp_path, toml)
    agent = AgentRegistry(config.agents).get("my-agent")
    assert agent.session.native_session_resume
    assert agent.env == {"MY_KEY": "$MY_KEY"}
    assert agent.permissions == ("read", "search")
    assert (agent.idle_minutes, agent.mcp_servers[0].args) == (5, (".",))
    assert config.worktrees.copy == (".env",)
    assert config.runtimes.docker.image == "agents:latest"


def test_sec_3_explain_shows_sources_and_no_secret(tmp_path: Path) -> None:
    """Each value has its source; literal secrets are replaced, references are shown."""
    toml = """
[agents.mine]
command = ["mine"]
env = { KEY = "s3cret", OTHER = "$OTHER" }
mcp_servers = [{ name = "w", type = "http", url = "http://127.0.0.1:1", headers = { Authorization = "s3cret" } }]
[runtimes.sprites]
token = "s3cret"
"""
    settings = {line.key: line for line in explain(load(tmp_path, toml, {"KANDEV__SERVER__PORT": "9"}))}
    assert (settings["server.port"].value, settings["server.port"].source) == (9, "environment KANDEV__SERVER__PORT")
    assert (settings["server.host"].value, settings["server.host"].source) == ("127.0.0.1", "default")
    assert settings["agents.mine.env"].value == {"KEY": "(set)", "OTHER": "$OTHER"}
    assert settings["agents.mine.env"].source == str(tmp_path / "config.toml")
    assert settings["runtimes.sprites.token"].value == "(set)"
    assert "agents.mine.model" not in settings
    assert "s3cret" not in repr(list(settings.values()))


def test_the_home_is_the_flags_then_the_variables_then_the_users(tmp_path: Path) -> None:
    """A tilde is the user's directory, and a relative path becomes absolute."""
    environ = {"HOME": "/users/a", "KANDEV_HOME": "~/k"}
    assert home_from({"HOME": "/users/a"}).path == Path("/users/a/.kandev")
    assert home_from(environ).path == Path("/users/a/k")
    assert home_from(environ, "x").path == Path.cwd() / "x"
    assert load_config(environ, {"home": str(tmp_path)}).home.path == tmp_path


def test_tok_9_a_prepared_home_is_private(tmp_path: Path) -> None:
    """Directories that are made are 0700, and one of ours that was open is closed."""
    home = Home(tmp_path / "deep" / "home")
    (home.path / "logs").mkdir(parents=True, mode=0o755)
    home.prepare()
    home.prepare()
    for directory in (home.path, home.sessions, home.worktrees, home.run, home.logs, home.backups):
        assert mode(directory) == 0o700


def test_another_programs_home_is_left_alone(tmp_path: Path) -> None:
    """Files and modes of a home that the Go edition made stay as they are; only the sockets' directory is closed."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kandev.db").write_text("theirs")
    for name in ("worktrees", "run"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    tmp_path.chmod(0o755)
    Home(tmp_path).prepare()
    assert (tmp_path / "data" / "kandev.db").read_text() == "theirs"
    assert (mode(tmp_path), mode(tmp_path / "worktrees"), mode(tmp_path / "run")) == (0o755, 0o755, 0o700)


def test_a_home_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """The error names the path, why, and what to set."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match=r"/file/home cannot be used: Not a directory\. Set KANDEV_HOME"):
        Home(tmp_path / "file" / "home").prepare()


def test_a_home_that_cannot_be_written_is_refused() -> None:
    """Where no directory can be made, whoever asks, the error comes at once and not at the first write."""
    with pytest.raises(Invalid, match="The home /proc cannot be used") as caught:
        Home(Path("/proc")).prepare()
    assert caught.value.details["field"] == "KANDEV_HOME"


def test_crash_18_a_copied_home_has_another_id(tmp_path: Path) -> None:
    """The id stays for one home, by whatever path it is reached, and differs for a copy and for another home."""
    home, other = Home(tmp_path / "a"), Home(tmp_path / "b")
    home.prepare()
    other.prepare()
    first = home.identity()
    copy = Home(tmp_path / "c")
    copy.prepare()
    copy.id_file.write_bytes(home.id_file.read_bytes())
    (tmp_path / "link").symlink_to(home.path)
    assert home.identity() == first
    assert Home(tmp_path / "link").identity() == first
    assert len({first, copy.identity(), other.identity()}) == 3
    assert len(first) == 20
    assert mode(home.id_file) == 0o600
    assert sorted(path.name for path in home.path.glob("home_id*")) == ["home_id"]


def test_an_empty_id_file_is_made_again(tmp_path: Path) -> None:
    """A file that a loss of power left empty is no id."""
    home = Home(tmp_path)
    home.id_file.touch()
    first = home.identity()
    assert home.id_file.read_text().strip()
    assert home.identity() == first
