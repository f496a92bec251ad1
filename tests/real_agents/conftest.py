"""Fixtures: real agents, set up in homes of their own and pointed at the fake model server."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kandev.agents import BUILT_IN
from leftovers import end_process, processes_naming
from real_agents.install import PLACE, is_installed, search_path
from real_agents.setups import SETUPS
from runtimes.conftest import engine

__all__ = ["engine"]

TESTS = Path(__file__).parents[1]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A running fake model server: where it listens, and the log of what it was asked."""

    url: str
    log: Path

    def requests(self) -> list[dict[str, Any]]:
        """Every request so far for an answer, oldest first; see fake_model for their fields."""
        return [entry for entry in self._entries() if entry["dialect"]]

    def strange(self) -> list[str]:
        """The paths of requests that no dialect knows."""
        return [entry["path"] for entry in self._entries() if not entry["dialect"]]

    def request_with(self, text: str) -> dict[str, Any]:
        """The last request in whose newest user text this stands; AssertionError when there is none."""
        found = [request for request in self.requests() if text in request["last"]]
        assert found, f"no request of {len(self.requests())} ends with {text!r}"
        return found[-1]

    def _entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


class RealAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An installed agent, ready to be started: by a test itself, or by the backend through its config.toml.

    The command is that of the product; it is found because `env` has a PATH of its own.
    """

    name: str
    env: dict[str, str]
    home: Path
    model: Model

    @property
    def command(self) -> tuple[str, ...]:
        """The words that start it."""
        return SETUPS[self.name].command or BUILT_IN[self.name].command

    def config(self, *lines: str) -> str:
        """The text of config.toml that makes the backend start this agent so; `lines` go into its table."""
        setup = SETUPS[self.name]
        env = "".join(f"{name} = {json.dumps(value)}\n" for name, value in self.env.items())
        own = (f"command = {json.dumps(setup.command)}", *setup.lines) if setup.command else ()
        table = "".join(f"{line}\n" for line in (*own, *lines))
        return f"[agents.{self.name}]\n{table}\n[agents.{self.name}.env]\n{env}"


RealAgents = Callable[[str], RealAgent]
"""The fixture `real_agent`: sets up an agent by its name, or skips the test where it is not installed."""


@contextlib.contextmanager
def serving(log: Path, host: str = "127.0.0.1") -> Iterator[Model]:
    """Runs a fake model server. Its socket listens before it runs, so that nobody has to wait for it."""
    with socket.create_server((host, 0)) as listener:
        command = [sys.executable, "-m", "real_agents.fake_model", "--log", str(log), "--fd", str(listener.fileno())]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()], cwd=TESTS)
        try:
            yield Model(url=f"http://{host}:{listener.getsockname()[1]}", log=log)
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    """A fake model server for one test."""
    with serving(tmp_path / "model.jsonl") as running:
        yield running


@pytest.fixture
def real_agent(tmp_path: Path, model: Model) -> Iterator[RealAgents]:
    """Agents with homes of their own. Whatever of them still runs at the end is killed."""
    homes: list[Path] = []

    def set_up(name: str) -> RealAgent:
        if not is_installed(name):
            pytest.skip(f"{name} is not in {PLACE}: make real-agents puts it there")
        home = tmp_path / f"{name}-home"
        homes.append(home)
        home.mkdir()
        SETUPS[name].write_files(home, model.url)
        env = {
            "PATH": search_path(name),
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            # Anything that the machine's own user keeps elsewhere must not be found.
            **{f"XDG_{kind}_HOME": str(home / place) for kind, place in XDG.items()},
            **SETUPS[name].environment(model.url),
        }
        return RealAgent(name=name, env=env, home=home, model=model)

    yield set_up
    for home in homes:
        for pid in processes_naming(str(home)):
            end_process(pid, naming=str(home))
        shutil.rmtree(home / ".cache", ignore_errors=True)  # a quarter of a gigabyte of Copilot


XDG = {"CONFIG": ".config", "DATA": ".local/share", "STATE": ".local/state", "CACHE": ".cache"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with one commit."""
    path = tmp_path / "repository"
    path.mkdir()
    (path / "README").write_text("a project\n")
    identity = ["-c", "user.name=Test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "README"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=path, check=True)
    return path


@pytest.fixture
def codex_home(real_agent: RealAgents) -> RealAgent:
    """Codex behind its ACP adapter."""
    agent = real_agent("codex")
    return msgspec.structs.replace(agent, env={**agent.env, "CODEX_HOME": str(agent.home / ".codex")})
