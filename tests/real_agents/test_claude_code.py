"""Claude Code's own command line through the whole product: memory, permissions, cancel and login, and a lost token.

The proof of memory is the model's: its request after the resume holds what only an earlier turn had said.
"""

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from leftovers import processes_naming
from real_agents.conftest import RealAgent, RealAgents
from wire_client import CallFailed, Client

pytestmark = pytest.mark.real_agent

Json = dict[str, Any]

FIRST = "Please remember MARK-ALPHA1."
SECOND = "Which words, besides MARK-BRAVO2?"
NOBODYS = "11111111-2222-4333-8444-555555555555"


class Session:
    """One session of Claude Code, and the client that looks at it."""

    def __init__(self, client: Client, ids: Json) -> None:
        self.client = client
        self.ids = ids

    @classmethod
    @contextlib.asynccontextmanager
    async def new(cls, backend: Backend, text: str = FIRST, *, state: str = "completed") -> AsyncIterator["Session"]:
        """A task whose first prompt is `text`, once its turn has ended in `state`."""
        async with backend.client() as client:
            await client.call("task.subscribe")
            created = await client.call("task.create", {"agent": "claude-code", "description": text})
            session = cls(client, {"task_id": created["task"]["id"], "session_id": created["session"]["id"]})
            assert (await client.wait_event("session.turn.completed"))["state"] == state
            yield session

    @contextlib.asynccontextmanager
    async def again(self, backend: Backend) -> AsyncIterator["Session"]:
        """The same session seen by a new client, subscribed to all of it."""
        async with backend.client() as client:
            await client.call("session.subscribe", {"session_id": self.ids["session_id"]})
            yield Session(client, self.ids)

    async def call(self, action: str, **payload: Any) -> Json:
        answer: Json = await self.client.call(action, {**self.ids, **payload})
        return answer

    async def status(self) -> Json:
        return await self.call("task.session.status")

    async def prompt(self, text: str) -> Json:
        """Sends a prompt; the payload of its turn's end."""
        seen = len(self.client.events)
        await self.call("message.add", content=text)
        done: Json = await self.client.wait_event("session.turn.completed", after=seen)
        return done

    async def ask(self, text: str) -> tuple[Json, int]:
        """Sends a prompt that makes the agent ask for permission: the request, and the number of events so far."""
        seen = len(self.client.events)
        await self.call("message.add", content=text)
        asked = await self.client.wait_event("permission.requested", after=seen)
        return asked["request"], seen

    async def answer(self, request: Json, option: str, seen: int) -> Json:
        """Answers a permission request; the payload of the turn's end."""
        await self.call("permission.respond", request_id=request["id"], option_id=option)
        done: Json = await self.client.wait_event("session.turn.completed", after=seen)
        return done

    async def transcript(self) -> list[Json]:
        page = await self.client.call("message.list", {"session_id": self.ids["session_id"], "limit": 200})
        messages: list[Json] = page["messages"]
        return messages

    async def texts(self, author: str) -> list[str]:
        said = [m for m in await self.transcript() if m["author_type"] == author and m["type"] == "message"]
        return [message["content"] for message in said]

    async def kinds(self) -> list[str]:
        """The kinds of what the server itself says."""
        return [m["metadata"]["kind"] for m in await self.transcript() if m["author_type"] == "system"]

    async def begin_slow_turn(self) -> None:
        """Sends a prompt that is answered for half a minute, and waits for the beginning of the answer."""
        seen = len(self.client.events)
        await self.call("message.add", content="slow: 300")
        await self.client.wait_event("session.message.delta", lambda delta: "piece 3" in delta["text"], after=seen)


@pytest.fixture
async def claude(real_agent: RealAgents, backend: Backend) -> RealAgent:
    """Claude Code as the running backend knows it."""
    agent = real_agent("claude-code")
    backend.config = agent.config()
    await backend.start()
    return agent


def row(backend: Backend) -> Json:
    """The only row in executors_running."""
    with contextlib.closing(sqlite3.connect(backend.home / "kandev.db")) as database:
        database.row_factory = sqlite3.Row
        return dict(database.execute("SELECT * FROM executors_running").fetchone())


def change_row(backend: Backend, column: str, value: str) -> None:
    with contextlib.closing(sqlite3.connect(backend.home / "kandev.db")) as database, database:
        database.execute(f"UPDATE executors_running SET {column} = ?", [value])


def assert_remembered(agent: RealAgent) -> None:
    assert agent.model.request_with("MARK-BRAVO2")["marks"] == ["MARK-ALPHA1", "MARK-BRAVO2"]


