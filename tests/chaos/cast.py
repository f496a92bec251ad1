"""The sessions of an episode: who plays, where, and what was sent to it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from chaos import script
from chaos.places import INSTANCE, Name, Place
from conversation import Cast
from fakes import FakeAgent
from invariants import request_in

PARTS: Final[Sequence[tuple[str, bool, dict[str, Any]]]] = (
    ("native", False, {"exit_delay": 0.5}),
    ("history", True, {"exit_delay": 0.2}),
    ("native", True, {"resume": False}),
    ("history", False, {}),
    ("native", True, {"message_ids": False}),
    ("native", False, {"ignore_eof": True, "ignore_sigterm": True}),
)
"""Kind of agent, whether it works in a git worktree, and what is special about it."""


class Sent(msgspec.Struct, kw_only=True):
    """A prompt that a client sent. `state`: sending, acknowledged, refused; `withdrawn`: '', asked, done."""

    client_id: str
    text: str
    state: str = "sending"
    message_id: str = ""
    withdrawn: str = ""
    tries: int = 0


class Part:
    """One session of the episode, its agent, and all that was asked of it."""

    def __init__(self, number: int, name: str, agent: FakeAgent, *, worktree: bool) -> None:
        self.number = number
        self.name = name
        self.agent = agent
        self.kind = name.partition("-")[0]
        self.worktree = worktree
        self.task_id = ""
        self.session_id = ""
        self.sent: dict[str, Sent] = {}
        self.fresh_starts = 0

    @property
    def ids(self) -> dict[str, str]:
        """What every action on the session names."""
        return {"task_id": self.task_id, "session_id": self.session_id}

    def __str__(self) -> str:
        place = "worktree" if self.worktree else "empty directory"
        return f"s{self.number} {self.session_id} ({self.kind}, {place}, agent {self.name})"

    def deliveries(self, place: Place) -> list["Delivery"]:
        """Every prompt that reached the agent, in order, with the marks that its turn got to."""
        found: list[Delivery] = []
        running: dict[Name, Delivery] = {}
        for process, entry in place.named(self.agent.entries()):
            message = entry.get("message") or {}
            if message.get("method") == "session/prompt":
                blocks = message["params"]["prompt"]
                text = request_in("\n".join(block["text"] for block in blocks if block["type"] == "text"))
                one = Delivery(text=text, process=process, agent_session=message["params"]["sessionId"])
                if process in running:
                    running[process].last = False
                found.append(one)
                running[process] = one
            elif entry.get("event") == "mark" and process in running:
                running[process].marks.append(entry["name"])
        return found


class Delivery(msgspec.Struct, kw_only=True):
    """A prompt as a process of the agent got it; `last`: it got none after it."""

    text: str
    process: Name
    agent_session: str
    last: bool = True
    marks: list[str] = msgspec.field(default_factory=list)


def config_of(cast: Cast, runtime: str) -> str:
    """The text of config.toml that names the agents: in a container they are programs of its own Python."""
    return cast.config.replace(json.dumps(sys.executable), '"python3"') if runtime == "docker" else cast.config


def make_parts(cast: Cast) -> list[Part]:
    """Takes an agent for each session."""
    parts = []
    for number, (kind, worktree, special) in enumerate(PARTS):
        rules: dict[str, Any] = {"session/prompt": script.rules()}
        name, agent = cast.take(kind, on=rules, lock=True, log_env=[INSTANCE], **special)
        parts.append(Part(number, name, agent, worktree=worktree))
    return parts


def make_repository(directory: Path) -> str:
    """A repository with one commit, for worktrees."""
    who = ("-c", "user.name=Chaos", "-c", "user.email=chaos@localhost")
    directory.mkdir()
    (directory / "README").write_text("chaos\n")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "first")):
        _git(directory, *words)
    return str(directory)


def _git(directory: Path, *words: str) -> None:
    clean = {"PATH": os.environ["PATH"], "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "-C", str(directory), *words], check=True, env=clean, capture_output=True)


def by_session(parts: Sequence[Part]) -> dict[str, Part]:
    """The sessions by their ids."""
    return {part.session_id: part for part in parts}
