"""The command line before any backend answers: names, options, exit codes, where the backend is looked for."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kandev.cli.__main__ import cli
from kandev.cli.address import NoBackend, find_backend
from kandev.cli.permission import choose, policy_choice, question_lines
from kandev.cli.words import next_step, resume_words
from kandev.errors import Conflict, Invalid, NotFound

CONTRACT = [
    "serve", "open", "demo", "new", "ls", "show", "status", "resume", "recover", "fork", "send", "send-again",
    "attach",
    "answer", "queue", "cancel", "stop", "complete", "rm", "history", "search", "export", "logs", "agents", "runtimes",
    "doctor", "config", "version", "demo-agent",
]  # fmt: skip
NEED_A_BACKEND = {
    "open": [], "new": ["text", "--agent", "demo"], "ls": [], "show": ["x"], "status": ["x"], "resume": ["x"],
    "recover": ["x", "--action", "recap"], "fork": ["x"], "send": ["x", "text"],
    "send-again": ["x"],
    "attach": ["x"], "answer": ["x", "1"], "queue": ["x"],
    "cancel": ["x"], "stop": ["x"], "complete": ["x"], "rm": ["x"], "history": ["x"], "search": ["x"], "export": ["x"],
    "logs": ["x"], "agents": [], "runtimes": [],
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("KANDEV_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KANDEV_HOME", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, arguments)
    return result.exit_code, result.output


def test_every_command_of_the_contract_is_there_and_takes_json() -> None:
    """Scripts can rely on the names, and on --json with each of them but the agent program itself."""
    assert sorted(cli.commands) == sorted(CONTRACT)
    for name, command in cli.commands.items():
        options = {option for one in command.params if isinstance(one, click.Option) for option in one.opts}
        assert "--json" in options or name == "demo-agent", name
        assert run(name, "--help")[0] == 0 or name == "demo-agent"


@pytest.mark.parametrize("command", NEED_A_BACKEND)
def test_without_a_backend_a_command_says_how_to_start_one(command: str) -> None:
    """Exit code 6 and the command to type, in words and as JSON."""
    code, output = run(command, *NEED_A_BACKEND[command])
    assert code == 6
    assert "kandev serve" in output
    code, output = run(command, *NEED_A_BACKEND[command], "--json")
    assert code == 6
    assert json.loads(output)["error"]["code"] == "NO_BACKEND"


@pytest.mark.parametrize(
    "arguments",
    [["new", "text"], ["send", "x"], ["recover", "x", "--action", "magic"], ["fly"], ["ls", "--limit", "0"]],
)
def test_usage_errors_end_with_2(arguments: list[str]) -> None:
    """A command that cannot be meant so is refused before anything is asked."""
    assert run(*arguments)[0] == 2


def test_config_and_version_need_no_backend() -> None:
    """They answer from this machine alone."""
    code, output = run("config", "--json")
    assert code == 0
    assert json.loads(output)["server.port"] == {"value": 38430, "source": "default"}
    code, output = run("version", "--json")
    assert code == 0
    assert json.loads(output)["version"]


def test_a_wrong_configuration_is_a_usage_error(home: Path) -> None:
    """The file and the key are named."""
    (home / "config.toml").write_text("[server]\nprot = 1\n")
    code, output = run("config")
    assert code == 2
    assert "config.toml" in output
    assert "prot" in output


def write_server_file(home: Path, pid: int) -> None:
    (home / "server.json").write_text(json.dumps({"pid": pid, "url": "http://127.0.0.1:1/", "boot_id": "b"}))
    (home / "token").write_text("secret\n")


def test_the_backend_of_the_home_is_found_with_its_token(home: Path) -> None:
    """server.json and token are what a running backend leaves for its clients."""
    write_server_file(home, os.getpid())
    address = find_backend(None)
    assert (address.url, address.token, address.websocket) == ("http://127.0.0.1:1", "secret", "ws://127.0.0.1:1/ws")


def test_a_server_file_of_a_dead_backend_is_seen_through(home: Path) -> None:
    """A killed backend leaves its file; nobody connects to what may listen on its port now."""
    write_server_file(home, 2**22 + 1)
    with pytest.raises(NoBackend, match="without a goodbye"):
        find_backend(None)


@pytest.mark.parametrize(
    ("url", "base", "token"),
    [
        ("http://127.0.0.1:7", "http://127.0.0.1:7", "secret"),
        ("localhost:7", "http://localhost:7", "secret"),
        ("ws://127.0.0.1:7/ws", "http://127.0.0.1:7", "secret"),
        ("http://elsewhere:7", "http://elsewhere:7", ""),
        ("https://elsewhere/?token=t", "https://elsewhere", "t"),
    ],
)
def test_sec_3_the_token_of_the_home_does_not_leave_the_machine(home: Path, url: str, base: str, token: str) -> None:
    """--url takes several forms; another host gets the token only when it is given for it."""
    write_server_file(home, os.getpid())
    address = find_backend(url)
    assert (address.url, address.token) == (base, token)


def test_an_address_that_is_none_is_refused() -> None:
    """A file name, say, is no address."""
    with pytest.raises(NoBackend):
        find_backend("ftp://host")


REQUEST: dict[str, Any] = {
    "id": "r",
    "tool_call": {"title": "run \x1b[2Jrm -rf build", "rawInput": {"command": "rm -rf build\nand more"}},
    "options": [
        {"option_id": "a", "name": "Allow always", "kind": "allow_always"},
        {"option_id": "b", "name": "Allow", "kind": "allow_once"},
        {"option_id": "c", "name": "Reject", "kind": "reject_once"},
    ],
}


@pytest.mark.parametrize(
    ("typed", "chosen"), [("1", "a"), ("b", "b"), ("reject", "c"), ("allow_once", "b"), (" 3 ", "c"), ("cancel", None)]
)
def test_perm_1_an_option_is_named_in_several_ways(typed: str, chosen: str | None) -> None:
    """By its number, id, name or kind."""
    assert choose(REQUEST, typed) == chosen


@pytest.mark.parametrize("typed", ["", "0", "4", "yes"])
def test_perm_2_an_answer_that_is_no_option_is_never_taken_for_one(typed: str) -> None:
    """The options are listed instead."""
    with pytest.raises(Invalid, match="Allow always"):
        choose(REQUEST, typed)


def test_perm_2_no_policy_gives_more_than_once() -> None:
    """allow-once never takes "always", even where nothing else would allow; deny can always answer."""
    assert policy_choice(REQUEST, "allow-once") == (True, "b")
    assert policy_choice(REQUEST, "deny") == (True, "c")
    assert policy_choice(REQUEST, "ask") == (False, None)
    only_always = {"options": REQUEST["options"][:1]}
    assert policy_choice(only_always, "allow-once") == (False, None)
    assert policy_choice(only_always, "deny") == (True, None)


def test_a_question_shows_what_would_run_without_its_escapes() -> None:
    """A person sees what he allows, and cannot be shown something else."""
    text = "\n".join(question_lines(REQUEST))
    assert "run rm -rf build" in text
    assert "command: rm -rf build (and 1 more lines)" in text
    assert "\x1b" not in text
    assert "  2  Allow" in text


REASONS = [
    "session_ended", "session_completed", "parked", "workspace_missing", "login_required", "in_use",
    "already_resolved", "expired", "already_sent", "uncommitted_changes", "unmerged_commits", "disk_full",
    "stopping",
]  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_ui_4_every_reason_says_what_goes_on(reason: str) -> None:
    """Each reason of the contract has words for what was kept or what to do."""
    assert next_step(Conflict("no", reason=reason), "abc")


def test_ui_4_ambiguous_and_unknown_ids_say_what_there_is() -> None:
    """Candidates are listed; an unknown id points at the list."""
    assert "a1, a2" in next_step(Conflict("ambiguous", candidates=["a1", "a2"]), "a")
    assert "kandev ls" in next_step(NotFound("no such session"), "x")
    login = Conflict("log in", reason="login_required", command="codex login")
    assert "codex login" in next_step(login, "x")


@pytest.mark.parametrize("how", ["native", "injection", "recap", "fresh", "idle", "attached", "already_running", "new"])
def test_ui_4_every_way_of_coming_back_has_words(how: str) -> None:
    """Also one that this version does not know."""
    assert resume_words({"how": how}, "abc")[0].endswith(".")


def test_ui_4_a_resume_that_failed_says_that_nothing_was_deleted() -> None:
    """And what was lost is said where something was."""
    assert resume_words({"error": "boom"}, "abc") == [
        "The session could not be brought back: boom",
        "Nothing was deleted.",
    ]
    assert "Lost: the plan" in resume_words({"how": "fresh", "reason": "rejected", "lost": "the plan"}, "abc")


def test_the_command_line_starts_lean(home: Path) -> None:
    """No event loop, no WebSocket, no msgspec before a command needs them."""
    import subprocess

    program = "import sys, kandev.cli.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"asyncio", "websockets", "msgspec", "rich", "ssl"}.isdisjoint(done.stdout.split())
