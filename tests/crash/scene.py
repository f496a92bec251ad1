"""One backend with fake agents that is killed at a failpoint while something is played, and then goes on.

    async with Scene.prepared(tmp_path, "native") as scene:
        await scene.play_until_killed(plays.second, armed="prompt.after_claim:2")
        await scene.go_on()

A scene keeps what its client sent and which answers it got. After a kill it repeats what was not answered, as every
good client does: that is safe, since tasks and prompts carry ids of the client's own.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest

from backend import Backend
from conversation import FLAGS, Conversation
from fakes import FakeAgent
from invariants import Found, Prompt, deliveries, held, reading, violations
from wire_client import LIMIT, CallFailed, Client

QUICK = {"KANDEV__TIMING__CANCEL_FORCE_S": "1", "KANDEV__TIMING__STOP_GRACE_S": "2"}
FIRST, LAST = "first", "afterwards"

Play = Callable[["Scene"], Awaitable[None]]


class Scene:
    """A task with one session of an agent of one kind; `kind` is a key of conversation.FLAGS."""

    def __init__(self, directory: Path, kind: str, runtime: str) -> None:
        self.directory = directory
        self.kind = kind
        self.agent = FakeAgent(directory / "agent")
        table = f"[agents.{kind}]\ncommand = {json.dumps(self.agent.command)}\n{FLAGS[kind]}\n"
        table += f'runtime = "{runtime}"\n'
        self.backend = Backend(directory, config=table, environment=QUICK)
        self.prompts: list[Prompt] = []
        self.marks = directory / "failpoints"
        self.repository = ""
        self.refusals: list[str] = []
        self.task_id = self.id = ""
        self._client: Client | None = None
        self._unanswered: list[tuple[str, dict[str, Any]]] = []
        self._kills = 0
        self.lives = True

    @classmethod
    @contextlib.asynccontextmanager
    async def prepared(cls, directory: Path, kind: str, runtime: str = "standalone") -> AsyncIterator[Self]:
        """A scene whose processes end with the block."""
        scene = cls(directory, kind, runtime)
        async with scene.backend:
            try:
                yield scene
            finally:
                scene.agent.kill()

    # ---- kills

    async def play_until_killed(self, play: Play, *, armed: str) -> None:
        """Starts a backend, armed at one place of its own or of agentctl, and plays until that place was reached."""
        self._arm(armed)
        await self.backend.start()
        async with self._connected():
            playing = asyncio.ensure_future(play(self))
            try:
                await self._reached(playing, armed)
            finally:
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)

    async def play(self, play: Play) -> None:
        """Starts a backend that nobody armed, and plays to the end."""
        self._arm("")
        await self.backend.start()
        async with self._connected():
            await play(self)

    async def start_and_die(self, armed: str) -> None:
        """Starts a backend that is killed before its port opens."""
        self._arm(armed)
        self.lives = False
        with pytest.raises(AssertionError, match="ended with -9"):
            await self.backend.start()
        assert self._fired(), f"{armed} was not reached: {self.passed()}"

    async def _reached(self, playing: "asyncio.Future[None]", armed: str) -> None:
        waiting = asyncio.create_task(self._killed(armed))
        try:
            # A play that ends, or that a killed server ends, has some time left to pass what comes behind it.
            both: set[asyncio.Future[None]] = {waiting, playing}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT)
            await asyncio.wait([waiting], timeout=5)
            assert self._fired(), f"{armed} was not reached: {self.passed()}; {playing!r}"
        finally:
            waiting.cancel()

    async def _killed(self, armed: str) -> None:
        if armed.startswith("agentctl."):
            await self.backend.until(self._fired)
        else:
            await self.backend.died()
            self.lives = False

    def _arm(self, armed: str) -> None:
        self._kills += 1
        variable = "KANDEV_AGENTCTL_FAILPOINT" if armed.startswith("agentctl.") else "KANDEV_FAILPOINT"
        log = {"KANDEV_FAILPOINT_LOG": str(self._log)}
        self.marks.mkdir(exist_ok=True)
        self.backend.environment = {**QUICK, **log, **({variable: armed} if armed else {})}

    @property
    def _log(self) -> Path:
        return self.marks / f"{self._kills}.log"

    def passed(self) -> list[str]:
        """The failpoints that were passed since something was armed last, in order; the last may say "killed"."""
        with contextlib.suppress(FileNotFoundError):
            return [line.partition(" ")[2] for line in self._log.read_text().splitlines()]
        return []

    def _fired(self) -> bool:
        return any(name.endswith(" killed") for name in self.passed())

    # ---- what is played

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        async with self.backend.client() as client:
            self._client = client
            try:
                yield
            finally:
                self._client = None

    @property
    def client(self) -> Client:
        """The connection of now."""
        assert self._client is not None, "no backend runs"
        return self._client

    @property
    def session(self) -> Conversation:
        """The session, driven by that connection."""
        return Conversation(self.client, self.agent, self.task_id, self.id)

    async def ask(self, action: str, /, **payload: Any) -> Any:
        """Sends a request about the session, and repeats it after a kill if it was not answered."""
        request = (action, self.named(**payload))
        self._unanswered.append(request)
        answer = await self._send(*request)
        self._unanswered.remove(request)
        return answer

    async def ask_once(self, action: str, /, **payload: Any) -> Any:
        """Sends a request that a client would not repeat."""
        return await self._send(action, self.named(**payload))

    def named(self, **payload: Any) -> dict[str, Any]:
        """A payload that names task and session."""
        return {"task_id": self.task_id, "session_id": self.id, **payload}

    async def create(self, *, start: bool = True) -> None:
        """Makes the task; it starts by itself, or not."""
        more = {"repository_path": self.repository} if self.repository else {}
        await self.ask(
            "task.create", agent=self.kind, description=FIRST, start=start, client_task_id="the-task", **more
        )

    async def add(self, text: str) -> None:
        """Sends a prompt under an id of its own."""
        prompt = Prompt(self.id, f"client-{len(self.prompts)}", text, acknowledged=False)
        self.prompts.append(prompt)
        await self.ask("message.add", content=text, client_message_id=prompt.client_message_id)

    async def say(self, text: str) -> None:
        """Sends a prompt and waits for the end of its turn."""
        await self.add(text)
        await self.turn_ended(text)

    async def turn_ended(self, text: str) -> None:
        """Waits until the turn of a prompt has ended."""

        def ended() -> bool:
            with reading(self.backend.home) as database:
                query = """SELECT 1 FROM turns JOIN messages ON messages.id = turns.message_id
                    WHERE messages.content = ? AND turns.state <> 'open'"""
                return database.execute(query, (text,)).fetchone() is not None

        await self.backend.until(ended)

    async def follow(self) -> Conversation:
        """The session with its events."""
        session = self.session
        await session.follow(self.client)
        return session

    async def _send(self, action: str, payload: dict[str, Any]) -> Any:
        answer = await self.client.call(action, payload)
        if action == "task.create":
            self.task_id, self.id = answer["task"]["id"], answer["session"]["id"]
            if not self.prompts:
                self.prompts.append(Prompt(self.id, "", FIRST))
        if action == "message.add":
            self.prompts = [
                one._replace(acknowledged=True) if one.client_message_id == payload["client_message_id"] else one
                for one in self.prompts
            ]
        return answer

    # ---- afterwards

    @contextlib.asynccontextmanager
    async def restarted(self) -> AsyncIterator[None]:
        """A backend that nobody armed, on what the kill left; or the same one, where only agentctl was killed."""
        if self.lives:
            self._unanswered.clear()  # the play was broken off; its requests reached a backend that lives
        else:
            self._arm("")
            await self.backend.start()
        async with self._connected():
            yield

    def forget(self) -> None:
        """The client is gone: nobody repeats what was not answered."""
        self._unanswered.clear()

    async def repeat(self) -> None:
        """Sends again what was not answered; `refusals` has the reasons of what is refused now."""
        waiting, self._unanswered = self._unanswered, []
        for action, payload in waiting:
            try:
                await self._send(action, payload)
            except CallFailed as refused:
                self.refusals.append(refused.reason or refused.code)

    async def states(self) -> tuple[str, str]:
        """The states of session and task; two empty texts once they are deleted."""
        with reading(self.backend.home) as database:
            query = """SELECT task_sessions.state, tasks.state FROM task_sessions
                JOIN tasks ON tasks.id = task_sessions.task_id WHERE task_sessions.id = ?"""
            found = database.execute(query, (self.id,)).fetchone()
        return tuple(found) if found else ("", "")

    async def settled(self) -> None:
        """Waits until nothing moves: no start, no turn, and no prompt that may be sent."""
        assert await held(self._moving) == []

    async def _moving(self) -> Found:
        try:
            status = await self.session.status()
        except CallFailed as gone:
            return [] if gone.code == "NOT_FOUND" else [str(gone)]
        sends = status["queued"] and not status["queue_held"] and status["state"] not in {"FAILED", "CANCELLED"}
        moves = status["state"] in {"STARTING", "RUNNING"} or status["stage"] or status["turn"] or sends
        with reading(self.backend.home) as database:
            intents = database.execute("SELECT intent FROM task_sessions WHERE intent <> ''").fetchall()
        return [f"{status['state']}, {status['queued']} queued"] if moves or intents else []

    async def go_on(self) -> None:
        """A person goes on with the session, whatever became of it; its agent answers."""
        await self.settled()
        if (await self.states())[0] in {"FAILED", "CANCELLED"}:
            await self.client.call("task.session.recover", self.named(action="resume"))
        await self.add(LAST)
        await self.settled()
        if (await self.session.queue())[0]:
            await self.client.call("message.queue.resume", self.named())
        await self.turn_ended(LAST)
        await self.settled()

    async def wrong(self) -> Found:
        """What is wrong with home, store, processes and transcript, once nothing moves any more."""
        return await held(lambda: violations(self.backend, self.prompts, [self.agent], marked=str(self.marks)))

    def delivered(self) -> dict[str, int]:
        """How often each prompt reached the agent."""
        return dict(deliveries([self.agent]))
