"""A stand-in for Claude Code's and Amp's command lines: sessions on disk, and the lines that those two write.

    stream_agent.py DIRECTORY claude [flags of Claude Code]
    stream_agent.py DIRECTORY amp [threads continue ID | threads fork ID] [flags of Amp]

A prompt may say: "remember WORD", "what?" (every word), "slow N" (pieces, 0.1 s apart), "tool NAME" (a tool call, for
which Claude Code asks), "crash". Files in DIRECTORY change how it is: "login" (not logged in), "quiet" (an unknown
session is told on stderr only), "deaf" (an interrupt is answered and ignored), "forkless" (Amp's newer versions copy
no thread). It logs each start to log.jsonl, and what it is told beside prompts to controls.jsonl.
Amp's way is that of its manual, and of a version of April 2026: one result only, when its input ends.
"""

import json
import os
import queue
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

PAUSE_S = 0.1
Json = dict[str, Any]


class Agent:
    """One process."""

    def __init__(self, directory: Path, arguments: list[str]) -> None:
        self.directory = directory
        self.arguments = arguments
        self.session = str(uuid.uuid4())
        self.known: list[Json] = []
        self.lines: queue.Queue[Json | None] = queue.Queue()
        self.interrupted = threading.Event()
        self.answers: queue.Queue[Json] = queue.Queue()
        with (directory / "log.jsonl").open("a") as log:
            log.write(json.dumps({"pid": os.getpid(), "arguments": arguments}) + "\n")

    def say(self, kind: str, /, **more: Any) -> None:
        line = {"type": kind, **more, "session_id": self.session}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def has(self, name: str) -> bool:
        return (self.directory / name).exists()

    def file(self, session: str) -> Path:
        return self.directory / f"session-{session}.json"

    def keep(self, **message: Any) -> str:
        """Records a message; its uuid."""
        message["uuid"] = str(uuid.uuid4())
        self.known.append(message)
        self.file(self.session).write_text(json.dumps(self.known))
        return str(message["uuid"])

    def words(self) -> str:
        texts = [message["text"] for message in self.known if message["role"] == "user"]
        return " ".join(text.removeprefix("remember ") for text in texts if text.startswith("remember ")) or "nothing"

    def read(self) -> None:
        """Reads all input, in a thread of its own: answers and interrupts come in the middle of a turn."""
        for line in sys.stdin:
            message = json.loads(line)
            if message["type"] == "control_response":
                self.answers.put(message["response"])
            elif message.get("request", {}).get("subtype") == "interrupt":
                self.answer(message, {"still_queued": []})
                if not self.has("deaf"):
                    self.interrupted.set()
            else:
                self.lines.put(message)
        self.lines.put(None)

    def answer(self, message: Json, answer: Json) -> None:
        response = {"subtype": "success", "request_id": message["request_id"], "response": answer}
        sys.stdout.write(json.dumps({"type": "control_response", "response": response}) + "\n")
        sys.stdout.flush()

    def run(self) -> None:
        threading.Thread(target=self.read, daemon=True).start()
        while (message := self.lines.get()) is not None:
            if message["type"] == "user":
                self.turn(message["message"]["content"][0]["text"])
            else:
                self.control(message)
        self.close()

    def restore(self) -> None:
        """Looks at the arguments for a session to go on with."""

    def control(self, message: Json) -> None:
        raise NotImplementedError

    def turn(self, text: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Its input has ended."""


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1] if name in arguments else ""


class Claude(Agent):
    """Claude Code."""

    mode = "default"

    def restore(self) -> None:
        wanted, at = option(self.arguments, "--resume"), option(self.arguments, "--resume-session-at")
        if not wanted:
            return
        if not self.file(wanted).exists():
            self.refuse(f"No conversation found with session ID: {wanted}", wanted)
        self.known = json.loads(self.file(wanted).read_text())
        if at:
            places = [place for place, message in enumerate(self.known) if message["uuid"] == at]
            if not places:
                self.refuse(f"No message found with message.uuid of: {at}", wanted)
            self.known = self.known[: places[0] + 1]
        if "--fork-session" not in self.arguments:
            self.session = wanted

    def refuse(self, text: str, session: str) -> None:
        self.session = session
        if not self.has("quiet"):
            sys.stdin.readline()
            self.say("result", subtype="error_during_execution", is_error=True, num_turns=0, errors=[text])
        sys.exit(text)

    def control(self, message: Json) -> None:
        request = message["request"]
        with (self.directory / "controls.jsonl").open("a") as log:
            log.write(json.dumps(request) + "\n")
        if request["subtype"] == "mcp_set_servers":
            answer: Json = {"added": list(request["servers"]), "removed": [], "errors": {"broken": "Connection closed"}}
        elif request["subtype"] == "initialize":
            answer = {
                "claude_code_version": "9.9.9",
                "commands": [{"name": "compact", "description": "Shortens"}],
                "models": [{"value": "big", "displayName": "Big"}],
                "current_permission_mode": self.mode,
            }
        else:
            self.mode = request.get("mode", self.mode)
            answer = {"mode": self.mode}
        self.answer(message, answer)

    def turn(self, text: str) -> None:
        self.interrupted.clear()
        self.say("system", subtype="init", permissionMode=self.mode, model="big")
        self.keep(role="user", text=text)
        said = {"role": "user", "content": [{"type": "text", "text": text}]}
        self.say("user", message=said, parent_tool_use_id=None, isReplay=True)
        if self.has("login"):
            words = "Invalid API key · Please run /login"
            message = {"id": "x", "model": "<synthetic>", "content": [{"type": "text", "text": words}]}
            self.say("assistant", message=message, parent_tool_use_id=None, error="authentication_failed")
            self.say("result", subtype="success", is_error=True, num_turns=1, result=words)
            return
        if text.startswith("tool ") and not self.use_tool(text.removeprefix("tool ")):
            return
        pieces = [f"piece {n} " for n in range(1, int(text.split()[1]) + 1)] if text.startswith("slow ") else []
        if text == "crash":
            pieces = ["about to"]
        self.speak(pieces or [f"I know {self.words()}", ", and say so."], crash=text == "crash")

    def speak(self, pieces: list[str], *, crash: bool) -> None:
        name, spoken = f"msg_{uuid.uuid4().hex[:8]}", ""
        self.stream({"type": "message_start", "message": {"id": name}})
        self.stream({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        for piece in pieces:
            if self.interrupted.is_set():
                break
            spoken += piece
            delta = {"type": "text_delta", "text": piece}
            self.stream({"type": "content_block_delta", "index": 0, "delta": delta})
            if len(pieces) > 2:
                time.sleep(PAUSE_S)
        if crash:
            os.abort()
        block = {"type": "text", "text": spoken}
        key = self.keep(role="assistant", text=spoken)
        self.say("assistant", message={"id": name, "content": [block]}, parent_tool_use_id=None, uuid=key)
        self.stream({"type": "content_block_stop", "index": 0})
        self.end(spoken)

    def end(self, spoken: str) -> None:
        if self.interrupted.is_set():
            errors = ["[diagnostic] nothing for a person"]
            why = "aborted_streaming"
            self.say("result", subtype="error_during_execution", is_error=True, errors=errors, terminal_reason=why)
            return
        usage = {"input_tokens": 10 * len(self.known), "output_tokens": 5}
        told = {"stop_reason": "end_turn", "num_turns": 1, "usage": usage, "result": spoken}
        self.say("result", subtype="success", is_error=False, **told)

    def stream(self, event: Json) -> None:
        self.say("stream_event", event=event, parent_tool_use_id=None)

    def use_tool(self, name: str) -> bool:
        """Asks and uses the tool; False when the turn has ended over it."""
        call = {"type": "tool_use", "id": f"toolu_{name}", "name": "Bash", "input": {"command": name}}
        key = self.keep(role="assistant", text="")
        self.say("assistant", message={"id": "m", "content": [call]}, parent_tool_use_id=None, uuid=key)
        rule = {"toolName": "Bash", "ruleContent": f"{name} *"}
        suggestions = [{"type": "addRules", "rules": [rule], "behavior": "allow", "destination": "session"}]
        request: Json = {"subtype": "can_use_tool", "tool_name": "Bash", "input": call["input"]}
        request |= {"tool_use_id": call["id"], "permission_suggestions": suggestions}
        line = {"type": "control_request", "request_id": f"ask-{name}", "request": request}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        answer = self.answers.get()["response"]
        (self.directory / f"answer-{name}.json").write_text(json.dumps(answer))
        allowed = answer["behavior"] == "allow"
        said = {"type": "tool_result", "tool_use_id": call["id"], "content": "done" if allowed else answer["message"]}
        result = {**said, "is_error": not allowed}
        self.say("user", message={"role": "user", "content": [result]}, parent_tool_use_id=None)
        if answer.get("interrupt"):
            self.interrupted.set()
            self.end("")
        return not answer.get("interrupt")


class Amp(Agent):
    """Amp. Its threads lie on its server, which here is the directory."""

    turns = 0
    last = ""

    def restore(self) -> None:
        self.session = f"T-{self.session}"
        if self.arguments[:1] == ["threads"]:
            verb, wanted = self.arguments[1:3]
            if verb == "fork" and self.has("forkless"):
                sys.exit("The fork command has been deprecated.")
            if not self.file(wanted).exists():
                sys.stdin.readline()  # it connects first; a prompt is long written by then
                sys.exit(f"Error: Thread {wanted} not found or you don't have access. Verify the ID.")
            self.known = json.loads(self.file(wanted).read_text())
            if verb == "fork":
                self.file(self.session).write_text(json.dumps(self.known))
                sys.stdout.write(f"{self.session}\n")
                sys.exit()
            self.session = wanted

    def run(self) -> None:
        if self.has("login"):
            sys.stdout.write("No API key found. Starting login flow...\nWhen prompted, paste your code here: ")
            sys.stdout.flush()
            sys.stdin.readline()
            sys.exit("Login failed: That code looks incomplete. Copy the full code from the browser and try again.")
        self.say("system", subtype="init", cwd=str(Path.cwd()), tools=["Bash"], mcp_servers=[])
        super().run()

    def turn(self, text: str) -> None:
        self.keep(role="user", text=text)
        said = {"role": "user", "content": [{"type": "text", "text": text}]}
        self.say("user", message=said, parent_tool_use_id=None)
        if text.startswith("tool "):
            name = text.removeprefix("tool ")
            call = {"type": "tool_use", "id": f"toolu_{name}", "name": "Bash", "input": {"cmd": name}}
            self.whole([call], "tool_use")
            done = {"type": "tool_result", "tool_use_id": call["id"], "content": "done", "is_error": False}
            self.say("user", message={"role": "user", "content": [done]}, parent_tool_use_id=None)
        if text.startswith("slow "):
            time.sleep(PAUSE_S * int(text.split()[1]))
        if text == "crash":
            os.abort()
        self.last = f"I know {self.words()}."
        self.keep(role="assistant", text=self.last)
        self.whole([{"type": "text", "text": self.last}], "end_turn")

    def whole(self, content: list[Json], reason: str) -> None:
        self.turns += 1
        message = {"type": "message", "role": "assistant", "content": content, "stop_reason": reason}
        self.say("assistant", message=message, parent_tool_use_id=None)

    def close(self) -> None:
        self.say("result", subtype="success", is_error=False, num_turns=self.turns, result=self.last)


if __name__ == "__main__":
    place, kind, *rest = sys.argv[1:]
    agent = {"claude": Claude, "amp": Amp}[kind](Path(place), rest)
    agent.restore()
    agent.run()
