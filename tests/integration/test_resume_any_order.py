"""Whatever is asked in whatever order, and killed meanwhile: one process, every prompt at most once, nothing stuck.

The order is random with a fixed seed, and the machine adds its own: what is asserted holds for every order.
"""

import asyncio
import random
from typing import Any

import pytest

from backend import Backend
from conversation import Cast, Conversation, Conversations
from fakes import end
from wire_client import CallFailed

ACTIONS = {
    "task.session.resume": {},
    "task.session.cancel": {},
    "task.session.stop": {},
    "task.session.recover resume": {"action": "resume"},
    "task.session.recover fresh_start": {"action": "fresh_start"},
}
CHOICES = [*ACTIONS, *["message"] * 4, "kill the agent"]
SCRIPT: dict[str, Any] = {"on": {"session/prompt": {"match": "slow", "steps": [{"chunks": 5, "delay": 0.02}]}}}
PAUSES = (0, 0, 0.01, 0.05, 0.1)
PATIENCE_S = 40.0


class Crowd:
    """People who all do something with one session at once. `acknowledged` are the prompts that were taken."""

    def __init__(self, session: Conversation, seed: int) -> None:
        self.session = session
        self.acknowledged = ["first"]
        self._random = random.Random(seed)
        self._asked = 0

    async def act(self, times: int) -> None:
        """Does things, each without waiting for the one before."""
        async with asyncio.TaskGroup() as group:
            for _ in range(times):
                group.create_task(self._do(self._random.choice(CHOICES)))
                await asyncio.sleep(self._random.choice(PAUSES))

    async def _do(self, what: str) -> None:
        try:
            await self._ask(what)
        except CallFailed as refused:
            if refused.code not in {"CONFLICT", "UNAVAILABLE"}:
                raise  # a refusal is an answer, a bug is none
        except ConnectionError:
            pass  # the backend was killed

    async def _ask(self, what: str) -> None:
        if what == "kill the agent":
            for pid in self.session.agent.pids()[-1:]:
                end(pid)
        elif what == "message":
            self._asked += 1
            text = f"prompt {self._asked} {self._random.choice(['', 'slow'])}"
            await self.session.call("message.add", content=text)
            self.acknowledged.append(text)
        else:
            await self.session.call(what.partition(" ")[0], **ACTIONS[what])

    async def settle(self) -> None:
        """Says that it goes on, until nothing waits and nothing runs."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self._is_quiet():
                await asyncio.sleep(0.05)

    async def _is_quiet(self) -> bool:
        session = self.session
        queue, held = await session.queue()
        status = await session.status()
        if held or status["state"] in {"FAILED", "CANCELLED"}:
            await session.call("task.session.recover", action="resume")
            return False
        return not queue and status["turn"] is None and status["state"] == "WAITING_FOR_INPUT"

    async def check(self) -> None:
        """What must hold once it is quiet."""
        session = self.session
        assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
        assert len(session.agent.alive()) == int((await session.status())["is_agent_running"])
        prompts = session.agent.prompts()
        assert len(prompts) == len(set(prompts))
        told = await session.texts("user")
        assert [text for text in told if text in prompts] == prompts
        assert [text for text in told if text in self.acknowledged] == self.acknowledged
        assert len(told) == len(set(told))


@pytest.mark.parametrize("seed", range(4))
async def test_any_order_of_requests(conversation: Conversations, seed: int) -> None:
    """Resumes, stops, cancels, recoveries, prompts and dead agents at once."""
    crowd = Crowd(await conversation(**SCRIPT), seed)
    await crowd.session.call("task.session.start")
    await crowd.act(14)
    await crowd.settle()
    await crowd.check()


async def test_any_order_of_requests_and_kill_9(killable: Backend, cast: Cast) -> None:
    """The same with six sessions, and the backend killed in the middle of it."""
    async with killable.client() as client:
        crowds = [Crowd(await cast.conversation(client, **SCRIPT), seed) for seed in range(6)]
        for crowd in crowds:
            await crowd.session.call("task.session.start")
        acting = [asyncio.create_task(crowd.act(10)) for crowd in crowds]
        agents = [crowd.session.agent for crowd in crowds]
        await agents[0].until(lambda: sum(len(agent.pids()) for agent in agents) >= 3)
        await killable.kill9()
        await asyncio.gather(*acting)
    await killable.start()
    async with killable.client() as client:
        for crowd in crowds:
            await crowd.session.follow(client)
        await asyncio.gather(*(crowd.settle() for crowd in crowds))
        for crowd in crowds:
            await crowd.check()
