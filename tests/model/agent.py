"""An agent by script, in memory: it reads lines, and says what the words of a prompt make it say.

quick   a few pieces of text, a tool call, the end of the turn
slow    a few pieces, then it works until somebody lets it finish, or cancels
ask     asks for permission, and goes on with the answer
silent  ends the turn without a word
fail    answers the prompt with an error
forget  has lost its session, and says so to the prompt
die     ends in the middle of the turn
deaf    a few pieces, and then nothing, whatever is asked

Every process comes up in the mode "default" and at the pace "normal", whatever was set before.
"""

import json
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from invariants import request_in

MANNERS = ("quick", "slow", "ask", "silent", "fail", "forget", "die", "deaf")
KINDS = ("native", "resuming", "telling", "plain")
"""Restores by session/load; by session/resume; is told the history; does neither."""

UNKNOWN = {"code": -32002, "message": "Session not found"}
REFUSALS: Mapping[str, dict[str, Any]] = {
    "forgotten": UNKNOWN,
    "refused": {"code": -32603, "message": "service failure"},
    "unsupported": {"code": -32601, "message": "Method not found"},
    "login": {"code": -32000, "message": "Authentication required"},
    "in use": {"code": -32003, "message": "active writer"},
}
MODES = ("default", "plan", "edit")
PACES = ("normal", "fast")
RESTORES = ("good", *REFUSALS, "mute", "dies")
"""What may come of the next session/load or session/resume."""


class Received(NamedTuple):
    """A prompt that an agent has read: whose it was, which process, in which agent session, as sent, and set how."""

    session_id: str
    execution_id: str
    token: str
    text: str
    sent: str
    mode: str
    pace: str


class Chronicle(Protocol):
    """Where agents keep what outlives them, and where is noted what they did."""

    known: dict[str, int]
    """The agent sessions that are stored, with the number of turns that have ended in each."""
    ended: set[str]
    """Those in which a turn has ever ended."""
    made: dict[str, str]
    """Every agent session that was ever made, and the execution that made it."""
    refused: list[tuple[str, str, str]]
    """Session, token and kind of each refusal to restore, or of the first prompt behind a restore."""
    said: dict[tuple[str, str], list[str]]
    """What was said in the turn of a session's prompt, piece by piece, as far as it is in a journal."""
    answers: dict[str, list[Any]]
    """The answers that each question of an agent got."""

    def took(self, prompt: Received, /) -> None:
        """Note that an agent has read a prompt."""


class Work:
    """A prompt that the agent works on. `out` are the messages that are still to be said."""

    def __init__(self, rpc_id: int, text: str, manner: str) -> None:
        self.rpc_id = rpc_id
        self.text = text
        self.manner = manner
        self.said = 0
        self.question = ""


