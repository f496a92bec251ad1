"""Agents: the specification's table, launches, environments, and what a configuration may change."""

import sys
from pathlib import Path

import msgspec
import pytest

from kandev.agents import (
    BUILT_IN,
    AgentConfig,
    AgentOverride,
    AgentRegistry,
    McpServer,
    SessionConfig,
    builtin,
    fork_command,
    launch_command,
    launch_environment,
    mcp_servers_for_launch,
    missing_environment,
)
from kandev.agents.registry import discover
from kandev.errors import Invalid, NotFound


def agent(**fields: object) -> AgentConfig:
    return msgspec.convert({"name": "a", "display_name": "A", "command": ["a"], **fields}, AgentConfig)


@pytest.mark.parametrize(
    ("name", "native", "injection"),
    [
        ("claude-code", False, False),
        ("claude-acp", True, False),
        ("codex", True, False),
        ("copilot", True, False),
        ("auggie", True, False),
        ("gemini", False, False),
        ("amp", False, False),
        ("opencode", True, False),
        ("demo", True, False),
        ("demo-history", False, True),
    ],
)
def test_flags_are_those_of_the_specification(name: str, native: bool, injection: bool) -> None:  # noqa: FBT001 - a row of the table
    """Each built-in agent has exactly the two flags of the specification's table."""
    session = BUILT_IN[name].session
    assert (session.native_session_resume, session.history_context_injection) == (native, injection)


def test_the_agents_of_the_contract_are_there() -> None:
    """No agent of the contract is missing."""
    assert set(BUILT_IN) >= {
        *("claude-code", "codex", "copilot", "auggie", "gemini", "amp", "opencode", "demo", "demo-history")
    }


def test_an_agent_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module beside the built-in ones that defines AGENT is found, and nothing else needs to be touched."""
    text = (
        "from kandev.agents.base import AgentConfig\nAGENT = AgentConfig(name='new', display_name='N', command=('n',))"
    )
    (tmp_path / "the_new_one.py").write_text(text)
    monkeypatch.setattr(builtin, "__path__", [*builtin.__path__, str(tmp_path)])
    found = discover(builtin)
    assert found["new"].command == ("n",)
    assert {name: agent for name, agent in found.items() if name != "new"} == BUILT_IN


def test_every_built_in_agent_has_a_file_of_its_name() -> None:
    """Whoever looks for an agent finds its file."""
    files = {
        path.stem.replace("_", "-") for directory in builtin.__path__ for path in Path(directory).glob("[a-z]*.py")
    }
    assert files == set(BUILT_IN)


def test_every_agent_survives_storage_unresolved() -> None:
    """A stored agent reads back equal, and a reference in it is stored as a reference."""
    own = agent(env={"KEY": "$SECRET"}, permissions=["read", "search"], idle_minutes=5)
    for config in [*BUILT_IN.values(), own]:
        stored = msgspec.json.encode(config)
        assert msgspec.json.decode(stored, type=AgentConfig) == config
    assert b'"$SECRET"' in msgspec.json.encode(own)


def test_claude_code_gets_token_and_message_on_its_command_line() -> None:
    """--resume comes with a token, --resume-session-at only beside it."""
    plain = launch_command(BUILT_IN["claude-code"])
    assert launch_command(BUILT_IN["claude-code"], last_message_uuid="u1") == plain
    assert launch_command(BUILT_IN["claude-code"], token="t1") == [*plain, "--resume", "t1"]
    full = launch_command(BUILT_IN["claude-code"], token="t1", last_message_uuid="u1")
    assert full == [*plain, "--resume", "t1", "--resume-session-at", "u1"]


def test_amp_continues_and_forks_by_commands_of_their_own() -> None:
    """The continue command takes the place of the program's name, and the other words stay."""
    assert launch_command(BUILT_IN["amp"], token="T-1") == [
        *("amp", "threads", "continue", "T-1"),
        *("-x", "--stream-json", "--stream-json-input"),
    ]
    assert fork_command(BUILT_IN["amp"], token="T-1") == ["amp", "threads", "fork", "T-1"]
    with pytest.raises(Invalid, match="cannot fork"):
        fork_command(BUILT_IN["codex"], token="T-1")


def test_a_native_agent_never_gets_its_token_on_the_command_line() -> None:
    """An agent that was changed to ACP with native resume keeps its old flags without using them."""
    changed = AgentRegistry(
        {"claude-code": AgentOverride(command=("claude-agent-acp",), protocol="acp", native_session_resume=True)}
    ).get("claude-code")
    assert changed.launchable
    assert launch_command(changed, token="t1", last_message_uuid="u1") == ["claude-agent-acp"]


def test_a_token_that_looks_like_an_option_is_refused() -> None:
    """What an agent gave as its session id cannot change how it is started."""
    with pytest.raises(Invalid, match="begins with '-'"):
        launch_command(BUILT_IN["claude-code"], token="--dangerously-skip-permissions")


def test_the_demo_agent_is_started_with_this_python_from_this_package() -> None:
    """The placeholders are put in at launch, so that a stored session survives a move of the installation."""
    words = launch_command(BUILT_IN["demo-history"])
    assert words[:3] == [sys.executable, "-I", "-S"]
    assert Path(words[3]).parts[-3:] == ("kandev", "demo", "agent.py")
    assert Path(words[3]).parent.is_dir()
    assert words[4:] == ["--no-load", "--no-resume"]
    assert sys.executable.encode() not in msgspec.json.encode(BUILT_IN["demo"])


