"""The version that a program tells of itself, asked with care: it may be slow, talkative, or start children."""

import os
import signal
import time
from pathlib import Path

import pytest

from kandev.agents import AgentConfig
from kandev.orchestrator import installed_version as module
from kandev.orchestrator.installed_version import installed_version


def agent(directory: Path, script: str) -> tuple[AgentConfig, dict[str, str]]:
    """An agent whose program is a shell script, and an environment that finds it."""
    program = directory / "the-agent"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    config = AgentConfig(name="a", display_name="A", command=("the-agent",), version_command=("the-agent", "--version"))
    return config, {"PATH": f"{directory}:/usr/bin:/bin", "HOME": str(directory)}


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("0.61.0", "0.61.0"),
        ("GitHub Copilot CLI 1.0.102.\nRun 'copilot update'", "1.0.102"),
        ("@agentclientprotocol/codex-acp 2.6.0", "2.6.0"),
        ("0.36.0 (commit 7c61e5bb)", "0.36.0"),
        ("v2.0.0-beta.1+5", "2.0.0-beta.1+5"),
        ("no number", ""),
        ("", ""),
    ],
)
async def test_the_version_is_found_in_what_the_program_writes(tmp_path: Path, said: str, version: str) -> None:
    """The first number with a dot counts, whatever stands around it."""
    (tmp_path / "said").write_text(said)
    config, environ = agent(tmp_path, f'[ "$1" = --version ] && cat {tmp_path}/said')
    assert await installed_version(config, environ) == version


async def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said until then counts; nothing of it runs on."""
    monkeypatch.setattr(module, "ANSWER_S", 0.5)
    config, environ = agent(tmp_path, f"echo 1.2.3; sleep 600 & echo $! > {tmp_path}/child; exec sleep 600")
    assert await installed_version(config, environ) == "1.2.3"
    assert gone(int((tmp_path / "child").read_text()))


async def test_a_child_that_outlives_the_program_does_not_hold_the_answer_up(tmp_path: Path) -> None:
    """A launcher ends at once and leaves a child that holds its stdout."""
    config, environ = agent(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child; echo 1.2.3")
    assert await installed_version(config, environ) == "1.2.3"
    assert gone(int((tmp_path / "child").read_text()))


async def test_a_program_gets_a_directory_of_its_own_for_what_it_leaves(tmp_path: Path) -> None:
    """Some leave megabytes in TMPDIR at every start; it is removed."""
    config, environ = agent(tmp_path, f'echo "$TMPDIR" > {tmp_path}/where; echo mess > "$TMPDIR/mess"; echo 1.0')
    assert await installed_version(config, environ) == "1.0"
    assert not Path((tmp_path / "where").read_text().strip()).exists()


@pytest.mark.parametrize("command", [(), ("not-there", "--version"), ("broken", "--version")])
async def test_without_a_program_there_is_no_version(tmp_path: Path, command: tuple[str, ...]) -> None:
    """No command, no program, or a file that cannot be executed."""
    (tmp_path / "broken").write_text("no shebang, no binary \x00\x01")
    (tmp_path / "broken").chmod(0o755)
    config = AgentConfig(name="a", display_name="A", command=("a",), version_command=command)
    assert await installed_version(config, {"PATH": str(tmp_path)}) == ""


def gone(pid: int) -> bool:
    """True once the process ends or is a zombie; a killed one may need a moment."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return False
