"""Sessions with fake agents, driven as any client drives them: by actions and events of the WebSocket.

    cast = Cast(tmp_path / "agents")
    async with Backend(tmp_path, config=cast.config) as backend:
        await backend.start()
        async with backend.client() as client:
            session = await cast.conversation(client, "native")
            await session.begin("remember apple")
            await session.lose_agent()
            assert (await session.resume())["how"] == "native"

Nothing here knows the inside of the server; the states, the kinds of notices and the reasons are the public ones.
"""

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fakes import FakeAgent, end
from wire_client import CallFailed, Client

FLAGS = {
    "native": "native_session_resume = true",
    "minute": "native_session_resume = true\nload_next_minute = true",
    "history": "history_context_injection = true",
    "plain": "",
    "flagged": 'resume_flag = "--resume"',
}
"""Kinds of agents by what they can restore: by ACP (at once, or in the next minute), by injected history, not at all,
by their command line."""

LOGIN_HINT = "fake-agent login"
STATE_CHANGES = ("session.state_changed", "task.state_changed")


Conversations = Callable[..., Awaitable["Conversation"]]
"""The fixture `conversation`: makes a session, see `Cast.conversation`."""


class Cast:
    """Fake agents under names that a backend's configuration knows before a test says how they behave."""

    def __init__(self, directory: Path, *, each: int = 40) -> None:
        self._directory = directory
        self._each = each
        self._taken: Counter[str] = Counter()

    @property
    def config(self) -> str:
        """The text of config.toml: `each` agents of every kind, and room for all of them at once."""
        tables = ["[limits]\nmax_live_agents = 1000\n"]
        for kind, flag in FLAGS.items():
            for number in range(self._each):
                command = json.dumps(FakeAgent(self._directory / f"{kind}-{number}").command)
                hint = f'login_hint = "{LOGIN_HINT}"'
                tables.append(f"[agents.{kind}-{number}]\ncommand = {command}\n{hint}\n{flag}\n")
        return "\n".join(tables)

    def take(self, kind: str, **script: Any) -> tuple[str, FakeAgent]:
        """The next agent of a kind that nobody has, and its name."""
        number = self._taken[kind]
        self._taken[kind] += 1
        assert number < self._each, f"the cast has only {self._each} agents of the kind {kind!r}"
        name = f"{kind}-{number}"
        return name, FakeAgent(self._directory / name, **script)

    async def conversation(
        self, client: Client, kind: str = "native", *, description: str = "first", task: Any = None, **script: Any
    ) -> "Conversation":
        """A session with an agent of its own, followed but not started. `task` are more fields of task.create."""
        name, agent = self.take(kind, **script)
        request = {"agent": name, "description": description, "start": False, **(task or {})}
        created = await client.call("task.create", request)
        session = Conversation(client, agent, created["task"]["id"], created["session"]["id"])
        await session.follow(client)
        return session


