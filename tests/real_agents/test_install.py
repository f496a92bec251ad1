"""Agents are installed one by one: what is missing for one is told, and keeps no other from it."""

from pathlib import Path

import pytest

from real_agents import install


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for agents, on a machine with neither npm nor Python."""
    monkeypatch.setattr(install, "PLACE", tmp_path / "agents")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "agents"


def test_one_that_cannot_be_installed_does_not_end_the_others(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has its line with the reason, and the count says how many failed."""
    assert install.install_all(["codex", "fast-agent"]) == 2
    first, second = capsys.readouterr().out.splitlines()
    assert first == "codex: NOT installed: npm is not installed"
    assert second.startswith("fast-agent: NOT installed: it needs Python 3.12 or newer")
    assert not install.is_installed("codex")


def test_what_the_machine_cannot_run_is_left_out_of_all(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where everything is asked for, an agent without what it runs on is no failure, but it is said."""
    install.install_all(())
    assert "fast-agent: left out, this machine has not what it runs on" in capsys.readouterr().out.splitlines()


def test_an_agent_is_there_while_its_lock_is_that_of_the_checkout(place: Path) -> None:
    """A newer lock means another install; Node's counts too."""
    for package in ("node", "codex"):
        (place / package).mkdir(parents=True)
        lock = (install.PACKAGES / package / "package-lock.json").read_bytes()
        (place / package / "installed.lock").write_bytes(lock)
    assert install.is_installed("codex")
    (place / "node" / "installed.lock").write_text("older")
    assert not install.is_installed("codex")