def test_sec_the_environment_is_an_allow_list() -> None:
    """Only allowed names pass, prefixes included, and nothing of the backend's own does."""
    environ = {
        "PATH": "/bin",
        "LC_TIME": "C",
        "https_proxy": "p",
        "OPENAI_API_KEY": "k",
        "CODEX_HOME": "/c",
        "AWS_SECRET_ACCESS_KEY": "s",
        "KANDEV_HOME": "/h",
        "TMPDIR": "/shared",
    }
    assert launch_environment(BUILT_IN["codex"], environ) == {
        "PATH": "/bin",
        "LC_TIME": "C",
        "https_proxy": "p",
        "OPENAI_API_KEY": "k",
        "CODEX_HOME": "/c",
    }


def test_sec_a_prefix_never_lets_the_backends_own_names_through() -> None:
    """Even an agent that allows everything gets a KANDEV_ name only when it names it whole."""
    environ = {"KANDEV_TOKEN": "t", "KANDEV_DEMO_AGENT_HOME": "/d", "X": "1"}
    assert launch_environment(agent(env_allow=["*"]), environ) == {"X": "1"}
    assert launch_environment(BUILT_IN["demo"], environ) == {"KANDEV_DEMO_AGENT_HOME": "/d"}


def test_references_are_resolved_at_launch_and_missing_ones_named() -> None:
    """A value "$NAME" is taken from the backend, "$$NAME" is text, anything else stays, an unset name is left out."""
    config = agent(env={"A": "$HERE", "B": "$GONE", "C": "$$HERE", "D": "x$HERE", "E": "$"})
    environ = {"HERE": "v"}
    assert launch_environment(config, environ) == {"A": "v", "C": "$HERE", "D": "x$HERE", "E": "$"}
    assert missing_environment(config, environ) == ("GONE",)


def test_wire_11_mcp_servers_have_their_arrays_even_when_empty() -> None:
    """A stdio server has no type; every entry has its arrays, with references resolved."""
    config = agent(
        mcp_servers=[
            {"name": "files", "command": "mcp-files"},
            {"name": "web", "type": "http", "url": "http://127.0.0.1:1/", "headers": {"Authorization": "$KEY"}},
        ]
    )
    assert mcp_servers_for_launch(config, {"KEY": "k"}) == [
        {"name": "files", "command": "mcp-files", "args": [], "env": []},
        {
            "type": "http",
            "name": "web",
            "url": "http://127.0.0.1:1/",
            "headers": [{"name": "Authorization", "value": "k"}],
        },
    ]


def test_an_override_keeps_what_it_does_not_name() -> None:
    """Changing one key leaves the others, and tables of the environment are added to."""
    override = AgentOverride(model="m", history_context_injection=True, env={"X": "1"}, env_allow=("Y",))
    changed = AgentRegistry({"codex": override}).get("codex")
    base = BUILT_IN["codex"]
    assert (changed.model, changed.command, changed.close_grace_s) == ("m", base.command, base.close_grace_s)
    assert changed.session == SessionConfig(native_session_resume=True, history_context_injection=True)
    assert changed.env == {"X": "1"}
    assert changed.env_allow == (*base.env_allow, "Y")
    assert BUILT_IN["codex"] is base


def test_an_own_agent_needs_a_command() -> None:
    """An agent that nobody knows and that has no command is refused with the key that is wanted."""
    with pytest.raises(Invalid, match="needs a command") as caught:
        AgentRegistry({"mine": AgentOverride(model="m")})
    assert caught.value.details["field"] == "agents.mine.command"


@pytest.mark.parametrize("name", ["", "-x", "a/b", "a b", "é", ".."])
def test_an_agents_name_is_plain(name: str) -> None:
    """A name that could be read as a path or an option is refused."""
    with pytest.raises(Invalid, match="name has letters"):
        AgentRegistry({name: AgentOverride(command=("x",))})


def test_an_mcp_server_without_its_command_is_refused() -> None:
    """A stdio server needs a command, another one an address."""
    servers = (McpServer(name="s", type="http", command="x"),)
    with pytest.raises(Invalid, match="'s' needs 'url'"):
        AgentRegistry({"codex": AgentOverride(mcp_servers=servers)})


def test_an_unknown_agent_names_the_known_ones() -> None:
    """The error lists what could have been meant."""
    with pytest.raises(NotFound, match="codex, copilot, demo") as caught:
        AgentRegistry().get("codxe")
    assert caught.value.details == {"agent": "codxe"}


def test_check_finds_a_program_on_the_path_that_the_agent_gets(tmp_path: Path) -> None:
    """The PATH of the agent's own environment is what counts."""
    program = tmp_path / "my-agent"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    registry = AgentRegistry({"mine": AgentOverride(command=("my-agent",), env={"PATH": str(tmp_path), "K": "$NO"})})
    check = registry.check("mine", {"PATH": "/nowhere"})
    assert (check.found, check.path, check.missing_environment) == (True, str(program), ("NO",))
    assert check.problem == "Not set in the backend's environment: NO."


def test_check_of_a_missing_program_says_how_to_install_it() -> None:
    """What is not there is named, with the package that brings it."""
    check = AgentRegistry().check("codex", {"PATH": "/nowhere"})
    assert not check.found
    assert "'codex-acp' is not on the PATH" in check.problem
    assert "@agentclientprotocol/codex-acp" in check.problem


def test_an_agent_of_an_unspoken_protocol_says_so() -> None:
    """Every protocol that can be configured is spoken; one that a later version adds says why and what to do."""
    assert all(agent.launchable for agent in BUILT_IN.values())
    config = msgspec.structs.replace(BUILT_IN["amp"], protocol="telepathy")
    assert not config.launchable
    assert "[agents.amp]" in config.not_launchable_reason


def test_check_of_a_good_agent_has_no_problem() -> None:
    """The demo agent can always be started."""
    check = AgentRegistry().check("demo", {})
    assert (check.found, check.problem) == (True, "")