class Conversation:
    """One session. What acts on it forgets the events so far, so that a wait finds those that follow."""

    def __init__(self, client: Client, agent: FakeAgent, task_id: str, session_id: str) -> None:
        self.client = client
        self.agent = agent
        self.task_id = task_id
        self.id = session_id
        self._mark = 0

    # Acts

    async def follow(self, client: Client) -> Any:
        """Subscribes to session and task on a connection, and acts on it from now on; the snapshot."""
        self.client = client
        self.forget()
        await client.call("task.subscribe", {"task_id": self.task_id})
        return await client.call("session.subscribe", {"session_id": self.id})

    def forget(self) -> None:
        """Looks from now on only at events that come."""
        self._mark = len(self.client.events)

    async def call(self, action: str, /, **payload: Any) -> Any:
        """An action on this session; events are not forgotten."""
        return await self.client.call(action, {"task_id": self.task_id, "session_id": self.id, **payload})

    async def act(self, action: str, /, **payload: Any) -> Any:
        """The same, after the events so far are forgotten."""
        self.forget()
        return await self.call(action, **payload)

    async def refused(self, action: str, /, **payload: Any) -> CallFailed:
        """The error of an action that must be refused."""
        try:
            answer = await self.act(action, **payload)
        except CallFailed as error:
            return error
        raise AssertionError(f"{action} was not refused but answered: {answer}")

    async def begin(self) -> None:
        """Starts the session and waits for the end of its first turn."""
        await self.act("task.session.start")
        await self.turn_ended()

    async def send(self, text: str, **payload: Any) -> Any:
        """Adds a prompt; the stored message."""
        return (await self.act("message.add", content=text, **payload))["message"]

    async def say(self, text: str) -> Any:
        """Adds a prompt and waits for the end of its turn; the turn."""
        await self.send(text)
        return await self.turn_ended()

    async def resume(self) -> Any:
        """Resumes and waits for the outcome, which must be good: the payload of session.resume.completed."""
        await self.act("task.session.resume")
        return await self.event("session.resume.completed")

    async def fail_to_resume(self) -> Any:
        """Resumes and waits until that has failed: the payload of session.resume.failed."""
        await self.act("task.session.resume")
        return await self.event("session.resume.failed")

    async def recover(self, action: str) -> Any:
        """Recovers in one way and waits for the outcome: the payload of session.resume.completed."""
        await self.act("task.session.recover", action=action)
        return await self.event("session.resume.completed")

    async def lose_agent(self) -> None:
        """Kills the agent's newest process, as a crash does, and waits until the backend has seen it."""
        self.forget()
        end(self.agent.pids()[-1])
        await self.event("session.agent_changed", is_agent_running=False)

    # Looks

    async def event(self, action: str, /, **expected: Any) -> Any:
        """The payload of the next event of this session, or its task, that has these fields."""
        return await self.event_where(
            action, lambda payload: all(payload.get(key) == value for key, value in expected.items())
        )

    async def event_where(self, action: str, true: Callable[[Any], bool]) -> Any:
        """The payload of the next event of this session, or its task, of which something is true."""

        def matches(payload: Any) -> bool:
            mine = payload.get("session_id", self.id) == self.id and payload.get("task_id") == self.task_id
            return mine and true(payload)

        return await self.client.wait_event(action, matches, after=self._mark)

    async def turn_ended(self) -> Any:
        """The turn whose end is told next."""
        return (await self.event("session.turn.completed"))["turn"]

    def seen(self, *actions: str) -> list[Any]:
        """The payloads of this session's, or its task's, events of these kinds so far, in order."""
        return [
            event["payload"]
            for event in self.client.events[self._mark :]
            if event["action"] in actions and event["payload"].get("task_id") == self.task_id
        ]

    def moves(self) -> list[str]:
        """Every change of a state so far, in order: 'session STARTING', 'task REVIEW'."""
        return [
            f"{'session' if 'session_id' in payload else 'task'} {payload['new_state']}"
            for payload in self.seen(*STATE_CHANGES)
        ]

    async def status(self) -> Any:
        """The answer of task.session.status."""
        return await self.call("task.session.status")

    async def states(self) -> tuple[str, str]:
        """The states of session and task."""
        found = await self.client.call("task.get", {"task_id": self.task_id})
        return next(one["state"] for one in found["sessions"] if one["id"] == self.id), found["task"]["state"]

    async def transcript(self) -> list[Any]:
        """The messages, oldest first."""
        return list((await self.client.call("message.list", {"session_id": self.id, "limit": 200}))["messages"])

    async def texts(self, author: str) -> list[str]:
        """What one author has said, oldest first: user, agent or system."""
        return [message["content"] for message in await self.transcript() if message["author_type"] == author]

    async def notice(self, kind: str) -> Any:
        """The one message of the server with this kind in the transcript."""
        (found,) = [one for one in await self.transcript() if one["metadata"].get("kind") == kind]
        return found

    async def notices(self) -> list[str]:
        """The kinds of all that the server itself says in the transcript."""
        return [one["metadata"]["kind"] for one in await self.transcript() if one["author_type"] == "system"]

    async def queue(self) -> tuple[list[str], str]:
        """The prompts that wait, and why they are held."""
        found = await self.client.call("message.queue.list", {"session_id": self.id})
        return [entry["content"] for entry in found["queue"]], found["held"]

    def methods(self) -> list[str]:
        """What the agent's newest process was asked, in order; answers to its own requests left out."""
        pid = self.agent.pids()[-1]
        received = [entry["message"] for entry in self.agent.entries() if entry["pid"] == pid and "message" in entry]
        return [message["method"] for message in received if "method" in message]
