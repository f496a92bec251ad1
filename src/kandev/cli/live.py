"""What `kandev attach` shows and takes: messages as they grow, questions with numbers, lines that are typed."""

import asyncio
from typing import Any

from kandev.cli.client import new_client_id
from kandev.cli.follow import Follower, Notification, Snapshot, Update
from kandev.cli.keyboard import Keyboard
from kandev.cli.permission import choose, question_lines
from kandev.cli.run import Connected, Names
from kandev.cli.transcript import LiveTranscript
from kandev.cli.wait import respond, show_progress, turn_of
from kandev.cli.words import HELD, next_step, resume_words
from kandev.errors import KandevError

_OVERLAP = 20  # messages read again after a gap: those may have grown or changed
_PAGE = 200
_ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
_TURN_ENDS = {
    "cancelled": "The turn was cancelled. Queued messages are kept.",
    "interrupted": "The turn was cut off. Text up to there is kept; its last steps may or may not have run.",
    "failed": "The turn failed. Text up to there is kept.",
}


class LiveView:
    """One attach: what was shown, and the questions that wait."""

    def __init__(self, context: Connected, names: Names, *, agent: str, last: int) -> None:
        self._context = context
        self._out = context.out
        self._names = names
        self._live = LiveTranscript(agent)
        self._last = last
        self._first = True
        self._questions: dict[str, dict[str, Any]] = {}

    async def run(self) -> None:
        """Show and take lines until the session has ended (in a pipe) or the input has (on a terminal)."""
        async with self._context.follower(self._names) as follower:
            shower = asyncio.ensure_future(self._show(follower))
            tasks = {shower}
            if self._out.interactive:
                tasks.add(asyncio.ensure_future(self._type(follower)))
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    # Showing

    async def _show(self, follower: Follower) -> None:
        async for update in follower.updates():
            if self._out.as_json:
                ended = self._record(update)
            else:
                ended = await self._write(follower, update)
            if ended and not self._out.interactive:
                return

    def _record(self, update: Update) -> bool:
        if isinstance(update, Notification):
            self._out.record({"action": update.action, "payload": update.payload})
            return update.payload.get("new_state") in _ENDED
        if isinstance(update, Snapshot):
            self._out.record({"action": "snapshot", "payload": update.payload})
            return update.payload["session"]["state"] in _ENDED
        self._out.record({"action": "connection.lost", "payload": {}})
        return False

    async def _write(self, follower: Follower, update: Update) -> bool:
        if isinstance(update, Snapshot):
            await self._snapshot(follower, update.payload)
            return update.payload["session"]["state"] in _ENDED
        if not isinstance(update, Notification):
            self._line("Connection lost; trying again. What you typed is kept by the backend, and the agent goes on.")
            return False
        self._event(update.action, update.payload)
        await self._fetch_missing(follower)
        return update.payload.get("new_state") in _ENDED

    async def _fetch_missing(self, follower: Follower) -> None:
        for identity in sorted(self._live.missing):
            self._live.missing.discard(identity)
            try:
                answer = await follower.call("message.get", session_id=self._names.session_id, message_id=identity)
            except KandevError as error:  # larger than a frame, or deleted meanwhile
                self._line(f"── A message cannot be shown: {error.message}")
                continue
            self._text(self._live.message(answer["message"]))

    async def _snapshot(self, follower: Follower, payload: dict[str, Any]) -> None:
        messages = [one for one in payload["messages"] if isinstance(one.get("seq"), int)]
        if self._first:
            self._first = False
            self._introduce(payload)
            self._text(self._live.messages(messages[-self._last :] if self._last else []))
            self._live.last_seq = max((one["seq"] for one in messages), default=0)
        else:
            await self._catch_up(follower)
            self._line("Connected again; this is where it stands.")
        if payload["turn"] is None:
            self._text(self._live.end_line())
        self._questions = {}
        for request in payload.get("permissions") or []:
            self._ask(request)

    async def _catch_up(self, follower: Follower) -> None:
        after, more = max(self._live.last_seq - _OVERLAP, 0), True
        while more:
            page = await follower.call("message.list", session_id=self._names.session_id, after=after, limit=_PAGE)
            self._text(self._live.messages(page["messages"]))
            more = bool(page["has_more"])
            after = page["messages"][-1]["seq"] if page["messages"] else after

    def _introduce(self, payload: dict[str, Any]) -> None:
        if self._out.interactive:
            self._out.note("Type to send; a number answers a question; Ctrl-C leaves and the agent goes on.")
        if payload["status"].get("needs_resume"):
            self._out.note("The agent is not running. Nothing is lost; your next message starts it again.")

    def _event(self, action: str, payload: dict[str, Any]) -> None:
        handler = {
            "session.message.added": self._message,
            "session.message.updated": self._message,
            "session.message.delta": self._delta,
            "session.turn.completed": self._turn_completed,
            "session.resume.progress": self._progress,
            "session.resume.completed": self._resumed,
            "session.resume.failed": self._resumed,
            "session.state_changed": self._state,
            "permission.requested": self._ask_event,
            "permission.resolved": self._resolved,
            "message.queue.changed": self._queue,
        }.get(action)
        if handler is not None:
            handler(payload)

    def _message(self, payload: dict[str, Any]) -> None:
        if message := payload.get("message"):
            if (message.get("metadata") or {}).get("state") == "pending":
                return  # a question: `_ask` shows it with its options
            self._text(self._live.message(message))
        elif identity := payload.get("message_id"):
            self._live.missing.add(str(identity))  # it was too large for a notification

    def _delta(self, payload: dict[str, Any]) -> None:
        if "text" not in payload:
            self._live.missing.add(str(payload["message_id"]))
            return
        self._text(self._live.delta(str(payload["message_id"]), int(payload["offset"]), str(payload["text"])))

    def _turn_completed(self, payload: dict[str, Any]) -> None:
        turn = turn_of(payload)
        if words := _TURN_ENDS.get(str(turn.get("state"))):
            self._line(f"── {words}")
        else:
            self._text(self._live.end_line())

    def _progress(self, payload: dict[str, Any]) -> None:
        show_progress(Notification(action="session.resume.progress", payload=payload), self._out)

    def _resumed(self, payload: dict[str, Any]) -> None:
        if "code" in payload:  # a failure
            payload = {"error": payload.get("message") or payload.get("reason") or payload["code"]}
        for line in resume_words(payload, self._names.typed):
            self._line(f"── {line}")

    def _state(self, payload: dict[str, Any]) -> None:
        state = str(payload.get("new_state"))
        if state in _ENDED:
            error = str(payload.get("error_message") or "")
            self._line(f"── The session is {state.lower()}." + (f" {error}" if error else ""))

    def _queue(self, payload: dict[str, Any]) -> None:
        if held := str(payload.get("held") or ""):
            self._line(f"── The queue is {HELD.get(held, held)}: kandev queue {self._names.typed}")

    # Questions

    def _ask_event(self, payload: dict[str, Any]) -> None:
        self._ask(payload.get("permission") or payload.get("request") or payload)

    def _ask(self, request: dict[str, Any]) -> None:
        identity = str(request.get("id") or request.get("request_id"))
        if identity in self._questions:
            return
        self._questions[identity] = request
        for line in question_lines(request):
            self._line(line)
        hint = "Type its number." if self._out.interactive else f"Answer with: kandev answer {self._names.typed} NUMBER"
        self._line(hint)

    def _resolved(self, payload: dict[str, Any]) -> None:
        request = payload.get("permission") or payload.get("request") or payload
        self._questions.pop(str(request.get("id") or request.get("request_id")), None)

    # Typing

    async def _type(self, follower: Follower) -> None:
        with Keyboard() as keyboard:
            while (typed := await keyboard.line()) is not None:
                try:
                    await self._typed(follower, typed)
                except KandevError as error:
                    self._line(f"{error.message} {next_step(error, self._names.typed)}".rstrip())
        self._out.note(f"Left. The agent goes on; come back with: kandev attach {self._names.typed}")

    async def _typed(self, follower: Follower, typed: str) -> None:
        self._live.end_line()  # the terminal made the new line
        if not typed.strip():
            return
        if self._questions and (typed.strip().isdecimal() or typed.strip() == "cancel"):
            identity, request = next(iter(self._questions.items()))
            await respond(follower.call, self._names.session_id, identity, choose(request, typed))
            return
        client_id = new_client_id()
        self._live.own.add(client_id)
        await follower.call("message.add", **self._names.both, content=typed, client_message_id=client_id)

    def _text(self, text: str) -> None:
        if text:
            self._out.clear()
            self._out.text(text)

    def _line(self, text: str) -> None:
        self._text(self._live.line(text))
