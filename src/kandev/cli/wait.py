"""Waiting for a turn or a resume, across a restart of the backend.

Events only wake the waiter; what happened is read from the backend. So an event that was missed changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from kandev.cli.follow import Follower, Lost, Notification, Snapshot, Update
from kandev.cli.keyboard import Keyboard
from kandev.cli.output import Output
from kandev.cli.permission import Policy, choose, policy_choice, question_lines
from kandev.cli.run import FAILED, Names
from kandev.cli.words import HELD, STAGES
from kandev.errors import Conflict, Invalid, TimedOut

_OVER = frozenset({"completed", "cancelled", "interrupted", "failed", "superseded"})
_ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
_PAGE = 200
# What can end a turn, keep it from beginning, or make it wait for an answer. The rest is not worth a look: a turn may
# have thousands of tool calls.
_TELLING = frozenset({
    "session.turn.started", "session.turn.completed", "session.state_changed", "session.resume.completed",
    "session.resume.failed", "message.queue.changed", "permission.requested",
})  # fmt: skip

Call = Callable[..., Awaitable[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class TurnEnd:
    """How a prompt ended: state of its turn (or `held`, `ended`), stop reason, and what the agent said."""

    state: str
    stop_reason: str = ""
    turn_id: str = ""
    text: str = ""
    why: str = ""

    @property
    def exit_code(self) -> int:
        """0 for a completed turn, 1 for every other end."""
        return 0 if self.state == "completed" else FAILED


class PermissionWaits(Conflict):
    """Raised when a permission must be given by a person and nobody can be asked here."""


@asynccontextmanager
async def time_limit(seconds: float | None, names: Names) -> AsyncIterator[None]:
    """Raise TimedOut after `seconds`; what was waited for goes on in the background."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        follow = f"kandev attach {names.typed or names.session_id}"
        raise TimedOut(f"Not finished within {seconds:g} s. It goes on; follow it with: {follow}") from None


class TurnWaiter:
    """Waits until the turn of one message has ended, and answers permission requests by a policy meanwhile."""

    def __init__(self, follower: Follower, names: Names, *, policy: Policy, out: Output) -> None:
        self._follower = follower
        self._names = names
        self._policy = policy
        self._out = out
        self._turns: dict[str, dict[str, Any]] = {}

    async def wait(self, message_id: str) -> TurnEnd:
        """Return how the turn of `message_id` ended; raises PermissionWaits."""
        async for update in self._follower.updates():
            if not self._concerns(update):
                continue
            if end := await self._look(message_id):
                self._out.clear()
                return end
            await self._permissions()
        raise AssertionError("a follower ends only by raising")

    def _concerns(self, update: Update) -> bool:
        if isinstance(update, Lost):
            self._out.progress("connection lost, trying again")
            return False
        if isinstance(update, Snapshot):
            return True
        show_progress(update, self._out)
        if update.action.startswith("session.turn."):
            turn = turn_of(update.payload)
            self._turns[str(turn.get("id"))] = turn
        return update.action in _TELLING

    async def _look(self, message_id: str) -> TurnEnd | None:
        # The status first: a queue that was held before the message was seen without a turn holds the message.
        status = await self._status()
        message = await self._message(message_id)
        turn_id = message["turn_id"]
        if not turn_id:
            return _not_sent(status)
        # And again: that turn may have begun in between.
        turn = self._known(turn_id, await self._status())
        if turn["state"] not in _OVER or (turn["state"] == "superseded" and await self._was_put_back(message)):
            return None
        return TurnEnd(
            state=str(turn["state"]),
            stop_reason=str(turn["stop_reason"]),
            turn_id=turn_id,
            text=await self._said(turn_id, int(message["seq"])),
            why=str(turn["error"]),
        )

    def _known(self, turn_id: str, status: dict[str, Any]) -> dict[str, Any]:
        """Return the turn as the status has it, else as an event told it; else another one has taken its place."""
        last = status["last_turn"] or {}
        if last.get("id") == turn_id:
            return dict(last)
        known = self._turns.get(turn_id, {})
        if known.get("state") in _OVER:
            return known
        return {"state": "superseded", "stop_reason": "", "error": "another turn followed while nobody listened"}

    async def _was_put_back(self, message: dict[str, Any]) -> bool:
        """Return whether the prompt is in the queue again: a restart found that it had reached nobody."""
        again = await self._message(str(message["id"]))
        return bool(again["turn_id"] != message["turn_id"])

    async def _status(self) -> dict[str, Any]:
        return await self._follower.call("task.session.status", **self._names.both)

    async def _message(self, message_id: str) -> dict[str, Any]:
        answer = await self._follower.call("message.get", session_id=self._names.session_id, message_id=message_id)
        message: dict[str, Any] = answer["message"]
        return message

    async def _said(self, turn_id: str, seq: int) -> str:
        """Return what the agent said in the turn, its messages joined by an empty line."""
        pieces: list[str] = []
        more = True
        while more:
            page = await self._follower.call("message.list", session_id=self._names.session_id, after=seq, limit=_PAGE)
            for message in page["messages"]:
                seq = message["seq"]
                if message.get("turn_id") == turn_id and message["author_type"] == "agent":
                    pieces += [message["content"]] if message["type"] == "message" else []
            more = bool(page.get("has_more")) and bool(page["messages"])
        return "\n\n".join(piece.strip("\n") for piece in pieces)

    async def _permissions(self) -> None:
        answer = await self._follower.call("permission.list", session_id=self._names.session_id)
        for request in answer.get("permissions", []):
            if request.get("state", "pending") == "pending":
                await self._answer(request)

    async def _answer(self, request: dict[str, Any]) -> None:
        decided, option_id = policy_choice(request, self._policy)
        if not decided and self._policy == "ask" and self._out.interactive:
            self._out.clear()
            option_id = await ask(request, self._out)
        elif not decided:
            session = self._names.typed or self._names.session_id
            lines = "\n".join(question_lines(request))
            raise PermissionWaits(
                f"{lines}\nNobody can be asked here. Answer with: kandev answer {session} OPTION", reason="permission"
            )
        await respond(self._follower.call, self._names.session_id, str(request["id"]), option_id)


