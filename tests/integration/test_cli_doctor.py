"""`kandev doctor` on real homes: what it finds, what it mends, and what it leaves alone."""

import fcntl
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import kandev.store
from kandev.agentctl.identity import AgentIdentity, Identity, write_identity
from kandev.agentctl.platform import boot_id, process_stat
from kandev.cli.__main__ import cli
from kandev.home import Home
from kandev.store.migrator import APPLICATION_ID, load_migrations, migrate

NOW = "2026-01-01T00:00:00.000Z"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in [name for name in os.environ if name.startswith("KANDEV_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KANDEV_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KANDEV__SERVER__PORT", "0")
    home = Home(tmp_path / "home")
    home.prepare()
    return home


@pytest.fixture
def database(home: Home) -> Home:
    """A home with a database of this version, 0600."""
    with closing(sqlite3.connect(home.database, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        migrate(connection, load_migrations(Path(kandev.store.__file__).parent / "migrations"), backups=home.backups)
    home.database.chmod(0o600)
    return home


def add_session(
    home: Home, identity: str, state: str, *, instance: str = "", runtime: str = "standalone", **session: Any
) -> None:
    values = {"id": identity, "task_id": "t", "agent": "demo", "agent_config": "{}", "runtime": runtime, "state": state}
    values |= {"created_at": NOW, "updated_at": NOW} | session
    with closing(sqlite3.connect(home.database, isolation_level=None)) as connection:
        connection.execute(
            "INSERT OR IGNORE INTO tasks (id, title, description, state, created_at, updated_at)"
            " VALUES ('t', '', '', 'REVIEW', ?, ?)",
            (NOW, NOW),
        )
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO task_sessions ({names}) VALUES ({marks})", tuple(values.values()))
        connection.execute(
            "INSERT INTO executors_running (session_id, task_id, runtime, status, instance_id, worktree_path,"
            " worktree_branch, created_at, updated_at) VALUES (?, 't', ?, 'ready', ?, '/nowhere', 'kandev/x', ?, ?)",
            (identity, runtime, instance, NOW, NOW),
        )


def examine(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    result = CliRunner().invoke(cli, ["doctor", "--json", *arguments])
    return result.exit_code, json.loads(result.output)["findings"]


def about(findings: list[dict[str, Any]], check: str, word: str = "") -> dict[str, Any]:
    return next(one for one in findings if one["check"] == check and word in one["text"])


def test_a_home_that_is_not_there_yet_is_no_problem_and_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first start there is nothing to mend, and looking changes nothing."""
    monkeypatch.setenv("KANDEV_HOME", str(tmp_path / "none"))
    code, findings = examine("--fix")
    assert code == 0
    assert about(findings, "home")["level"] == "note"
    assert not (tmp_path / "none").exists()


def test_tok_9_files_that_others_may_read_are_made_private(database: Home) -> None:
    """--fix takes the rights of group and others away, and says so."""
    database.token.write_text("secret")
    database.token.chmod(0o644)
    _, findings = examine()
    assert about(findings, "home", "token")["can_fix"]
    assert database.token.stat().st_mode & 0o777 == 0o644
    _, findings = examine("--fix")
    assert about(findings, "home", "token")["fixed"]
    assert database.token.stat().st_mode & 0o777 == 0o600


def test_the_server_file_of_a_killed_backend_is_removed(database: Home) -> None:
    """It names a process that is gone, and nobody holds the lock."""
    database.lock.touch(0o600)
    database.server_file.write_text(json.dumps({"pid": 2**22 + 1, "url": "http://127.0.0.1:1"}))
    database.server_file.chmod(0o600)
    _, findings = examine("--fix")
    assert about(findings, "backend")["fixed"]
    assert not database.server_file.exists()


def test_race_8_a_backend_is_known_by_its_lock_which_is_never_taken(database: Home) -> None:
    """The holder's pid is read from the kernel's list."""
    with database.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _, findings = examine("--fix")
    assert str(os.getpid()) in about(findings, "backend")["text"]


def test_proc_5_a_port_that_is_taken_is_named(database: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the start, not by it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("KANDEV__SERVER__PORT", str(other.getsockname()[1]))
        _, findings = examine()
    assert about(findings, "port")["level"] == "warning"


def test_a_wrong_configuration_is_a_problem_and_the_rest_is_still_examined(database: Home) -> None:
    """One mistake does not hide the others."""
    database.config_file.write_text("[server]\nport = 'x'\n")
    code, findings = examine()
    assert code == 1
    assert about(findings, "config")["level"] == "problem"
    assert about(findings, "database")["level"] == "ok"


def test_sessions_that_need_somebody_are_told(database: Home) -> None:
    """Running when the backend ended, parked, failed, and one whose folder is gone."""
    add_session(database, "running", "RUNNING")
    add_session(database, "parked", "WAITING_FOR_INPUT", parked_reason="ended five times")
    add_session(database, "failed", "FAILED", error_message="no such command")
    code, findings = examine()
    assert code == 0
    assert about(findings, "session", "running (demo) is RUNNING, but its backend ended")["mend"]
    assert "kandev recover parked" in about(findings, "session", "ended five times")["mend"]
    assert about(findings, "session", "no such command")["level"] == "note"
    assert "kandev/x" in about(findings, "session", "running: the folder /nowhere")["mend"]


@pytest.mark.parametrize(
    ("table", "runtime"),
    [
        ('[runtimes.docker]\nimage = "i"\nhost = "unix:///nowhere/docker.sock"\n', "docker"),
        ('[runtimes.docker]\nimage = "i"\nhost = "tcp://127.0.0.1:1"\n', "docker"),
        ('[runtimes.remote_docker]\nhost = "ssh://127.0.0.1:1"\n', "remote_docker"),
        ('[runtimes.remote_docker]\nhost = "tcp://127.0.0.1:1"\n', "remote_docker"),
    ],
)
def test_an_engine_that_does_not_answer_is_a_line_and_no_failure(database: Home, table: str, runtime: str) -> None:
    """Its containers were not looked at, and that is said."""
    database.identity()
    database.config_file.write_text(table)
    code, findings = examine("--fix")
    assert code == 0
    found = about(findings, "container", f"{runtime}: its containers were not looked at.")
    assert (found["level"], found["can_fix"]) == ("note", False)


def test_no_engine_is_asked_where_none_is_used(database: Home) -> None:
    """Nor is anything said."""
    database.identity()
    assert [one for one in examine()[1] if one["check"] == "container"] == []


def test_a_damaged_database_is_a_problem_and_is_left_as_it_is(database: Home) -> None:
    """The copies from before migrations are named; nothing is written."""
    add_session(database, "s", "RUNNING")
    data = bytearray(database.database.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    database.database.write_bytes(data)
    code, findings = examine("--fix")
    assert code == 1
    assert str(database.backups) in about(findings, "database")["mend"]
    assert database.database.read_bytes() == data


def test_another_programs_database_is_left_alone(home: Home) -> None:
    """A file that kandev did not make is named, not opened for writing."""
    home.database.write_bytes(b"something else" * 20)
    code, findings = examine("--fix")
    assert code == 1
    assert "another program" in about(findings, "database")["text"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for an agentctl that outlived its backend; it is its own agent as well."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True) as process:
        yield process
        process.kill()


def leave_behind(home: Home, instance: str, pid: int) -> None:
    directory = home.run / instance
    directory.mkdir(mode=0o700, parents=True)
    found = process_stat(pid)
    assert found is not None
    agent = AgentIdentity(pid=pid, start_time=found.start_time, pgid=pid)
    write_identity(
        str(directory),
        Identity(
            api_version=1,
            instance_id=directory.name,
            nonce="n",
            pid=pid,
            start_time=found.start_time,
            boot_id=boot_id(),
            agent=agent,
        ),
    )


def test_proc_2_processes_that_outlived_their_backend_are_ended(
    database: Home, sleeper: subprocess.Popen[bytes]
) -> None:
    """They are proven by identity; without --fix they are only named."""
    add_session(database, "s", "WAITING_FOR_INPUT", instance="i1")
    leave_behind(database, "i1", sleeper.pid)
    _, findings = examine()
    assert str(sleeper.pid) in about(findings, "process")["text"]
    assert sleeper.poll() is None
    _, findings = examine("--fix")
    assert about(findings, "process")["fixed"]
    assert sleeper.wait(20) != 0


def test_a_detached_agent_is_not_a_leftover(database: Home, sleeper: subprocess.Popen[bytes]) -> None:
    """It goes on without a backend on purpose, and the next one takes it over."""
    add_session(database, "s", "RUNNING", instance="i1", runtime="detached")
    leave_behind(database, "detached/i1", sleeper.pid)
    _, findings = examine("--fix")
    assert not about(findings, "process")["can_fix"]
    assert sleeper.poll() is None


def test_a_detached_agent_that_no_session_names_is_a_stray(database: Home, sleeper: subprocess.Popen[bytes]) -> None:
    """Its session was deleted, or its id never stored: it is found, and ended by --fix."""
    add_session(database, "s", "RUNNING", instance="another", runtime="detached")
    leave_behind(database, "detached/i1", sleeper.pid)
    _, findings = examine()
    assert str(sleeper.pid) in about(findings, "process")["text"]
    _, findings = examine("--fix")
    assert about(findings, "process")["fixed"]
    assert sleeper.wait(20) != 0


def test_tok_13_a_login_that_an_agent_asked_for_is_told_with_its_command(database: Home) -> None:
    """In its own words, with its ways to log in, and with what goes on afterwards; a good login is no finding."""
    answer = {"agentInfo": {"version": "1.2"}, "authMethods": [{"id": "web", "name": "In the browser"}]}
    (database.path / "config.toml").write_text('[agents.demo]\nlogin_hint = "demo login"\n')
    with closing(sqlite3.connect(database.database, isolation_level=None)) as connection:
        connection.execute(
            "INSERT INTO agent_versions (agent, version, initialize, first_seen_at, seen_at)"
            " VALUES ('demo', '1.2', ?, ?, ?), ('demo-history', '1.2', '{}', ?, ?)",
            (json.dumps(answer), NOW, NOW, NOW, NOW),
        )
        connection.execute(
            "INSERT INTO agent_logins (agent, state, said, at) VALUES"
            " ('demo', 'needed', 'Who are you?', ?), ('demo-history', 'worked', '', ?)",
            (NOW, NOW),
        )
    code, findings = examine()
    (login,) = [one for one in findings if one["check"] == "login"]
    assert login["level"] == "warning"
    assert "demo asked for a login (Who are you?). Its ways to log in: In the browser." in login["text"]
    assert login["mend"] == "demo login; then: kandev resume SESSION"
    assert "version 1.2 ran last" in about(findings, "agent", "demo:")["text"]
    assert code == 0


def test_gemini_that_is_to_restore_needs_its_clean_up_off(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting is looked up in the agent's own file, and only where the configuration wants it to restore."""
    program = tmp_path / "gemini"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GEMINI_CLI_HOME", raising=False)
    assert not [one for one in examine()[1] if "sessionRetention" in one["text"]]
    (home.path / "config.toml").write_text("[agents.gemini]\nnative_session_resume = true\n")
    assert about(examine()[1], "agent", "sessionRetention")["level"] == "warning"
    settings = tmp_path / ".gemini" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"general": {"sessionRetention": {"enabled": false}}}')
    assert not [one for one in examine()[1] if "sessionRetention" in one["text"]]
