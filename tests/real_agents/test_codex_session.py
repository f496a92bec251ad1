"""Codex through the whole product: a session of it outlives kill -9 of the backend, and of Codex itself.

The proof of memory is the model's: its request after the resume holds what only an earlier turn had said.
"""

import contextlib
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from leftovers import processes_naming
from real_agents.conftest import RealAgent
from wire_client import CallFailed, Client

pytestmark = pytest.mark.real_agent

Json = dict[str, Any]

FIRST = "Please remember MARK-ALPHA1."
SECOND = "Which words, besides MARK-BRAVO2?"
NOBODYS_TOKEN = "11111111-2222-4333-8444-555555555555"


class Session:
    """One session of Codex in a worktree, and the client that looks at it."""

    def __init__(self, client: Client, ids: Json) -> None:
        self.client = client
        self.ids = ids

    @property
    def id(self) -> str:
        return str(self.ids["session_id"])

    @classmethod
    @contextlib.asynccontextmanager
    async def new(cls, backend: Backend, repository: Path) -> AsyncIterator["Session"]:
        """A task whose first prompt is FIRST, once its turn has ended well."""
        async with backend.client() as client:
            await client.call("task.subscribe")
            request = {"agent": "codex", "description": FIRST, "repository_path": str(repository)}
            created = await client.call("task.create", request)
            session = cls(client, {"task_id": created["task"]["id"], "session_id": created["session"]["id"]})
            assert (await client.wait_event("session.turn.completed"))["state"] == "completed"
            yield session

    @contextlib.asynccontextmanager
    async def again(self, backend: Backend) -> AsyncIterator["Session"]:
        """The same session seen by a new client, subscribed to all of it."""
        async with backend.client() as client:
            await client.call("session.subscribe", {"session_id": self.id})
            yield Session(client, self.ids)

    async def status(self) -> Json:
        status: Json = await self.client.call("task.session.status", self.ids)
        return status

    async def send(self, text: str) -> None:
        await self.client.call("message.add", {**self.ids, "content": text})

    async def prompt(self, text: str) -> Json:
        """Sends a prompt; the payload of its turn's end."""
        seen = len(self.client.events)
        await self.send(text)
        done: Json = await self.client.wait_event("session.turn.completed", after=seen)
        return done

    async def transcript(self) -> list[Json]:
        page = await self.client.call("message.list", {"session_id": self.id, "limit": 200})
        assert not page["has_more"]
        messages: list[Json] = page["messages"]
        return messages

    async def texts(self, author: str) -> list[str]:
        """What was said, without the notes that Codex makes as text of its own."""
        said = [m["content"] for m in await self.transcript() if m["author_type"] == author and m["type"] == "message"]
        return [text for text in said if not text.startswith("Warning:")]

    async def begin_slow_turn(self) -> None:
        """Sends a prompt that is answered for half a minute, and waits for the beginning of the answer."""
        seen = len(self.client.events)
        await self.send("slow: 300")
        await self.client.wait_event("session.message.delta", lambda delta: "piece 3" in delta["text"], after=seen)


@pytest.fixture
async def codex(codex_home: RealAgent, backend: Backend) -> RealAgent:
    """Codex as the running backend knows it. All its processes name the backend's home too, in TMPDIR."""
    backend.config = codex_home.config()
    await backend.start()
    return codex_home


def assert_remembered(agent: RealAgent) -> None:
    assert agent.model.request_with("MARK-BRAVO2")["marks"] == ["MARK-ALPHA1", "MARK-BRAVO2"]


def row(backend: Backend, column: str) -> Any:
    """A column of the only row in executors_running."""
    with contextlib.closing(sqlite3.connect(backend.home / "kandev.db")) as database:
        return database.execute(f"SELECT {column} FROM executors_running").fetchone()[0]


async def test_codex_remembers_after_the_backend_was_killed(
    codex: RealAgent, backend: Backend, repository: Path
) -> None:
    """Killed while it waited, started again: the session needs a resume, and a prompt is enough for it.

    Codex restores its own memory, in the same worktree, and no message stands in the transcript twice.
    """
    async with Session.new(backend, repository) as session:
        worktree = (await session.status())["worktree_path"]
        assert Path(worktree).is_relative_to(backend.home / "worktrees")
        await backend.kill9()
    await backend.start()

    async with session.again(backend) as session:
        status = await session.status()
        assert (status["state"], status["needs_resume"]) == ("WAITING_FOR_INPUT", True)
        assert (status["resume_reason"], status["is_agent_running"]) == ("agent_not_running", False)

        assert (await session.prompt(SECOND))["state"] == "completed"
        assert_remembered(codex)
        assert worktree in str(codex.model.request_with("MARK-BRAVO2")["body"])
        status = await session.status()
        assert (status["how"], status["worktree_path"]) == ("native", worktree)
        assert await session.texts("user") == [FIRST, SECOND]
        answers = await session.texts("agent")
        assert [answer.count("marks:") for answer in answers] == [1, 1]
        assert answers[1].endswith("marks: MARK-ALPHA1 MARK-BRAVO2")


