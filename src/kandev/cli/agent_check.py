"""What an agent really does, step by step: new, prompt, kill, resume, prompt, through a backend of its own.

The backend is killed in the middle of a turn, as the machine would. Memory counts as restored when the agent then
tells a word that only its first turn had heard.
"""

import asyncio
import contextlib
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from kandev.agents.base import AgentConfig
from kandev.cli.client import Client, new_client_id
from kandev.cli.follow import Follower, Notification, Snapshot
from kandev.cli.output import Output
from kandev.cli.plain import one_line
from kandev.cli.run import Names
from kandev.cli.scratch import ScratchBackend
from kandev.cli.wait import TurnEnd, TurnWaiter, first_message, turn_of, wait_for_resume
from kandev.errors import KandevError, TimedOut

STEP_S = 240.0  # for one step: a model may think, and an agent may unpack itself at its first start
COUNT_TO = 500
NOT_RESTORED = "memory is not restored; the conversation can be given as recap"
NOBODYS_ID = "11111111-2222-4333-8444-555555555555"
_QUIET = Output(as_json=True)

Result = Literal["ok", "note", "failed"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. `note` is an agent's way, told honestly, and no failure."""

    step: str
    result: Result
    seconds: float
    seen: str


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of an agent. `word` is what it was to remember, `prompts` what it was asked, in order."""

    agent: str
    word: str
    prompts: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def passed(self) -> bool:
        """True when all that the agent's flags promise was seen."""
        return bool(self.steps) and all(step.result != "failed" for step in self.steps)


class _Note(str):
    """What was seen in a step that is told without praise or blame."""

    __slots__ = ()


class _StepFailed(Exception):
    """Raised when a step did not go as promised, and the following ones have nothing to stand on."""


async def check_agent(
    backend: ScratchBackend, agent: AgentConfig, repository: Path, tell: Callable[[Step], None]
) -> Checked:
    """Drive the agent through all steps; `tell` hears of each as it ends. The backend does not run yet.

    Its configuration must name the agent. The agent works in a worktree of `repository`. Raises nothing for what an
    agent does: that is a failed step, and the last one.
    """
    check = _Check(backend, agent, repository, tell)
    with contextlib.suppress(_StepFailed):
        await check.run()
    return Checked(
        agent=agent.name,
        word=check.word,
        prompts=tuple(check.prompts),
        steps=tuple(check.steps),
    )


class _Check:
    """One run. Each step is a method; what it returns is what was seen."""

    def __init__(
        self, backend: ScratchBackend, agent: AgentConfig, repository: Path, tell: Callable[[Step], None]
    ) -> None:
        self._backend = backend
        self._agent = agent
        self._repository = repository
        self._tell = tell
        self._names = Names(task_id="", session_id="", typed="")
        self._first_answer = ""
        self._partial = ""
        self._outcome: dict[str, Any] = {}
        self.word = f"MARK-{secrets.token_hex(3)}"
        self.prompts: list[str] = []
        self.steps: list[Step] = []

    async def run(self) -> None:
        session = self._agent.session
        by_command_line = bool(session.resume_flag or session.continue_session_cmd)
        await self._step("new session, prompt", self._begin)
        await self._step("kill in a turn", self._kill_in_turn)
        await self._step("start, open", self._reopen)
        if session.native_session_resume or by_command_line:
            await self._step("resume", self._resume)
            await self._step("prompt: its memory", self._remembers)
        elif session.history_context_injection:
            await self._step("resume", self._resume)
            await self._step("prompt: recorded conversation", self._remembers)
        else:
            await self._step("resume", self._boot_idle)
            await self._step("recap, prompt", self._remembers_recap)
        await self._step("transcript", self._transcript)
        if session.native_session_resume or by_command_line:
            await self._step("an id it does not know", self._unknown_id)

    async def _step(self, name: str, work: Callable[[], Awaitable[str]]) -> None:
        began = time.monotonic()
        result: Result = "ok"
        try:
            async with asyncio.timeout(STEP_S):
                seen = await work()
            result = "note" if isinstance(seen, _Note) else "ok"
        except TimeoutError:
            result, seen = "failed", f"not finished within {STEP_S:g} s"
        except TimedOut as error:
            result, seen = "failed", f"{error.message} {self._backend.last_words()}"
        except KandevError as error:
            result, seen = "failed", error.message
        except _StepFailed as error:
            result, seen = "failed", str(error)
        step = Step(step=name, result=result, seconds=round(time.monotonic() - began, 2), seen=one_line(seen, 400))
        self.steps.append(step)
        self._tell(step)
        if result == "failed":
            raise _StepFailed

    # The steps

    async def _begin(self) -> str:
        await self._backend.start()
        text = f"Answer in a few words, and remember {self.word}"
        self.prompts.append(text)
        async with self._client() as client:
            created = await client.call(
                "task.create",
                agent=self._agent.name,
                description=text,
                repository_path=str(self._repository),
                client_task_id=new_client_id(),
            )
            self._names = Names(task_id=created["task"]["id"], session_id=created["session"]["id"], typed="")
            first = await first_message(client.call, self._names.session_id)
        end = await self._turn_end(first)
        self._first_answer = await self._completed(end)
        async with self._client() as client:
            got = await client.call("task.session.get", session_id=self._names.session_id)
        stages = got["resumes"][0]["stages"]
        started = sum(duration for stage, duration in stages.items() if stage not in {"checking", "workspace"})
        return f"ready after {started / 1000:.1f} s; {self._first_answer}"

    async def _kill_in_turn(self) -> str:
        text = f"Count from 1 to {COUNT_TO}, one number a line, and use no tool for it."
        async with self._follower() as follower:
            self._partial = await self._beginning(follower, text)
            await self._backend.kill()
        if not self._partial:
            return _Note("the turn had ended before the kill")
        return f"SIGKILL to the backend behind {self._partial!r}"

    async def _reopen(self) -> str:
        await self._backend.start()
        status = await self._status()
        if not status["needs_resume"]:
            raise _StepFailed(f"the session does not ask for a resume: {status['resume_reason']}")
        turn = (status["last_turn"] or {}).get("state", "none")
        return f"needs a resume ({status['resume_reason']}); last turn {turn}"

    async def _resume(self) -> str:
        outcome = self._outcome = await self._wait_for("task.session.resume", wait=True)
        how, reason = str(outcome.get("how")), str(outcome.get("reason") or "")
        if outcome.get("error"):
            raise _StepFailed(str(outcome["error"]))
        if how in {"fresh", "idle"}:
            raise _StepFailed(f"came up {how}, without its memory: {reason or 'no reason told'}")
        return f"how: {how}" + (f" ({reason})" if reason else "")

    async def _boot_idle(self) -> str:
        outcome = self._outcome = await self._wait_for("task.session.resume", wait=True)
        if outcome.get("error"):
            raise _StepFailed(str(outcome["error"]))
        told = [one["content"] for one in await self._messages() if one["metadata"].get("kind") == "resumed"]
        if outcome.get("how") != "idle" or not told:
            raise _StepFailed(f"came up {outcome.get('how')}, and the transcript does not say that it forgot")
        return _Note(f"{NOT_RESTORED}. The transcript says: {told[-1]}")

    async def _remembers(self) -> str:
        return await self._asked_for_the_word("it does not know the word any more")

    async def _remembers_recap(self) -> str:
        outcome = await self._wait_for("task.session.recover", action="recap")
        if outcome.get("error"):
            raise _StepFailed(str(outcome["error"]))
        return await self._asked_for_the_word("it did not find the word in the recap")

    async def _transcript(self) -> str:
        """Nothing of before the kill is there twice, and nothing is gone."""
        messages = await self._messages()
        said = [message["content"] for message in messages if message["author_type"] == "user"]
        if said != self.prompts:
            raise _StepFailed(f"{len(self.prompts)} prompts were sent, and the transcript has {len(said)}: {said}")
        # An agent may be called by nobody and speak: a greeting, a warning. What it repeats of a turn is a double.
        strays = [message["content"] for message in messages if _is_answer(message) and not message["turn_id"]]
        if doubled := [text for text in strays if text and text in {self._first_answer, self._partial}]:
            raise _StepFailed(f"there twice: {doubled[0]}")
        first = "\n\n".join(
            message["content"].strip("\n")
            for message in messages
            if _is_answer(message) and message["turn_id"] == messages[0]["turn_id"]
        )
        if first != self._first_answer:
            raise _StepFailed(f"the first answer was {self._first_answer!r} and is now {first!r}")
        whole = "".join(message["content"] for message in messages if _is_answer(message))
        if whole.count(self._partial.strip()) < 1:
            raise _StepFailed(f"what was said before the kill is not there: {self._partial!r}")
        kept = ", what was cut off is kept" if self._partial else ""
        return f"{len(messages)} messages, none twice{kept}"

    async def _unknown_id(self) -> str:
        await self._backend.stop()
        database = self._backend.home / "kandev.db"
        with contextlib.closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE executors_running SET resume_token = ?", [NOBODYS_ID])
        await self._backend.start()
        try:
            outcome = await self._wait_for("task.session.resume", wait=True)
        except KandevError as error:
            refused = error.message
        else:
            refused = str(outcome.get("error") or "")
        status = await self._status()
        if not refused:
            raise _StepFailed(f"it took an id that nobody has for a session (how: {status['how']})")
        if status["queue_held"] != "token_rejected" or status["state"] != "WAITING_FOR_INPUT":
            raise _StepFailed(f"refused, but not understood as an unknown session: {refused}")
        return f"refused, and the session waits: {refused}"

    # What they are made of

    async def _asked_for_the_word(self, failure: str) -> str:
        text = "What is the word? Answer with it alone."
        answer = await self._completed(await self._ask(text))
        if self.word not in answer:
            raise _StepFailed(f"{failure}: {answer}")
        return answer

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        async with await self._backend.connect() as client:
            yield client

    @contextlib.asynccontextmanager
    async def _follower(self) -> AsyncIterator[Follower]:
        client = await self._backend.connect()
        async with Follower(client, lambda: self._backend.address, self._names.session_id) as follower:
            yield follower

    async def _send(self, call: Callable[..., Any], text: str) -> str:
        self.prompts.append(text)
        sent = await call("message.add", **self._names.both, content=text, client_message_id=new_client_id())
        return str(sent["message"]["id"])

    async def _ask(self, text: str) -> TurnEnd:
        async with self._client() as client:
            message_id = await self._send(client.call, text)
        return await self._turn_end(message_id)

    async def _turn_end(self, message_id: str) -> TurnEnd:
        async with self._follower() as follower:
            return await TurnWaiter(follower, self._names, policy="deny", out=_QUIET).wait(message_id)

    async def _completed(self, end: TurnEnd) -> str:
        """Return what the agent said in a turn that ended well; otherwise say why it did not."""
        if end.exit_code == 0:
            return end.text
        status = await self._status()
        if status["needs"] == "login":
            hint = f": run `{self._agent.login_hint}`" if self._agent.login_hint else ""
            raise _StepFailed(f"login needed{hint}. It says: {status['error'] or end.why}")
        raise _StepFailed(f"the turn ended as {end.state}: {end.why or status['error'] or end.stop_reason}")

    async def _beginning(self, follower: Follower, text: str) -> str:
        """Send a prompt and return the beginning of its answer; '' when its turn ended without one in pieces."""
        message_id = ""
        async for update in follower.updates():
            if isinstance(update, Snapshot):
                message_id = await self._send(follower.call, text)
            if not isinstance(update, Notification):
                continue
            if update.action == "session.message.delta" and "2" in update.payload["text"]:
                return await self._text_so_far(str(update.payload["message_id"]))
            if update.action == "session.turn.completed" and turn_of(update.payload)["message_id"] == message_id:
                return ""
        raise AssertionError("a follower ends only by raising")

    async def _text_so_far(self, message_id: str) -> str:
        async with self._client() as client:
            found = await client.call("message.get", session_id=self._names.session_id, message_id=message_id)
        return str(found["message"]["content"])

    async def _wait_for(self, method: str, /, **payload: Any) -> dict[str, Any]:
        """Call resume or recover and return its outcome."""
        async with self._follower() as follower:
            _, outcome = await wait_for_resume(follower, method, self._names, _QUIET, **payload)
        return outcome

    async def _status(self) -> dict[str, Any]:
        async with self._client() as client:
            return await client.call("task.session.status", **self._names.both)

    async def _messages(self) -> list[dict[str, Any]]:
        async with self._client() as client:
            page = await client.call("message.list", session_id=self._names.session_id, after=0, limit=200)
        messages: list[dict[str, Any]] = page["messages"]
        return messages


def _is_answer(message: dict[str, Any]) -> bool:
    return (message["author_type"], message["type"]) == ("agent", "message")
