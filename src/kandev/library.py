"""The backend inside your program, without a port.

    async with Kandev() as kandev:
        session = await kandev.new_session(agent="codex", prompt="Fix the failing test", repository=".")
        async for event in session.events():
            if event.action == "session.turn.completed":
                break
        print(await session.ask("What did you change?"))

One program owns a home at a time: where `kandev serve` runs, use its WebSocket instead (docs/protocol.md).
"""

import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from kandev.app import Backend
from kandev.config import load_config
from kandev.domain.models import Event, Message, PermissionRequest, ResumeOutcome, SessionId, TurnState, now
from kandev.errors import AgentError, Conflict, Stopping
from kandev.gateway.listener import Listener
from kandev.orchestrator.views import CreateTask, SessionStatus

_PAGE = 200
_HELD = "message.queue.changed"
_ENDED = "session.turn.completed"


class Kandev:
    """The sessions of one home, brought back as `kandev serve` does, and open while the block runs.

    `home` is KANDEV_HOME or ~/.kandev unless given; `settings` are keys of config.toml, such as
    {"limits.idle_minutes": 5}. Entering raises HomeInUse when another backend owns the home, and Invalid for a wrong
    configuration. Leaving ends the agents in order; every session is kept.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None, settings: dict[str, Any] | None = None) -> None:
        self._flags = {**(settings or {}), "home": os.fspath(home) if home is not None else None}
        self._stack = AsyncExitStack()
        self._backend: Backend | None = None

    async def __aenter__(self) -> Self:
        _log_to_the_program()
        config = load_config(os.environ, self._flags)
        self._backend = await self._stack.enter_async_context(Backend.open(config))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._backend = None
        await self._stack.aclose()

    @property
    def backend(self) -> Backend:
        """The services themselves, for what has no method here."""
        assert self._backend is not None, "use it inside its `async with` block"
        return self._backend

    async def new_session(
        self,
        agent: str,
        prompt: str,
        repository: str | os.PathLike[str] | None = None,
        *,
        title: str = "",
        runtime: str = "",
        base_branch: str = "",
        model: str = "",
        mode: str = "",
        in_place: bool = False,
    ) -> "Session":
        """Make a task with one session, and start it with `prompt`. Raises NotFound for an unknown agent.

        Without a repository the agent works in an empty directory of its own; with one in a new worktree of it,
        unless `in_place`.
        """
        request = CreateTask(
            description=prompt,
            agent=agent,
            title=title,
            runtime=runtime,
            repository_path=str(Path(repository).resolve()) if repository is not None else "",
            base_branch=base_branch,
            model=model,
            mode=mode,
            in_place=in_place,
            start=False,
            client_task_id=secrets.token_hex(10),
        )
        task, view = await self.backend.tasks.create(request)
        # Listening begins before the start, so that the first call of events() misses nothing.
        session = Session(self.backend, str(task.id), view.id, self.backend.hub.listen(view.id))
        await self.backend.operations.start_session(view.id)
        return session

    async def session(self, identity: str) -> "Session":
        """Return a session by its own or its task's id, or the beginning of one. Raises NotFound and Conflict."""
        found = await self.backend.catalog.find(identity)
        return Session(self.backend, found["task_id"], found["session_id"])


