"""A session of the demo agent in a container, driven as any client drives it."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, Self

from backend import Backend
from wire_client import Client

SLOW = "slow 40"


async def said_to_its_end(journals: Callable[[], str], last: str) -> None:
    """Waits until the journals of an agent that nobody reads have the answer to the prompt that made it say `last`."""
    async with asyncio.timeout(60):
        while "stopReason" not in (await asyncio.to_thread(journals)).partition(f"{last} ")[2]:
            await asyncio.sleep(0.05)


class Engine(Protocol):
    """An engine that a test looks at, with the image of its sessions."""

    image: str

    def docker(self, *arguments: str) -> str:
        """What a command of the docker program printed."""
        ...


class Contained:
    """A session of the demo agent in a container."""

    def __init__(self, backend: Backend, engine: Engine, client: Client, created: Any) -> None:
        self.backend, self.engine, self.client = backend, engine, client
        self.task_id, self.id = created["task"]["id"], created["session"]["id"]

    @classmethod
    async def create(
        cls, backend: Backend, engine: Engine, client: Client, text: str = "remember apple", **more: Any
    ) -> Self:
        request = {"agent": "demo", "description": text, "runtime": "docker", "start": False, **more}
        session = cls(backend, engine, client, await client.call("task.create", request))
        await session.follow(client)
        await session.call("task.session.start")
        await session.turn_ended()
        return session

    async def follow(self, client: Client) -> None:
        self.client = client
        await client.call("session.subscribe", {"session_id": self.id})

    async def call(self, action: str, /, **payload: Any) -> Any:
        return await self.client.call(action, {"task_id": self.task_id, "session_id": self.id, **payload})

    async def status(self) -> Any:
        return await self.call("task.session.status")

    async def turn_ended(self) -> Any:
        """Waits until no turn runs and nothing is queued; the last turn."""
        async with asyncio.timeout(60):
            while (status := await self.status())["turn"] or status["queued"] or status["stage"]:
                await asyncio.sleep(0.05)
        return status["last_turn"]

    async def say(self, text: str) -> str:
        """What the agent answers."""
        message = (await self.call("message.add", content=text))["message"]
        await self.turn_ended()
        return await self.answer(message["id"])

    async def answer(self, message_id: str) -> str:
        messages = (await self.client.call("message.list", {"session_id": self.id, "limit": 200}))["messages"]
        turn = next(one["turn_id"] for one in messages if one["id"] == message_id)
        own = [one for one in messages if one["turn_id"] == turn and one["author_type"] == "agent"]
        return "".join(one["content"] for one in own if one["type"] == "message")

    async def notices(self) -> list[str]:
        messages = (await self.client.call("message.list", {"session_id": self.id, "limit": 200}))["messages"]
        return [one["metadata"]["kind"] for one in messages if one["author_type"] == "system"]

    async def begin_slow_turn(self) -> str:
        """Begins a turn of four seconds, and returns once its first chunks are there; the prompt's id."""
        message = (await self.call("message.add", content=SLOW))["message"]
        await self.client.wait_event("session.message.delta", lambda payload: "step" in payload["text"])
        return str(message["id"])

    def stages(self) -> list[str]:
        """The stages of its starts that this client was told of."""
        told = self.client.seen("session.resume.progress")
        return [payload["stage"] for payload in told if payload["session_id"] == self.id]

    @property
    def container(self) -> str:
        """The id of its one container."""
        return self.engine.docker("ps", "-aq", "--no-trunc", "--filter", f"label=kandev.session_id={self.id}")


def leave_container(session: Contained) -> str:
    """Makes what a session of the same home leaves that is gone, a container and a volume of one name; that name."""
    home = session.engine.docker("inspect", "-f", '{{index .Config.Labels "kandev.home"}}', session.container)
    name = f"kandev-{home[:8]}-gone"
    labels = ("--label", "kandev.managed=true", "--label", f"kandev.home={home}")
    session.engine.docker("volume", "create", *labels, name)
    own = (*labels, "--label", "kandev.session_id=gone", "--name", name, "-v", f"{name}:/kandev")
    session.engine.docker("run", "-d", *own, session.engine.image, "sleep", "600")
    return name


async def doctor(backend: Backend, *arguments: str) -> list[Any]:
    """What `kandev doctor` says of containers."""
    answer = (await backend.cli("doctor", *arguments)).answer
    return [one for one in answer["findings"] if one["check"] == "container"]
