"""The demo agent: speaks the Agent Client Protocol (ACP) on stdio, needs no network, keeps its sessions on disk.

    remember WORD        keeps the word; may end any text ("please remember apple")
    what is the word?    tells it, from the conversation or from a resume context that was injected
    slow N               N chunks, 100 ms apart
    flood N              N chunks as fast as possible (a load and a resume know only that it happened)
    tool NAME            one tool call that completes
    ask                  a permission request; says what was chosen
    plan                 a plan
    mode                 the mode and the model that are set
    crash                ends at once with exit code 3
    anything else        an echo

Options: `--no-load` and `--no-resume` leave out `session/load` and `session/resume`. Sessions are stored from their
first prompt on, in KANDEV_DEMO_AGENT_HOME or ~/.kandev-demo-agent. A mode or model is not stored: it comes back as the
default, as in many agents.

One file, standard library only and no asyncio, so that `python -I -S agent.py` answers within a few hundredths of a
second. A thread runs each turn; the main thread goes on reading, so that a cancel or an answer reaches the turn.
"""

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any

Json = dict[str, Any]

SLOW_STEP_S = 0.1
"""Pause behind each chunk of `slow N`, in seconds."""

FLOOD_BATCH = 500
"""Chunks of `flood N` that go out in one write."""

MODES = {"default": "Default", "plan": "Plan"}
MODELS = {"demo-small": "Demo small", "demo-large": "Demo large"}
COMMANDS = [
    {"name": "remember", "description": "Remember a word", "input": {"hint": "WORD"}},
    {"name": "slow", "description": "Answer slowly", "input": {"hint": "number of chunks"}},
]

NOT_FOUND, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS, PARSE_ERROR = -32002, -32600, -32601, -32602, -32700

SESSION_ID = re.compile(r"demo-[0-9a-f]{32}")
WORD = re.compile(r"\bremember[ \t]+(?:the[ \t]+word[ \t]+)?[\"']?([\w-]+)\W*$", re.IGNORECASE | re.MULTILINE)
QUESTION = re.compile(r"\bwhat(?:'s|\s+is|\s+was)\s+the\s+word\b", re.IGNORECASE)


class Rejected(Exception):  # named for what it does to the request
    """Raised to answer a request with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def split_context(text: str) -> tuple[str, str]:
    """Split a prompt into what was injected before it and the request itself.

    A prompt without a resume context has no history. Only what stands under the last "CURRENT REQUEST" is the request.
    """
    history, mark, rest = text.rpartition("=== CURRENT REQUEST ===")
    if not mark or "RESUME CONTEXT FOR CONTINUING TASK" not in history:
        return "", text.strip()
    request, instructions, _ = rest.rpartition("=== INSTRUCTIONS ===")
    return history, (request if instructions else rest).strip()


def find_word(texts: Iterable[str]) -> str | None:
    """Return the word that was last to be remembered in these texts, which go from old to new."""
    words = [word for text in texts for word in WORD.findall("\n".join(split_context(text)))]
    return words[-1] if words else None


def pieces(text: str) -> Iterator[str]:
    """Cut a text into at most twelve pieces, between words."""
    words = re.findall(r"\s*\S+\s*", text) or [text]
    step = -(-len(words) // 12)
    return ("".join(words[start : start + step]) for start in range(0, len(words), step))


def new_id(prefix: str) -> str:
    """Return a random id."""
    return f"{prefix}-{os.urandom(16).hex()}"


def encode(**message: Any) -> bytes:
    """Return a JSON-RPC message as a line."""
    text = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


class Wire:
    """Writes messages to a descriptor, whole lines only, from any thread. Ends the process when the client is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Write bytes that end with a newline."""
        rest = memoryview(data)
        with self._lock:
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except BrokenPipeError:
                os._exit(0)

    def send(self, **message: Any) -> None:
        """Write one JSON-RPC message."""
        self.write(encode(**message))

    def update(self, session_id: str, kind: str, /, **fields: Any) -> None:
        """Write one `session/update`."""
        self.send(
            method="session/update", params={"sessionId": session_id, "update": {"sessionUpdate": kind, **fields}}
        )


class Store:
    """One JSONL file per session. It is only appended to, so a killed process loses at most the line it was writing."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def _path(self, session_id: str) -> str:
        return os.path.join(self._directory, f"{session_id}.jsonl")

    def append(self, session_id: str, record: Json) -> None:
        """Append one record, on a line of its own even behind a torn one."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        line = json.dumps(record).encode() + b"\n"
        with open(os.open(self._path(session_id), os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "rb+", 0) as file:
            if file.seek(0, os.SEEK_END) and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                line = b"\n" + line
            file.write(line)

    def read(self, session_id: str) -> list[Json]:
        """Return the records of a session, without unreadable lines; empty when there is no such session."""
        if not SESSION_ID.fullmatch(session_id):
            return []
        try:
            with open(self._path(session_id), "rb") as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        return [record for line in lines if (record := parse(line)) is not None]

    def sessions(self) -> list[str]:
        """Return the ids of all stored sessions."""
        if not os.path.isdir(self._directory):
            return []
        names = (os.path.splitext(name)[0] for name in sorted(os.listdir(self._directory)))
        return [name for name in names if SESSION_ID.fullmatch(name)]


def parse(line: bytes) -> Json | None:
    """Return the JSON object on a line, or None when there is none."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class Session:
    """One conversation: its records as they are on disk, the mode and model of this process, the turn that runs."""

    def __init__(self, session_id: str, cwd: str, records: list[Json]) -> None:
        self.id = session_id
        self.cwd = cwd
        self.records = records
        self.mode = "default"
        self.model = "demo-small"
        self.turn: Turn | None = None

    def state(self) -> Json:
        """Return the part that the answers of new, load and resume have in common."""
        modes = [{"id": mode, "name": name} for mode, name in MODES.items()]
        return {
            "modes": {"currentModeId": self.mode, "availableModes": modes},
            "configOptions": self.options(),
        }

    def options(self) -> list[Json]:
        """Return all config options."""
        values = [{"value": value, "name": name} for value, name in MODELS.items()]
        model = {"id": "model", "name": "Model", "category": "model", "type": "select"}
        return [{**model, "currentValue": self.model, "options": values}]


