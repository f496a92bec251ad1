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
from kandev.cli.transcript_check import Before, transcript_fault
from kandev.cli.wait import TurnEnd, TurnWaiter, first_message, turn_of, wait_for_resume
from kandev.errors import KandevError, TimedOut

STEP_S = 240.0  # for one step: a model may think, and an agent may unpack itself at its first start
COUNT_TO = 500
SEEN_CHARS = 400
NOT_RESTORED = "memory is not restored; the conversation can be given as a summary"
_BEFORE_THE_AGENT = frozenset({"checking", "workspace"})
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
    """What was seen of an agent. `word` is what it was to remember, `prompts` what it was asked, in order.

    `version` is as the agent told it at `initialize`, '' where it did not.
    """

    agent: str
    version: str = ""
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
        version=check.version,
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
        self.version = ""
        self.word = f"MARK-{secrets.token_hex(3)}"
        self.prompts = [f"Answer in a few words, and remember {self.word}"]
        self.steps: list[Step] = []

    async def run(self) -> None:
        session = self._agent.session
        by_command_line = bool(session.resume_flag or session.continue_session_cmd)
        await self._step("initialize, new session", self._open)
        await self._step("prompt", self._first_prompt)
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
            await self._step("summary, prompt", self._remembers_recap)
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
        step = Step(step=name, result=result, seconds=round(time.monotonic() - began, 2), seen=_shortened(seen))
        self.steps.append(step)
        self._tell(step)
        if result == "failed":
            raise _StepFailed

    # The steps

    async def _open(self) -> str:
        await self._backend.start()
        async with self._client() as client:
            created = await client.call(
                "task.create",
                agent=self._agent.name,
                description=self.prompts[0],
                repository_path=str(self._repository),
                runtime="standalone",  # whatever the person's configuration prefers: the agent is tried, not the place
                start=False,
                client_task_id=new_client_id(),
            )
        self._names = Names(task_id=created["task"]["id"], session_id=created["session"]["id"], typed="")
        async with self._follower() as follower:
            ready_s = await self._started(follower)
        async with self._client() as client:
            about = await client.call("agent.check", name=self._agent.name)
        self.version = str(about["version"])
        seen = f"version {self.version or 'not told'}, {about['resumes']}, ready after {ready_s:.1f} s"
        return _Note(f"{seen}. {about['warning']}") if about["warning"] else seen

    async def _started(self, follower: Follower) -> float:
        """Start the session and return the seconds until its agent was ready, its directory not counted."""
        async for update in follower.updates():
            if isinstance(update, Snapshot):
                await follower.call("task.session.start", **self._names.both)
            if not isinstance(update, Notification):
                continue
            if update.action == "session.resume.failed":
                raise _StepFailed(await self._why(str(update.payload["message"])))
            if update.action == "session.resume.completed":
                stages: dict[str, float] = update.payload["stages"]
                return sum(took for stage, took in stages.items() if stage not in _BEFORE_THE_AGENT) / 1000
        raise AssertionError("a follower ends only by raising")

    async def _first_prompt(self) -> str:
        async with self._client() as client:
            first = await first_message(client.call, self._names.session_id)
        self._first_answer = await self._completed(await self._turn_end(first))
        return self._first_answer

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
        outcome = await self._wait_for("task.session.resume", wait=True)
        how, reason = str(outcome.get("how")), str(outcome.get("reason") or "")
        if outcome.get("error"):
            raise _StepFailed(str(outcome["error"]))
        if how in {"fresh", "idle"}:
            raise _StepFailed(f"came up {how}, without its memory: {reason or 'no reason told'}")
        return f"how: {how}" + (f" ({reason})" if reason else "")

    async def _boot_idle(self) -> str:
        outcome = await self._wait_for("task.session.resume", wait=True)
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
        return await self._asked_for_the_word("it did not find the word in the summary")

    async def _transcript(self) -> str:
        messages = await self._messages()
        before = Before(prompts=self.prompts, first_answer=self._first_answer, partial=self._partial)
        if fault := transcript_fault(messages, before):
            raise _StepFailed(fault)
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
        raise _StepFailed(await self._why(end.why or end.stop_reason, f"the turn ended as {end.state}: "))

    async def _why(self, said: str, beginning: str = "") -> str:
        """Return why something failed: a login that is needed with its command, else what was said."""
        status = await self._status()
        said = str(status["error"] or said)
        if status["needs"] != "login":
            return f"{beginning}{said}"
        hint = f": run `{self._agent.login_hint}`" if self._agent.login_hint else ""
        return f"login needed{hint}. It says: {said}"

    async def _beginning(self, follower: Follower, text: str) -> str:
        """Send a prompt and return the beginning of its answer; '' when its turn ended without one in pieces."""
        message_id = ""
        async for update in follower.updates():
            if isinstance(update, Snapshot) and not message_id:
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


def _shortened(seen: str) -> str:
    """Return a text on one line; of a long one its beginning and its end, where errors say what they mean."""
    line = one_line(seen)
    return line if len(line) <= SEEN_CHARS else f"{line[: SEEN_CHARS // 2]} … {line[-SEEN_CHARS // 2 :]}"
