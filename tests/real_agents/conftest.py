"""Fixtures: a real agent, set up in a home of its own and pointed at the fake model server."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leftovers import end_process, processes_naming
from real_agents import fake_model
from real_agents.install import InstallFailed, install

CODEX_CONFIG = """\
model = "gpt-5"
model_provider = "fake"
approval_policy = "on-request"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

# At its start it would ask another host for the list of its plugins.
[features]
plugins = false

[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
requires_openai_auth = false
request_max_retries = 1
stream_max_retries = 0
"""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A running fake model server: where it listens, and the log of what it was asked."""

    url: str
    log: Path

    def requests(self) -> list[dict[str, Any]]:
        """Every request so far for an answer, oldest first; see fake_model.py for their fields."""
        if not self.log.exists():
            return []
        entries = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [entry for entry in entries if entry["path"].endswith("/responses")]

    def request_with(self, text: str) -> dict[str, Any]:
        """The last request in whose newest user text this stands; AssertionError when there is none."""
        found = [request for request in self.requests() if text in request["last"]]
        assert found, f"no request of {len(self.requests())} ends with {text!r}"
        return found[-1]


class RealAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An installed agent, ready to be started: by a test itself, or by the backend through its config.toml."""

    name: str
    command: tuple[str, ...]
    env: dict[str, str]
    home: Path
    model: Model

    def config(self) -> str:
        """The lines of config.toml that make the backend start this agent under its own name."""
        env = "".join(f"{name} = {json.dumps(value)}\n" for name, value in self.env.items())
        return f"[agents.{self.name}]\ncommand = {json.dumps(self.command)}\n\n[agents.{self.name}.env]\n{env}"


@pytest.fixture(scope="session")
def agents_bin() -> Path:
    """The folder of the installed agents' commands. Without npm or its registry the test is skipped."""
    try:
        return install()
    except InstallFailed as failed:
        pytest.skip(f"real agents are not here: {failed}")


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    """A fake model server for one test. Its socket listens before it runs, so that nobody has to wait for it."""
    log = tmp_path / "model.jsonl"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, fake_model.__file__, "--log", str(log), "--fd", str(listener.fileno())]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()])
        try:
            yield Model(url=f"http://127.0.0.1:{listener.getsockname()[1]}", log=log)
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def codex_home(tmp_path: Path, agents_bin: Path, model: Model) -> Iterator[RealAgent]:
    """Codex behind its ACP adapter, with a home of its own. Whatever of it still runs at the end is killed."""
    home = tmp_path / "codex-home"
    (home / ".codex").mkdir(parents=True)
    (home / ".codex" / "config.toml").write_text(CODEX_CONFIG.format(url=model.url))
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CODEX_HOME": str(home / ".codex"),
        "OPENAI_API_KEY": "sk-test",
        "NO_BROWSER": "1",
        "LANG": "C.UTF-8",
    }
    yield RealAgent(name="codex", command=(str(agents_bin / "codex-acp"),), env=env, home=home, model=model)
    for pid in processes_naming(str(home)):
        end_process(pid, naming=str(home))
