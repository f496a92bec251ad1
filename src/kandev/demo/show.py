"""`kandev demo`: a backend is killed in front of your eyes, and what its sessions remember afterwards.

Everything is real and local: `kandev serve` as a process of its own on a temporary home, SIGKILL, a second start, and
the demo agent once with its own memory (native resume) and once without (history injection). No network.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from kandev.cli.client import new_client_id
from kandev.cli.follow import Follower
from kandev.cli.output import Output
from kandev.cli.run import Names
from kandev.cli.scratch import ScratchBackend, scratch_backend
from kandev.cli.wait import TurnWaiter, first_message, wait_for_resume
from kandev.cli.words import resume_words
from kandev.errors import KandevError, TimedOut

LIMIT_S = 60.0  # for all of it; it takes a few seconds, and a machine may be slow
STRATEGIES = {"demo": "its own memory", "demo-history": "the recorded conversation"}
_WORDS = ("amber", "birch", "cobalt", "dahlia", "ember", "fjord", "garnet", "heron", "indigo", "juniper")

Tell = Callable[[str, str], None]


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """What one strategy brought back: `how` as in session.resume.completed."""

    agent: str
    how: str
    word: str
    said: str

    @property
    def remembered(self) -> bool:
        """Return whether the agent said the word that it learnt before the crash."""
        return self.word in self.said


async def run_demo(tell: Tell) -> list[Remembered]:
    """Run both strategies and return what was remembered; `tell(step, detail)` is called for each step.

    Raises KandevError when a step fails. The home and all processes are gone afterwards, however it ends.
    """
    async with scratch_backend("demo") as backend:
        try:
            async with asyncio.timeout(LIMIT_S):
                tell("home", f"{backend.home} (removed at the end)")
                await backend.start()
                tell("backend started", f"process {backend.pid} at {backend.address.url}")
                return [await _show(backend, agent, tell) for agent in STRATEGIES]
        except TimeoutError:
            raise TimedOut(f"The demo was not finished within {LIMIT_S:g} s.\n{backend.last_words()}") from None


async def _show(backend: ScratchBackend, agent: str, tell: Tell) -> Remembered:
    word = f"{secrets.choice(_WORDS)}-{secrets.randbelow(900) + 100}"
    tell(f"— {agent}", f"resumes with {STRATEGIES[agent]}")
    async with await backend.connect() as client:
        created = await client.call(
            "task.create", agent=agent, description=f"remember {word}", client_task_id=new_client_id()
        )
        names = Names(task_id=created["task"]["id"], session_id=created["session"]["id"], typed="")
        first = await first_message(client.call, names.session_id)
    tell("a word to remember", f"remember {word} → {await _answer(backend, names, first)}")
    killed = backend.pid
    await backend.kill()
    tell("backend killed", f"SIGKILL to process {killed}; the agent ends with it")
    await backend.start()
    tell("backend started", f"process {backend.pid} on the same home")
    how = await _resume(backend, names, tell)
    said = await _ask(backend, names)
    tell("asked for the word", f"what is the word? → {said}")
    result = Remembered(agent=agent, how=how, word=word, said=said)
    tell("result", "remembered" if result.remembered else f"NOT remembered: it was {word}")
    return result


async def _resume(backend: ScratchBackend, names: Names, tell: Tell) -> str:
    async with await backend.connect() as client:
        status = await client.call("task.session.status", **names.both)
    tell("session found", f"{status['state']}, needs resume: {status['needs_resume']} ({status['resume_reason']})")
    began = time.monotonic()
    async with Follower(await backend.connect(), lambda: backend.address, names.session_id) as follower:
        _, outcome = await wait_for_resume(follower, "task.session.resume", names, Output(as_json=True), wait=True)
    duration = f"{(time.monotonic() - began) * 1000:.0f} ms"
    tell("session resumed", f"in {duration}, how: {outcome.get('how')}. {' '.join(resume_words(outcome, ''))}")
    return str(outcome.get("how") or "")


async def _ask(backend: ScratchBackend, names: Names) -> str:
    question = {"content": "what is the word?", "client_message_id": new_client_id()}
    async with await backend.connect() as client:
        sent = await client.call("message.add", **names.both, **question)
    return await _answer(backend, names, str(sent["message"]["id"]))


async def _answer(backend: ScratchBackend, names: Names, message_id: str) -> str:
    """Wait for the turn of a message and return what the agent said; raises KandevError for another end."""
    async with Follower(await backend.connect(), lambda: backend.address, names.session_id) as follower:
        end = await TurnWaiter(follower, names, policy="deny", out=Output(as_json=True)).wait(message_id)
    if end.exit_code:
        raise KandevError(f"The turn did not complete: {end.state} {end.why}".rstrip())
    return " ".join(end.text.split())
