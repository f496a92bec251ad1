"""Sessions with the stand-ins of Claude Code and Amp (fakes/stream_agent.py), through the whole server.

The commands are those of the built-in agents; only the PATH leads to other programs.
"""

import contextlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import fakes.stream_agent
from backend import Backend
from wire_client import Client

Json = dict[str, Any]


class Stage:
    """A backend whose claude-code and amp are stand-ins that keep everything in `directory`."""

    def __init__(self, backend: Backend, directory: Path) -> None:
        self.backend = backend
        self.directory = directory
        commands = directory / "bin"
        commands.mkdir(parents=True)
        for program in ("claude", "amp"):
            script = commands / program
            run = f'{sys.executable} {fakes.stream_agent.__file__} {directory} {program} "$@"'
            script.write_text(f"#!/bin/sh\npwd >>{directory}/places\nexec {run}\n")
            script.chmod(0o755)
        path = json.dumps(f"{commands}:/usr/bin:/bin")
        backend.config = f"[agents.claude-code.env]\nPATH = {path}\n[agents.amp.env]\nPATH = {path}\n"

    def set(self, name: str) -> None:
        """Makes the stand-ins behave in one way."""
        (self.directory / name).touch()

    def starts(self) -> list[list[str]]:
        """The arguments of each start, oldest first."""
        lines = (self.directory / "log.jsonl").read_text().splitlines()
        return [json.loads(line)["arguments"] for line in lines]

    def places(self) -> list[Path]:
        """Where each start was."""
        return [Path(line) for line in (self.directory / "places").read_text().splitlines()]

    def row(self) -> Json:
        """The only row in executors_running."""
        with contextlib.closing(sqlite3.connect(self.backend.home / "kandev.db")) as database:
            database.row_factory = sqlite3.Row
            return dict(database.execute("SELECT * FROM executors_running").fetchone())

    def change(self, column: str, value: str) -> None:
        with contextlib.closing(sqlite3.connect(self.backend.home / "kandev.db")) as database, database:
            database.execute(f"UPDATE executors_running SET {column} = ?", [value])


class Talk:
    """One session, and the client that looks at it."""

    def __init__(self, client: Client, ids: Json) -> None:
        self.client = client
        self.ids = ids

    @classmethod
    async def begin(cls, client: Client, agent: str, text: str = "remember apple", *, runtime: str = "") -> "Talk":
        """A new task; '' is the default runtime."""
        await client.call("task.subscribe")
        where = {"runtime": runtime} if runtime else {}
        created = await client.call("task.create", {"agent": agent, "description": text, **where})
        talk = cls(client, {"task_id": created["task"]["id"], "session_id": created["session"]["id"]})
        await talk.follow(client)
        return talk

    async def follow(self, client: Client) -> Json:
        self.client = client
        snapshot: Json = await client.call("session.subscribe", {"session_id": self.ids["session_id"]})
        return snapshot

    async def call(self, action: str, **payload: Any) -> Json:
        answer: Json = await self.client.call(action, {**self.ids, **payload})
        return answer

    async def fork(self) -> "Talk":
        """Another session of the task that begins from this one."""
        request = {"task_id": self.ids["task_id"], "from_session_id": self.ids["session_id"]}
        made = await self.client.call("task.session.create", request)
        copy = Talk(self.client, {"task_id": self.ids["task_id"], "session_id": made["session"]["id"]})
        await copy.follow(self.client)
        return copy

    async def status(self) -> Json:
        return await self.call("task.session.status")

    async def ended(self, *, after: int = 0) -> Json:
        """The end of this session's next turn."""
        mine = self.ids["session_id"]
        turn: Json = await self.client.wait_event(
            "session.turn.completed", lambda ended: ended["turn"]["session_id"] == mine, after=after
        )
        return turn

    async def send(self, text: str) -> int:
        """Sends a prompt; the number of events before."""
        seen = len(self.client.events)
        await self.call("message.add", content=text)
        return seen

    async def say(self, text: str) -> Json:
        return await self.ended(after=await self.send(text))

    async def transcript(self) -> list[Json]:
        page = await self.client.call("message.list", {"session_id": self.ids["session_id"], "limit": 200})
        messages: list[Json] = page["messages"]
        return messages

    async def said(self) -> list[str]:
        """What user and agent said, in order."""
        return [
            m["content"] for m in await self.transcript() if m["author_type"] != "system" and m["type"] == "message"
        ]

    async def notices(self) -> list[str]:
        return [m["metadata"]["kind"] for m in await self.transcript() if m["author_type"] == "system"]