class Session:
    """One conversation with one agent. `id` stays the same for ever, whatever process serves it."""

    def __init__(self, backend: Backend, task_id: str, session_id: str, listener: Listener | None = None) -> None:
        self.id = session_id
        self.task_id = task_id
        self._backend = backend
        self._first = listener

    def events(self) -> AsyncGenerator[Event, None]:
        """Return the session's events (contract: Notifications) as they happen, without an end.

        The first iterator of a session made by `new_session` begins with its start, every other one with this call.
        Raises Unavailable (reason too_slow) when the reader fell so far behind that events were lost.
        """
        listener, self._first = self._first or self._backend.hub.listen(self.id), None
        return _events(listener)

    async def status(self) -> SessionStatus:
        """Return whether it needs a resume, and why, and what it waits for."""
        return await self._backend.operations.get_task_session_status(self.task_id, self.id)

    async def resume(self) -> ResumeOutcome:
        """Bring the agent back and wait until it is ready; tells `how`, `reason` and what was `lost`.

        Raises the KandevError that stopped it; `error` of the outcome is then stored too.
        """
        answer = await self._backend.operations.resume_task_session(self.task_id, self.id, wait=True)
        _, outcomes = await self._backend.tasks.get_session(self.id)
        for outcome in outcomes:
            if outcome.agent_execution_id == answer.agent_execution_id and not answer.already_running:
                return outcome
        stamp = now()
        return ResumeOutcome(
            id="",
            session_id=SessionId(self.id),
            agent_execution_id=answer.agent_execution_id,
            started_at=stamp,
            ended_at=stamp,
            how="already_running",
        )

    async def prompt(self, text: str) -> Message:
        """Store a prompt; it is sent when the agent is ready, and the agent is brought back for it if need be."""
        return await self._backend.messages.add(self.task_id, self.id, text, secrets.token_hex(10))

    async def ask(self, text: str) -> str:
        """Prompt, wait for the end of its turn, and return what the agent said.

        Raises AgentError for a turn that was cancelled, interrupted or failed, and Conflict when the prompt was
        stored and not sent. A permission request is not answered here: see `permissions()` and `answer()`.
        """
        async with self._backend.hub.listen(self.id) as listener:
            message = await self.prompt(text)
            turn = await self._turn_end(listener, str(message.id))
        if turn["state"] != TurnState.COMPLETED:
            raise AgentError(f"The turn did not complete: {turn['state']}. {turn['error']}".rstrip(), turn=turn)
        said = [one async for one in self.messages() if one.turn_id == turn["id"]]
        return "\n\n".join(one.content for one in said if (one.author_type, one.type) == ("agent", "message"))

    async def messages(self) -> AsyncIterator[Message]:
        """Yield the transcript in order. No agent is needed for it."""
        after, more = 0, True
        while more:
            page, more, _ = await self._backend.messages.list(self.id, before=None, after=after, limit=_PAGE)
            for message in page:
                after = message.seq or after
                yield message

    async def permissions(self) -> list[PermissionRequest]:
        """Return the permission requests that wait for an answer."""
        return await self._backend.permissions.list(self.id)

    async def answer(self, request_id: str, option_id: str | None) -> PermissionRequest:
        """Answer a permission request by one of its options; None cancels it. Raises Conflict if it was answered."""
        return await self._backend.permissions.respond(self.id, request_id, option_id, cancelled=option_id is None)

    async def cancel(self) -> None:
        """Cancel the present turn; queued prompts are kept and held."""
        await self._backend.operations.cancel_turn(self.task_id, self.id)

    async def stop(self) -> None:
        """End the agent; the session is CANCELLED and can be brought back by `recovery.recover`."""
        await self._backend.operations.stop_session(self.task_id, self.id)

    async def _turn_end(self, listener: Listener, message_id: str) -> dict[str, Any]:
        async for event in listener:
            payload = event["payload"]
            if event["action"] == _ENDED and payload["turn"]["message_id"] == message_id:
                turn: dict[str, Any] = payload["turn"]
                return turn
            waiting = [one["message_id"] for one in payload["queue"]] if event["action"] == _HELD else []
            if message_id in waiting and payload["held"]:
                raise Conflict("The prompt is stored and was not sent: its queue is held.", reason=payload["held"])
        raise Stopping  # the listener ends only when the backend does


def _log_to_the_program() -> None:
    """Hand log lines to `logging`, unless the program has set up structlog: its stdout is not ours."""
    if not structlog.is_configured():
        structlog.configure(
            processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )


async def _events(listener: Listener) -> AsyncGenerator[Event, None]:
    async with listener:
        async for event in listener:
            payload = event["payload"]
            yield Event(
                action=event["action"],
                payload=payload,
                session_id=payload.get("session_id", ""),
                task_id=payload.get("task_id", ""),
            )