class Turn:
    """One prompt until its stop reason."""

    def __init__(self, wire: Wire, store: Store, session: Session) -> None:
        self.cancelled = threading.Event()
        self.answers: SimpleQueue[Json | None] = SimpleQueue()
        self.request_id = new_id("permission")
        self._wire, self._store, self._session = wire, store, session
        self._message_id = new_id("message")
        self._said: list[str] = []

    def cancel(self) -> None:
        """Stop at the next chance."""
        self.cancelled.set()
        self.answers.put(None)

    def run(self, text: str) -> str:
        """Answer the prompt and return the stop reason. The prompt is stored at once, the answer at the end."""
        if not self._session.records:
            self._record(type="session", cwd=self._session.cwd, created_at=time.time())
        self._record(type="user", id=new_id("message"), text=text)
        request = split_context(text)[1]
        for pattern, act in ACTIONS:
            if found := pattern.fullmatch(request):
                act(self, *found.groups())
                break
        else:
            self._converse(request)
        if self._said:
            self._record(type="agent", id=self._message_id, text="".join(self._said))
        return "cancelled" if self.cancelled.is_set() else "end_turn"

    def _record(self, **record: Any) -> None:
        self._session.records.append(record)
        self._store.append(self._session.id, record)

    def _converse(self, request: str) -> None:
        if QUESTION.search(request):
            word = find_word(record["text"] for record in self._session.records if record["type"] == "user")
            self.say(f"The word is {word}." if word else "I do not know any word.")
        elif word := find_word([request]):
            self.say(f"I will remember the word {word}.")
        else:
            self.say(f"You said: {request}")

    def _chunk(self, text: str) -> None:
        self._said.append(text)
        content = {"type": "text", "text": text}
        self._wire.update(self._session.id, "agent_message_chunk", messageId=self._message_id, content=content)

    def say(self, text: str) -> None:
        """Stream a text."""
        for piece in pieces(text):
            self._chunk(piece)

    def slow(self, count: str) -> None:
        """Say something in chunks that are 100 ms apart."""
        for number in range(1, int(count) + 1):
            self._chunk(f"step {number} ")
            if self.cancelled.wait(SLOW_STEP_S):
                return

    def flood(self, count: str) -> None:
        """Say numbered chunks as fast as possible. Only a note is remembered: the text may not fit into memory."""
        fields = {"messageId": self._message_id, "content": {"type": "text", "text": "chunk @"}}
        params = {"sessionId": self._session.id, "update": {"sessionUpdate": "agent_message_chunk", **fields}}
        head, tail = encode(method="session/update", params=params).decode().split("@")
        last = int(count)
        for start in range(1, last + 1, FLOOD_BATCH):
            if self.cancelled.is_set():
                break
            numbers = range(start, min(start + FLOOD_BATCH, last + 1))
            self._wire.write("".join([f"{head}{number} {tail}" for number in numbers]).encode())
        self._said.append(f"(a flood of {last} chunks)")

    def tool(self, name: str) -> None:
        """Use one tool, which completes."""
        call = {"type": "tool", "id": new_id("call"), "title": name, "text": f"{name} is done"}
        show_tool(self._wire, self._session.id, call)
        self._record(**call)
        self.say(f"I used the tool {name}.")

    def ask(self) -> None:
        """Ask for permission, and say what was chosen."""
        call = {"toolCallId": new_id("call"), "title": "Write the file", "kind": "edit", "status": "pending"}
        options = [
            {"optionId": "allow", "name": "Allow once", "kind": "allow_once"},
            {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
        ]
        params = {"sessionId": self._session.id, "toolCall": call, "options": options}
        self._wire.send(id=self.request_id, method="session/request_permission", params=params)
        answer = self.answers.get()
        outcome = ((answer or {}).get("result") or {}).get("outcome") or {}
        if answer is None or outcome.get("outcome") == "cancelled":
            self.cancelled.set()
            return
        self.say(f"You chose: {outcome.get('optionId', 'nothing')}.")

    def plan(self) -> None:
        """Show a plan."""
        steps = [("Read", "completed"), ("Think", "in_progress"), ("Write", "pending")]
        entries = [{"content": content, "priority": "medium", "status": status} for content, status in steps]
        self._wire.update(self._session.id, "plan", entries=entries)
        self.say("This is the plan.")

    def mode(self) -> None:
        """Say which mode and model are set."""
        self.say(f"Mode {self._session.mode}, model {self._session.model}.")

    def crash(self) -> None:
        """End the process."""
        print("demo agent: told to crash", file=sys.stderr, flush=True)
        os._exit(3)


ACTIONS: list[tuple[re.Pattern[str], Callable[..., None]]] = [
    (re.compile(r"slow (\d+)"), Turn.slow),
    (re.compile(r"flood (\d+)"), Turn.flood),
    (re.compile(r"tool (\S+)"), Turn.tool),
    (re.compile(r"ask"), Turn.ask),
    (re.compile(r"plan"), Turn.plan),
    (re.compile(r"mode"), Turn.mode),
    (re.compile(r"crash"), Turn.crash),
]


def show_tool(wire: Wire, session_id: str, call: Json) -> None:
    """Send a stored tool call as its start and its end."""
    head = {"toolCallId": call["id"], "title": call["title"], "kind": "execute"}
    wire.update(session_id, "tool_call", **head, status="in_progress", rawInput={"name": call["title"]})
    content = [{"type": "content", "content": {"type": "text", "text": call["text"]}}]
    wire.update(session_id, "tool_call_update", toolCallId=call["id"], status="completed", content=content)


class Agent:
    """Answers ACP requests for the sessions of one process."""

    def __init__(self, wire: Wire, store: Store, options: set[str]) -> None:
        self._wire, self._store, self._options = wire, store, options
        self._sessions: dict[str, Session] = {}
        self._methods: dict[str, Callable[[Json], Json]] = {
            "initialize": self._initialize,
            "session/new": self._new,
            "session/list": self._list,
            "session/close": self._close,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_option,
        }
        if "--no-load" not in options:
            self._methods["session/load"] = self._load
        if "--no-resume" not in options:
            self._methods["session/resume"] = self._resume

    def receive(self, message: Json) -> None:
        """Take one message of the client: a request, a notification, or the answer to a request of ours."""
        method, request_id = message.get("method"), message.get("id")
        params = message.get("params") or {}
        if method == "session/cancel":
            self._cancel(params)
        elif method is None:
            self._answered(message)
        elif request_id is not None:
            self._request(request_id, str(method), params)

    def _request(self, request_id: Any, method: str, params: Json) -> None:
        try:
            if method == "session/prompt":
                self._prompt(request_id, params)
                return
            result = self._methods.get(method, unknown_method)(params)
        except Rejected as error:
            self._wire.send(id=request_id, error={"code": error.code, "message": str(error)})
            return
        self._wire.send(id=request_id, result=result)
        if method in {"session/new", "session/load", "session/resume"}:
            session_id = result.get("sessionId") or params["sessionId"]
            self._wire.update(session_id, "available_commands_update", availableCommands=COMMANDS)

    def _initialize(self, _params: Json) -> Json:
        session: Json = {"list": {}, "close": {}}
        if "session/resume" in self._methods:
            session["resume"] = {}
        capabilities = {"loadSession": "session/load" in self._methods, "sessionCapabilities": session}
        info = {"name": "kandev-demo-agent", "title": "Demo agent", "version": "1.0.0"}
        return {"protocolVersion": 1, "agentCapabilities": capabilities, "agentInfo": info, "authMethods": []}

    def _new(self, params: Json) -> Json:
        session = Session(new_id("demo"), directory_of(params), [])
        self._sessions[session.id] = session
        return {"sessionId": session.id, **session.state()}

    def _resume(self, params: Json) -> Json:
        cwd, session_id = directory_of(params), str(params.get("sessionId"))
        live = self._sessions.get(session_id)
        if live and live.turn:
            raise Rejected(INVALID_REQUEST, "A prompt is running in this session")
        records = self._store.read(session_id)
        if not records:
            raise Rejected(NOT_FOUND, f"Session not found: {session_id}")
        session = self._sessions[session_id] = Session(session_id, cwd, records)
        return session.state()

    def _load(self, params: Json) -> Json:
        state = self._resume(params)
        session = self._find(params)
        for record in session.records:
            self._replay(session.id, record)
        return state

    def _replay(self, session_id: str, record: Json) -> None:
        if record["type"] == "tool":
            show_tool(self._wire, session_id, record)
        elif record["type"] in {"user", "agent"}:
            content = {"type": "text", "text": record["text"]}
            self._wire.update(session_id, f"{record['type']}_message_chunk", messageId=record["id"], content=content)

    def _list(self, params: Json) -> Json:
        found = ((session_id, self._store.read(session_id)) for session_id in self._store.sessions())
        rows = [{"sessionId": session_id, "cwd": records[0]["cwd"]} for session_id, records in found if records]
        return {"sessions": [row for row in rows if params.get("cwd") in {None, row["cwd"]}]}

    def _close(self, params: Json) -> Json:
        session = self._find(params)
        self._cancel(params)
        del self._sessions[session.id]
        return {}

    def _set_mode(self, params: Json) -> Json:
        session = self._find(params)
        if params.get("modeId") not in MODES:
            raise Rejected(INVALID_PARAMS, f"No such mode: {params.get('modeId')}")
        session.mode = params["modeId"]
        return {}

    def _set_option(self, params: Json) -> Json:
        session = self._find(params)
        if params.get("configId") != "model" or params.get("value") not in MODELS:
            raise Rejected(INVALID_PARAMS, f"No such option: {params.get('configId')} = {params.get('value')}")
        session.model = params["value"]
        return {"configOptions": session.options()}

    def _prompt(self, request_id: Any, params: Json) -> None:
        session = self._find(params)
        if session.turn:
            raise Rejected(INVALID_REQUEST, "A prompt is running in this session")
        blocks = params.get("prompt") or []
        text = "\n".join(block.get("text", "") for block in blocks if block.get("type") == "text")
        # The turn is known before its thread starts, so that a cancel that comes next finds it.
        turn = session.turn = Turn(self._wire, self._store, session)
        threading.Thread(target=self._run, args=(request_id, session, turn, text), daemon=True).start()

    def _run(self, request_id: Any, session: Session, turn: Turn, text: str) -> None:
        stop_reason = turn.run(text)
        session.turn = None
        self._wire.send(id=request_id, result={"stopReason": stop_reason})

    def _find(self, params: Json) -> Session:
        session = self._sessions.get(str(params.get("sessionId")))
        if session is None:
            raise Rejected(NOT_FOUND, f"Session not found: {params.get('sessionId')}")
        return session

    def _cancel(self, params: Json) -> None:
        session = self._sessions.get(str(params.get("sessionId")))
        if session and session.turn:
            session.turn.cancel()

    def _answered(self, message: Json) -> None:
        for session in self._sessions.values():
            if session.turn and session.turn.request_id == message.get("id"):
                session.turn.answers.put(message)


def unknown_method(_params: Json) -> Json:
    """Refuse a method that this agent does not have."""
    raise Rejected(UNKNOWN_METHOD, "Method not found")


def directory_of(params: Json) -> str:
    """Return `cwd`. Both it and `mcpServers` are required by the protocol, and this agent insists on them."""
    cwd = params.get("cwd")
    if not isinstance(cwd, str) or not os.path.isabs(cwd) or not isinstance(params.get("mcpServers"), list):
        raise Rejected(INVALID_PARAMS, "cwd must be an absolute path and mcpServers an array")
    return cwd


def main(arguments: list[str]) -> int:
    """Serve stdin until its end. Returns the exit code: 0, or 2 for an option that does not exist."""
    if unknown := set(arguments) - {"--no-load", "--no-resume"}:
        print(f"demo agent: unknown option {min(unknown)}; there are --no-load and --no-resume", file=sys.stderr)
        return 2
    home = os.environ.get("KANDEV_DEMO_AGENT_HOME") or os.path.expanduser("~/.kandev-demo-agent")
    wire = Wire(sys.stdout.fileno())
    agent = Agent(wire, Store(home), set(arguments))
    for line in sys.stdin.buffer:
        message = parse(line)
        if message is None:
            wire.send(id=None, error={"code": PARSE_ERROR, "message": "Not a JSON object"})
        else:
            agent.receive(message)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
