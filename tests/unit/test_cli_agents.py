"""The rows of `kandev agents`: what a person learns of each agent in one line."""

from typing import Any

import pytest

from kandev.cli.about import _agent_row
from kandev.cli.words import needs_line


def agent(**fields: Any) -> dict[str, Any]:
    """An agent of agent.list that is well."""
    login = {"state": "unknown", "said": "", "at": "", "command": "", "methods": [], "credentials": []}
    well = {
        "name": "codex",
        "problem": "",
        "path": "/bin/codex-acp",
        "protocol": "acp",
        "version": "2.6.0",
        "resumes": "session/resume",
        "session_directory": "/home/u/.codex/sessions",
        "login": login | fields.pop("login", {}),
        "warning": "",
    }
    return well | fields


def test_an_agent_that_is_well_is_one_line() -> None:
    """Name, ready, version, login, how it comes back, where it is, what it speaks, where its sessions are."""
    assert _agent_row(agent()) == (
        *("codex", "yes", "2.6.0", "not known", "session/resume"),
        "/bin/codex-acp; speaks acp; sessions in /home/u/.codex/sessions",
    )


def test_what_is_missing_stands_in_place_of_the_path() -> None:
    """With how it is installed, and nothing is claimed of a version or of sessions."""
    row = _agent_row(
        agent(problem="'x' is not on the PATH. Install it with: y", path="", version="", session_directory="")
    )
    assert row[1:3] == ("no", "-")
    assert row[-1] == "'x' is not on the PATH. Install it with: y; speaks acp"


def test_a_setting_that_an_agent_needs_is_told() -> None:
    """It comes last."""
    assert _agent_row(agent(warning="It loses sessions."))[-1].endswith("; It loses sessions")


def test_the_version_of_the_program_counts_before_the_one_that_ran_last() -> None:
    """It may have been updated since."""
    assert _agent_row(agent(installed_version="3.0"))[2] == "3.0"
    assert _agent_row(agent(installed_version=""))[2] == "2.6.0"


@pytest.mark.parametrize(
    ("login", "words"),
    [
        ({"state": "needed", "command": "codex login", "said": "No"}, "needed: codex login"),
        ({"state": "needed", "said": "Get a key"}, "needed: Get a key"),
        ({"state": "worked", "credentials": ["KEY"]}, "works"),
        ({"credentials": ["OPENAI_API_KEY", "/home/u/.codex/auth.json"]}, "not tried: OPENAI_API_KEY"),
    ],
)
def test_the_login_is_told_as_far_as_it_is_known(login: dict[str, Any], words: str) -> None:
    """What the agent let know counts; a key that is there is only a key that is there."""
    assert _agent_row(agent(login=login))[3] == words


@pytest.mark.parametrize(
    ("login", "words"),
    [
        ({"command": "codex login"}, "codex login; then: kandev resume abc"),
        ({"command": ""}, "log in; then: kandev resume abc"),
        (None, "log in; then: kandev resume abc"),
    ],
)
def test_tok_13_a_session_that_waits_for_a_login_says_how(login: dict[str, Any] | None, words: str) -> None:
    """The agent's own command, and what goes on after it."""
    assert needs_line({"needs": "login", "login": login}, "abc").endswith(words)
