"""Where an agent keeps its sessions and its login, and the setting that one of them needs."""

from pathlib import Path

import msgspec
import pytest

from kandev.agents import BUILT_IN, AgentConfig, AgentOverride, AgentRegistry
from kandev.agents.home_files import credentials_found, locate, session_directory, setting_wanted


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("~", "/home/u"),
        ("~/.codex/sessions", "/home/u/.codex/sessions"),
        ("${CODEX_HOME:-~/.codex}/sessions", "/elsewhere/sessions"),
        ("${XDG_DATA_HOME:-~/.local/share}/opencode", "/home/u/.local/share/opencode"),
        ("${EMPTY:-~/.x}", "/home/u/.x"),
        ("/etc/agent", "/etc/agent"),
    ],
)
def test_a_place_is_found_in_the_agents_environment(place: str, path: str) -> None:
    """A variable moves it, an empty one does not, and ~ is the home that the agent gets."""
    assert locate(place, {"HOME": "/home/u", "CODEX_HOME": "/elsewhere", "EMPTY": ""}) == Path(path)


def test_every_built_in_agent_with_a_memory_says_where_it_is() -> None:
    """A container must know what to keep, so each agent that restores natively names a directory in the home."""
    for agent in BUILT_IN.values():
        if agent.session.native_session_resume:
            assert session_directory(agent, {"HOME": "/home/u"}).startswith("/home/u/.")


def test_an_own_agent_may_keep_its_sessions_anywhere() -> None:
    """The configuration names the directory; without one nothing is claimed."""
    tables = {"a": AgentOverride(command=("a",), session_directory="~/.a"), "b": AgentOverride(command=("b",))}
    registry = AgentRegistry(tables)
    found = [session_directory(registry.get(name), {"HOME": "/home/u"}) for name in tables]
    assert found == ["/home/u/.a", ""]


def test_sec_credentials_are_named_and_never_read(tmp_path: Path) -> None:
    """What is there is told by its name or its path; a file that nobody may read counts too."""
    login = tmp_path / ".codex" / "auth.json"
    login.parent.mkdir()
    login.write_text('{"key": "secret"}')
    login.chmod(0)
    environ = {"HOME": str(tmp_path), "OPENAI_API_KEY": "sk-secret", "CODEX_API_KEY": ""}
    assert credentials_found(BUILT_IN["codex"], environ) == ["OPENAI_API_KEY", str(login)]
    assert credentials_found(BUILT_IN["codex"], {"HOME": "/nowhere"}) == []


def gemini(*, native: bool) -> AgentConfig:
    return AgentRegistry({"gemini": AgentOverride(native_session_resume=native)}).get("gemini")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"general": {"sessionRetention": {"enabled": false}}}', False),
        ('// mine\n{"general": {\n  // off\n  "sessionRetention": {"enabled": false}}}', False),
        ('{"general": {"sessionRetention": {"enabled": true}}}', True),
        ('{"general": {"sessionRetention": true}}', True),
        ("{}", True),
        ("[]", True),
        ("{", True),
        ("[" * 100_000, True),
        (None, True),
    ],
)
def test_gemini_needs_its_clean_up_off_to_restore(tmp_path: Path, text: str | None, wanted: bool) -> None:  # noqa: FBT001 - a row of the table
    """The setting is looked up in its own file; what cannot be read counts as not set."""
    path = tmp_path / ".gemini" / "settings.json"
    path.parent.mkdir()
    if text is not None:
        path.write_text(text)
    said = setting_wanted(gemini(native=True), {"HOME": str(tmp_path)})
    assert bool(said) is wanted
    if wanted:
        assert f'Put {{"general": {{"sessionRetention": {{"enabled": false}}}}}} into {path}.' in said


def test_gemini_with_the_flags_of_the_specification_needs_nothing() -> None:
    """It boots idle, so nothing of its own is loaded and nothing can be lost."""
    assert setting_wanted(gemini(native=False), {"HOME": "/nowhere"}) == ""


def test_what_an_agent_needs_survives_storage() -> None:
    """A session keeps the whole agent with it."""
    agent = gemini(native=True)
    assert msgspec.json.decode(msgspec.json.encode(agent), type=AgentConfig) == agent