async def test_claude_code_remembers_after_the_backend_was_killed(claude: RealAgent, backend: Backend) -> None:
    """Killed while it waited: a prompt resumes it with --resume, from the last message, and nothing is said twice."""
    async with Session.new(backend) as session:
        await backend.kill9()
    stored = row(backend)
    assert stored["resume_token"]
    assert stored["last_message_uuid"]
    await backend.start()

    async with session.again(backend) as session:
        assert (await session.status())["resume_reason"] == "agent_not_running"
        await session.call("task.session.resume", wait=True)
        (command,) = [one for one in map(command_of, processes_naming(str(claude.home))) if "--resume" in one]
        assert command[command.index("--resume-session-at") + 1] == stored["last_message_uuid"]

        assert (await session.prompt(SECOND))["state"] == "completed"
        assert_remembered(claude)
        assert (await session.status())["how"] == "native"
        assert row(backend)["resume_token"] == stored["resume_token"]
        assert await session.texts("user") == [FIRST, SECOND]
        assert [answer.count("marks:") for answer in await session.texts("agent")] == [1, 1]


async def test_state_1_claude_code_in_a_turn_when_the_backend_was_killed(claude: RealAgent, backend: Backend) -> None:
    """The turn is interrupted, what was said is kept once, and the agent still knows the interrupted prompt.

    The session does not go on at its last message: that would take the interrupted turn out of the agent's memory.
    """
    async with Session.new(backend) as session, session.again(backend) as watched:
        await watched.begin_slow_turn()
        await backend.kill9()
    await backend.start()

    async with session.again(backend) as session:
        status = await session.status()
        assert (status["state"], status["interrupted"]) == ("WAITING_FOR_INPUT", True)
        partial = (await session.texts("agent"))[-1]
        assert partial.startswith("piece 1 piece 2 piece 3")

        assert (await session.prompt(SECOND))["state"] == "completed"
        assert_remembered(claude)
        assert "slow: 300" in str(claude.model.request_with("MARK-BRAVO2")["body"])
        assert await session.texts("user") == [FIRST, "slow: 300", SECOND]
        assert (await session.texts("agent"))[1] == partial


async def test_tok_5_claude_code_killed_in_its_first_turn(claude: RealAgent, backend: Backend) -> None:
    """No turn had ended, but Claude Code had stored the prompt: it is resumed all the same."""
    async with backend.client() as client:
        await client.call("task.subscribe")
        created = await client.call("task.create", {"agent": "claude-code", "description": "slow: 300\nMARK-ALPHA1"})
        session = Session(client, {"task_id": created["task"]["id"], "session_id": created["session"]["id"]})
        await client.call("session.subscribe", {"session_id": session.ids["session_id"]})
        await client.wait_event("session.message.delta")
        await backend.kill9()
    await backend.start()
    async with session.again(backend) as session:
        assert (await session.prompt(SECOND))["state"] == "completed"
        assert_remembered(claude)
        assert (await session.status())["how"] == "native"


async def test_tok_1_claude_code_does_not_know_the_token(claude: RealAgent, backend: Backend) -> None:
    """It says so and ends; the session waits, says what happened, and the next message starts a new one."""
    async with Session.new(backend) as session:
        await backend.kill9()
    change_row(backend, "resume_token", NOBODYS)
    await backend.start()

    async with session.again(backend) as session:
        with pytest.raises(CallFailed):
            await session.call("task.session.resume", wait=True)
        status = await session.status()
        assert (status["state"], status["queue_held"], status["acp_session_id"]) == (
            "WAITING_FOR_INPUT",
            "token_rejected",
            "",
        )
        assert (await session.kinds()).count("rejected") == 1

        assert (await session.prompt(SECOND))["state"] == "completed"
        assert claude.model.request_with("MARK-BRAVO2")["marks"] == ["MARK-BRAVO2"]
        assert row(backend)["resume_token"] not in {"", NOBODYS}


async def test_tok_16_claude_code_does_not_know_the_message(claude: RealAgent, backend: Backend) -> None:
    """The session is there, only the message to go on at is not: it is resumed without, and nothing is lost."""
    async with Session.new(backend) as session:
        await backend.kill9()
    change_row(backend, "last_message_uuid", NOBODYS)
    await backend.start()

    async with session.again(backend) as session:
        assert (await session.prompt(SECOND))["state"] == "completed"
        assert_remembered(claude)
        assert (await session.status())["how"] == "native"