async def first_message(call: Call, session_id: str) -> str:
    """Return the id of the message that carries a task's description: it is queued, or a turn has taken it."""
    queue = await call("message.queue.list", session_id=session_id)
    if queued := queue["queue"]:
        return str(queued[0]["message_id"])
    page = await call("message.list", session_id=session_id, after=0, limit=1)
    return str(page["messages"][0]["id"])


async def ask(request: dict[str, Any], out: Output) -> str | None:
    """Ask the person at the terminal; returns the option's id, None to cancel the request."""
    for line in question_lines(request):
        out.note(line)
    with Keyboard() as keyboard:
        while True:
            out.note("Your answer (a number, or cancel):")
            typed = await keyboard.line()
            if typed is None:
                raise PermissionWaits("No answer was given; the agent still waits.", reason="permission")
            try:
                return choose(request, typed)
            except Invalid as error:
                out.note(error.message)


async def respond(call: Call, session_id: str, request_id: str, option_id: str | None) -> None:
    """Answer a request; that somebody else was quicker is fine."""
    choice: dict[str, Any] = {"option_id": option_id} if option_id else {"cancelled": True}
    try:
        await call("permission.respond", session_id=session_id, request_id=request_id, **choice)
    except Conflict as error:
        if error.reason not in {"already_resolved", "expired"}:
            raise


async def wait_for_resume(
    follower: Follower, action: str, names: Names, out: Output, /, **payload: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Call `task.session.resume` or `.recover` and wait until it is over; returns its answer and its outcome.

    The call joins a resume in flight, so it may be repeated after a restart of the backend. Raises what it raises.
    """
    news = asyncio.Event()
    watching = asyncio.ensure_future(_watch(follower, news, out))
    try:
        before = {one["id"] for one in await _resumes(follower, names)}
        answer = await follower.call_within(None, action, **names.both, **payload)
        if answer["already_running"]:
            return answer, {"how": "already_running"}
        while True:
            news.clear()
            if new := [one for one in await _resumes(follower, names) if one["id"] not in before]:
                return answer, max(new, key=lambda one: str(one["started_at"]))
            await news.wait()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        out.clear()


async def _resumes(follower: Follower, names: Names) -> list[dict[str, Any]]:
    got = await follower.call("task.session.get", session_id=names.session_id)
    resumes: list[dict[str, Any]] = got["resumes"]
    return resumes


async def _watch(follower: Follower, news: asyncio.Event, out: Output) -> None:
    try:
        async for update in follower.updates():
            if isinstance(update, Lost):
                out.progress("connection lost, trying again")
            elif isinstance(update, Notification):
                show_progress(update, out, doing="Bringing the session back")
            news.set()
    finally:
        news.set()  # a follower that gave up says why when it is called


def show_progress(update: Notification, out: Output, *, doing: str = "Getting the agent ready") -> None:
    """Show the stage of a start or resume, or that the agent works."""
    payload = update.payload
    if update.action == "session.resume.progress":
        elapsed = float(payload.get("elapsed_ms") or 0) / 1000
        duration = f" · {elapsed:.0f} s" if elapsed >= 1 else ""
        stage = str(payload.get("stage"))
        out.progress(f"{doing}: {STAGES.get(stage, stage)}{duration}")
    elif update.action == "session.turn.started":
        out.progress("The agent is working")


def turn_of(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the turn that an event tells of, with its id under `id`."""
    turn = payload.get("turn")
    if isinstance(turn, dict):
        return turn
    return {**payload, "id": payload.get("turn_id")}


def _not_sent(status: dict[str, Any]) -> TurnEnd | None:
    """Return the end of a prompt that no turn has taken: the queue is held, or the session is over."""
    if held := str(status.get("queue_held") or ""):
        return TurnEnd(state="held", why=str(status.get("error") or "") or HELD.get(held, held))
    if status.get("state") in _ENDED:
        return TurnEnd(state="ended", why=str(status.get("error") or ""))
    return None
