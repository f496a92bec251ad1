"""A session of the demo agent, driven as any client drives it, wherever it runs."""

import asyncio
from collections.abc import Callable
from typing import Any

from wire_client import Client

SLOW, ALL = "slow 40", [str(n) for n in range(1, 41)]
"""A prompt whose turn takes four seconds, and the numbers that it says."""


class DemoSession:
    """One session and the client that follows it."""

    def __init__(self, client: Client, created: Any) -> None:
        self.client = client
        self.task_id, self.id = created["task"]["id"], created["session"]["id"]

    @staticmethod
    async def task(client: Client, runtime: str, **more: Any) -> Any:
        """What `task.create` answers for a session that is not started yet, with a word to remember."""
        request = {"agent": "demo", "description": "remember apple", "start": False, "runtime": runtime, **more}
        return await client.call("task.create", request)

    async def start(self) -> None:
        """Returns once the first turn has ended."""
        await self.follow(self.client)
        await self.call("task.session.start")
        await self.turn_ended()

    async def follow(self, client: Client) -> None:
        self.client = client
        await client.call("session.subscribe", {"session_id": self.id})

    async def call(self, action: str, /, **payload: Any) -> Any:
        return await self.client.call(action, {"task_id": self.task_id, "session_id": self.id, **payload})

    async def status(self) -> Any:
        return await self.call("task.session.status")

    async def turn_ended(self) -> Any:
        """Waits until no turn runs and nothing is queued; the last turn."""
        async with asyncio.timeout(90):
            while (status := await self.status())["turn"] or status["queued"] or status["stage"]:
                await asyncio.sleep(0.05)
        return status["last_turn"]

    async def say(self, text: str) -> str:
        """What the agent answers."""
        message = (await self.call("message.add", content=text))["message"]
        await self.turn_ended()
        return await self.answer(message["id"])

    async def begin_slow_turn(self, text: str = SLOW) -> str:
        """Begins a turn, and returns once its first chunks are there; the prompt's id."""
        message = (await self.call("message.add", content=text))["message"]
        await self.client.wait_event("session.message.delta", lambda payload: "step" in payload["text"])
        return str(message["id"])

    async def messages(self) -> list[Any]:
        return list((await self.client.call("message.list", {"session_id": self.id, "limit": 200}))["messages"])

    async def answer(self, message_id: str) -> str:
        messages = await self.messages()
        turn = next(one["turn_id"] for one in messages if one["id"] == message_id)
        own = [one for one in messages if one["turn_id"] == turn and one["author_type"] == "agent"]
        return "".join(one["content"] for one in own if one["type"] == "message")

    async def counted(self, message_id: str) -> list[str]:
        """The numbers in what a slow turn said: each of them once, if nothing was lost and nothing came twice."""
        return [word for word in (await self.answer(message_id)).split() if word.isdecimal()]

    async def notices(self) -> list[str]:
        """The kinds of what the transcript tells a person."""
        return [one["metadata"]["kind"] for one in await self.messages() if one["author_type"] == "system"]

    async def notes(self) -> list[str]:
        """Its words."""
        return [one["content"] for one in await self.messages() if one["author_type"] == "system"]


async def said_to_its_end(journals: Callable[[], str]) -> None:
    """Waits until the journals of an agent that nobody reads have the end of a slow turn."""
    async with asyncio.timeout(60):
        while "stopReason" not in (await asyncio.to_thread(journals)).partition(f"step {ALL[-1]} ")[2]:
            await asyncio.sleep(0.05)