async def test_perm_1_claude_code_asks(claude: RealAgent, backend: Backend) -> None:
    """Allowed once it runs, refused it does not, and always is not asked again."""
    made = claude.home / "made"
    async with Session.new(backend) as session:
        request, seen = await session.ask(f"tool: touch {made}")
        options = [option["option_id"] for option in request["options"]]
        assert (options, request["tool_call"]["kind"]) == (["allow_once", "allow_always", "deny"], "execute")
        assert (await session.answer(request, "deny", seen))["state"] == "completed"
        assert not made.exists()

        request, seen = await session.ask(f"tool: touch {made}")
        assert (await session.answer(request, "allow_once", seen))["state"] == "completed"
        assert made.exists()
        (call,) = [m for m in await session.transcript() if m["metadata"].get("status") == "completed"]
        assert (call["type"], call["content"]) == ("tool_call", f"touch {made}")

        made.unlink()
        request, seen = await session.ask(f"tool: touch {made}")
        assert (await session.answer(request, "allow_always", seen))["state"] == "completed"
        made.unlink()
        assert (await session.prompt(f"tool: touch {made}"))["state"] == "completed"
        assert made.exists()


async def test_prompt_7_claude_code_is_interrupted(claude: RealAgent, backend: Backend) -> None:
    """A cancel ends the turn, in the middle of text or of a question; the same process takes the next prompt."""
    async with Session.new(backend) as session, session.again(backend) as watched:
        await watched.begin_slow_turn()
        seen = len(watched.client.events)
        await watched.call("task.session.cancel")
        done = await watched.client.wait_event("session.turn.completed", after=seen)
        assert (done["state"], done["stop_reason"]) == ("cancelled", "cancelled")

        pid = row(backend)["agent_pid"]
        _, seen = await watched.ask(f"tool: touch {claude.home / 'made'}")
        await watched.call("task.session.cancel")
        done = await watched.client.wait_event("session.turn.completed", after=seen)
        assert done["state"] == "cancelled"
        assert (await watched.prompt(SECOND))["state"] == "completed"
        # Claude Code puts this prompt into the message that holds the refused tool's result.
        assert claude.model.requests()[-1]["marks"] == ["MARK-ALPHA1", "MARK-BRAVO2"]
        assert row(backend)["agent_pid"] == pid


async def test_wire_12_the_mode_of_claude_code_is_set_again(claude: RealAgent, backend: Backend) -> None:
    """It comes back in the mode of its command line; the session's is set before a prompt goes out."""
    async with Session.new(backend) as session:
        assert (await session.call("session.set_mode", mode_id="plan"))["applied"]
        with pytest.raises(CallFailed, match="must be one of"):
            await session.call("session.set_mode", mode_id="nonsense")
        await backend.kill9()
    await backend.start()
    async with session.again(backend) as session:
        assert (await session.prompt(SECOND))["state"] == "completed"
        snapshot = await session.client.call("session.subscribe", {"session_id": session.ids["session_id"]})
        assert (snapshot["mode"], snapshot["session"]["mode"]) == ("plan", "plan")
        assert "Plan mode is active" in str(claude.model.request_with("MARK-BRAVO2")["body"])


async def test_claude_code_begins_with_a_copy_of_another_session(claude: RealAgent, backend: Backend) -> None:
    """The copy remembers what the other one was told; the other one hears nothing of the copy."""
    async with Session.new(backend) as session:
        request = {"task_id": session.ids["task_id"], "from_session_id": session.ids["session_id"]}
        made = await session.client.call("task.session.create", request)
        copy = Session(session.client, {**session.ids, "session_id": made["session"]["id"]})
        await session.client.call("session.subscribe", {"session_id": made["session"]["id"]})
        assert (await copy.prompt(SECOND))["state"] == "completed"
        assert_remembered(claude)
        assert (await copy.status())["how"] == "native"

        await session.client.call("session.subscribe", {"session_id": session.ids["session_id"]})
        assert (await session.prompt("And now, MARK-CHARLIE3?"))["state"] == "completed"
        assert claude.model.request_with("MARK-CHARLIE3")["marks"] == ["MARK-ALPHA1", "MARK-CHARLIE3"]


async def test_wire_12_the_model_of_claude_code_is_set(real_agent: RealAgents, backend: Backend) -> None:
    """By a control request at each start: the first request to the model names it already."""
    agent = real_agent("claude-code")
    backend.config = agent.config('model = "haiku"')
    await backend.start()
    async with Session.new(backend):
        assert "haiku" in agent.model.request_with("MARK-ALPHA1")["body"]["model"]


async def test_tok_13_claude_code_is_not_logged_in(real_agent: RealAgents, backend: Backend) -> None:
    """Its own words for it hold the queue and name the command; with the key there the prompt goes out."""
    agent = real_agent("claude-code")
    backend.config = agent.config().replace('ANTHROPIC_API_KEY = "sk-test"\n', "")
    await backend.start()
    async with Session.new(backend, state="failed") as session:
        status = await session.status()
        assert (status["queue_held"], status["needs"]) == ("login_required", "login")
        (notice,) = [m for m in await session.transcript() if m["metadata"].get("kind") == "login"]
        assert "claude auth login" in notice["content"]
        assert await session.texts("agent") == []


def command_of(pid: int) -> list[str]:
    """The words that a process was started with."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