class ScriptedAgent:
    """One process of an agent. `out` are messages on their way to its stdout."""

    def __init__(self, kind: str, session_id: str, execution_id: str, chronicle: Chronicle, *, restore: str) -> None:
        self.kind = kind
        self.session_id = session_id
        self.execution_id = execution_id
        self.stdin: deque[bytes] = deque()
        self.out: deque[dict[str, Any]] = deque()
        self.work: Work | None = None
        self.token = ""
        self.dying = False
        self.deaf = False
        self.mode, self.pace = MODES[0], PACES[0]
        self._chronicle = chronicle
        self._restore = restore
        self._questions = 0
        self._just_restored = False

    def read(self) -> None:
        """Take one line from stdin and act on it."""
        message = json.loads(self.stdin.popleft())
        if self.deaf:
            return
        params = message.get("params") or {}
        match message.get("method"):
            case None:
                self._answered(message)
            case "initialize":
                self._answer(message["id"], self._capabilities())
            case "session/new":
                self._new(message["id"])
            case "session/load" | "session/resume" as method:
                self._restored(message["id"], str(params["sessionId"]), replays=method == "session/load")
            case "session/prompt":
                self._prompt(message["id"], str(params["sessionId"]), params["prompt"][0]["text"])
            case "session/cancel":
                self._cancel()
            case "session/set_mode":
                self.mode = str(params["modeId"])
                self._answer(message["id"], {})
            case "session/set_config_option":
                self.pace = str(params["value"])
                self._answer(message["id"], {"configOptions": self._setup()["configOptions"]})

    def finish(self) -> None:
        """End the turn that waits for this."""
        if self.work is not None and self.work.manner == "slow":
            self._say(1)
            self._end("end_turn")

    def _capabilities(self) -> dict[str, Any]:
        sessions: dict[str, Any] = {"resume": {}} if self.kind == "resuming" else {}
        return {
            "protocolVersion": 1,
            "agentInfo": {"name": self.kind, "version": "1"},
            "agentCapabilities": {"loadSession": self.kind == "native", "sessionCapabilities": sessions},
        }

    def _new(self, rpc_id: int) -> None:
        token = f"agent-session-{len(self._chronicle.made) + 1}"
        self._chronicle.made[token] = self.execution_id
        self.token = token
        self._answer(rpc_id, {"sessionId": token, **self._setup()})

    def _restored(self, rpc_id: int, token: str, *, replays: bool) -> None:
        how = self._restore
        if how == "mute":
            self.deaf = True
        elif how == "dies":
            self.dying = True
        elif how in REFUSALS or token not in self._chronicle.known:
            how = how if how in REFUSALS else "forgotten"
            if how == "forgotten":
                self._chronicle.known.pop(token, None)
            self._chronicle.refused.append((self.session_id, token, how))
            self.out.append({"id": rpc_id, "error": REFUSALS[how]})
        else:
            self.token, self._just_restored = token, True
            if replays:
                for number in range(self._chronicle.known[token]):
                    self._update("user_message_chunk", f"replayed prompt {number}")
                    self._update("agent_message_chunk", f"replayed answer {number}")
            self._answer(rpc_id, self._setup())

    def _setup(self) -> dict[str, Any]:
        modes = {"currentModeId": self.mode, "availableModes": [{"id": mode, "name": mode} for mode in MODES]}
        values = [{"value": pace, "name": pace} for pace in PACES]
        pace = {"id": "pace", "name": "Pace", "type": "select", "currentValue": self.pace, "options": values}
        return {"modes": modes, "configOptions": [pace]}

    def _prompt(self, rpc_id: int, token: str, sent: str) -> None:
        chronicle, text = self._chronicle, request_in(sent)
        chronicle.took(Received(self.session_id, self.execution_id, token, text, sent, self.mode, self.pace))
        manner = text.rpartition(" ")[2]
        if manner == "forget":
            chronicle.known.pop(token, None)
            if self._just_restored:
                chronicle.refused.append((self.session_id, token, "forgotten"))
            self.out.append({"id": rpc_id, "error": UNKNOWN})
            return
        chronicle.known.setdefault(token, 0)
        if manner == "fail":
            self.out.append({"id": rpc_id, "error": {"code": -32603, "message": "the model is overloaded"}})
            return
        self.work = Work(rpc_id, text, manner)
        self._act(manner)

    def _act(self, manner: str) -> None:
        if manner == "silent":
            self._end("end_turn")
            return
        self._say(2)
        if manner == "quick":
            self._tool()
            self._say(1)
            self._end("end_turn")
        elif manner == "ask":
            self._ask()
        self.dying = manner == "die"
        self.deaf = manner == "deaf"

    def _cancel(self) -> None:
        if self.work is not None and not self.work.question:
            self._end("cancelled")

    def _answered(self, message: dict[str, Any]) -> None:
        question = str(message["id"])
        self._chronicle.answers.setdefault(f"{self.execution_id} {question}", []).append(message.get("result"))
        work = self.work
        if work is None or work.question != question:
            return
        work.question = ""
        chosen = message["result"]["outcome"]["outcome"] == "selected"
        self._say(1)
        self._end("end_turn" if chosen else "cancelled")

    def _ask(self) -> None:
        assert self.work is not None
        self._questions += 1
        self.work.question = f"ask-{self._questions}"
        options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
        params = {"sessionId": self.token, "toolCall": {"toolCallId": "call-1", "title": "Dig"}, "options": options}
        self.out.append({"id": self.work.question, "method": "session/request_permission", "params": params})

    def _tool(self) -> None:
        call = {"toolCallId": "call-2", "title": "Look", "kind": "read", "status": "in_progress"}
        self._raw_update({"sessionUpdate": "tool_call", **call})
        self._raw_update({"sessionUpdate": "tool_call_update", "toolCallId": "call-2", "status": "completed"})

    def _say(self, pieces: int) -> None:
        work = self.work
        assert work is not None
        for _ in range(pieces):
            work.said += 1
            self._update("agent_message_chunk", f"[{work.text} {work.said}]")

    def _end(self, reason: str) -> None:
        assert self.work is not None
        self._chronicle.known[self.token] = self._chronicle.known.get(self.token, 0) + 1
        self._chronicle.ended.add(self.token)
        self._just_restored = False
        self._answer(self.work.rpc_id, {"stopReason": reason})
        self.work = None

    def _update(self, kind: str, text: str) -> None:
        self._raw_update({"sessionUpdate": kind, "content": {"type": "text", "text": text}})

    def _raw_update(self, update: dict[str, Any]) -> None:
        self.out.append({"method": "session/update", "params": {"sessionId": self.token, "update": update}})

    def _answer(self, rpc_id: int, result: Any) -> None:
        self.out.append({"id": rpc_id, "result": result})