async def test_state_1_codex_in_a_turn_when_the_backend_was_killed(
    codex: RealAgent, backend: Backend, repository: Path
) -> None:
    """The turn is closed as interrupted, what was said of it is kept once, and the next prompt resumes."""
    async with Session.new(backend, repository) as session, session.again(backend) as watched:
        await watched.begin_slow_turn()
        await backend.kill9()
    await backend.start()

    async with session.again(backend) as session:
        status = await session.status()
        assert (status["state"], status["interrupted"], status["queue_held"]) == (
            "WAITING_FOR_INPUT",
            True,
            "interrupted",
        )
        assert status["last_turn"]["state"] == "interrupted"
        partial = (await session.texts("agent"))[-1]
        assert partial.startswith("piece 1 piece 2 piece 3")

        assert (await session.prompt(SECOND))["state"] == "completed"
        assert_remembered(codex)
        assert (await session.status())["how"] == "native"
        assert await session.texts("user") == [FIRST, "slow: 300", SECOND]
        assert (await session.texts("agent"))[1] == partial


async def test_proc_6_the_launcher_of_codex_is_killed(codex: RealAgent, backend: Backend, repository: Path) -> None:
    """The launched process is only a launcher: with it dead, its children are ended too, and a prompt resumes."""
    async with Session.new(backend, repository) as session, session.again(backend) as watched:
        await watched.begin_slow_turn()
        assert len(processes_naming(str(codex.home))) > 1
        os.kill(row(backend, "agent_pid"), signal.SIGKILL)
        done = await watched.client.wait_event("session.turn.completed", lambda turn: turn["state"] == "interrupted")
        assert done["turn"]["session_id"] == session.id
        await backend.until(lambda: not processes_naming(str(codex.home)))

        assert (await watched.prompt(SECOND))["state"] == "completed"
        assert_remembered(codex)
        assert (await watched.status())["how"] == "native"


async def test_tok_1_codex_does_not_know_the_token(codex: RealAgent, backend: Backend, repository: Path) -> None:
    """The session waits instead of failing, says what happened, and the next message runs in a new agent session."""
    async with Session.new(backend, repository) as session:
        await backend.kill9()
    with contextlib.closing(sqlite3.connect(backend.home / "kandev.db")) as database, database:
        database.execute("UPDATE executors_running SET resume_token = ?", [NOBODYS_TOKEN])
    await backend.start()

    async with session.again(backend) as session:
        with pytest.raises(CallFailed):
            await session.client.call("task.session.resume", {**session.ids, "wait": True})
        status = await session.status()
        assert (status["state"], status["queue_held"], status["acp_session_id"]) == (
            "WAITING_FOR_INPUT",
            "token_rejected",
            "",
        )
        assert "retry_token" in status["recover_actions"]
        task = await session.client.call("task.get", {"task_id": session.ids["task_id"]})
        assert task["task"]["state"] == "REVIEW"
        kinds = [message["metadata"].get("kind") for message in await session.transcript()]
        assert kinds.count("rejected") == 1

        assert (await session.prompt(SECOND))["state"] == "completed"
        assert codex.model.request_with("MARK-BRAVO2")["marks"] == ["MARK-BRAVO2"]
        assert (await session.status())["acp_session_id"]


async def test_wire_12_the_mode_of_codex_is_set_again(codex: RealAgent, backend: Backend, repository: Path) -> None:
    """Codex comes back in its own default mode; the session's is set again before a prompt goes out."""
    async with Session.new(backend, repository) as session:
        answer = await session.client.call("session.set_mode", {"session_id": session.id, "mode_id": "read-only"})
        assert answer["applied"]
        await backend.kill9()
    await backend.start()

    async with session.again(backend) as session:
        assert (await session.prompt(SECOND))["state"] == "completed"
        assert_remembered(codex)
        snapshot = await session.client.call("session.subscribe", {"session_id": session.id})
        assert (snapshot["mode"], snapshot["session"]["mode"]) == ("read-only", "read-only")
        assert "`sandbox_mode` is `read-only`" in str(codex.model.request_with("MARK-BRAVO2")["body"])
