r"""An agent (ACP on stdio) that behaves, and misbehaves, as one JSON file says: `python fake_agent.py SCRIPT.json`.

With the script `{}` it advertises load and resume, keeps its sessions on disk, and answers each prompt with
`heard: TEXT | memory: N`, where N is the number of earlier prompts that it knows of in this session. As in most real
agents a session is stored from its first prompt on, the answer of a turn at its end, and modes and options not at all.
The script is read when a process starts. Each line that comes in is appended to the log as `{time, pid, message}`, or
`{time, pid, raw}` when it is no JSON object; other entries are `{time, pid, event, ...}` with event start, spawned,
mark, rule, in_use, sigterm or eof. Standard library only; every process ends after ten minutes at the latest.

## Keys of the script
| key                       | default     | meaning                                                                   |
|---------------------------|-------------|---------------------------------------------------------------------------|
| log, store, gates         | same names  | file or directory, relative to the script; all processes share them       |
| log_env                   | []          | environment variables whose values stand in the entry of the start        |
| load, resume              | true        | advertise and answer session/load, session/resume                         |
| capabilities              | {}          | put over the advertised agentCapabilities                                 |
| version, auth_methods     | "1", []     | of the answer to initialize                                               |
| modes                     | []          | ids of modes, the first is the default                                    |
| options                   | []          | ACP's config options, whole objects                                       |
| restore_modes             | false       | a load or resume brings back the mode and the options that were set       |
| store_when                | "prompt"    | "new": a session is stored as soon as it is made                          |
| unknown                   | -32002      | answer for a session that is not stored: error object, "accept", "silent" |
| lock                      | false       | refuse a session that another live process holds                          |
| message_ids               | true        | chunks carry a messageId, a new one each turn                             |
| string_ids                | false       | answers carry the request's id as a string                                |
| ignore_cancel             | false       | a cancel changes nothing                                                  |
| ignore_eof, ignore_sigterm| false       | live on                                                                   |
| exit_delay                | 0           | seconds from the end of stdin to the exit                                 |
| start                     | []          | steps before the first line is read                                       |
| on                        | {}          | {method: rule or list of rules}; the first rule that applies is taken     |

## Keys of a rule, all optional
| key         | meaning                                                                                              |
|-------------|------------------------------------------------------------------------------------------------------|
| match       | regular expression, to be found in the prompt's text, or in the params as JSON for other methods     |
| times       | only the first N times, counted over all processes                                                   |
| steps       | done before the answer, instead of the usual one: `heard` for a prompt, `replay` for session/load    |
| result      | the whole answer (also null); `merge`: keys put over the usual answer                                |
| stop_reason | of a prompt                                                                                          |
| error       | an error object as answer: {code, message, data}                                                     |
| silent      | true: no answer ever                                                                                 |
| after       | steps after the answer                                                                               |
A rule for session/cancel says how a cancelled prompt is answered (usually stopReason cancelled).

## Steps: an object whose first key is the step's name, or the name alone
| step                                            | does                                                             |
|-------------------------------------------------|------------------------------------------------------------------|
| replay: N, ids, kinds, tool_starts: true, delay | the first N (or true: all) stored updates; ids: same, new, none  |
| heard                                           | says `heard: TEXT \| memory: N`                                  |
| state                                           | says `mode: M \| options: {...}`                                 |
| text: T, thought: T                             | one chunk; message_id: an id, or null for none                   |
| chunks: N, text: "chunk {n} ", delay: S         | N numbered chunks                                                |
| huge: N                                         | one chunk of N characters                                        |
| tool: TITLE, id, content, start: true, end: true| tool_call in_progress, tool_call_update completed                |
| update: {...}, session: ID                      | one session/update                                               |
| echo                                            | the prompt as user_message_chunk                                 |
| permission: TITLE, options: [...], wait: true   | asks, waits, says `permission: OPTION`                           |
| request: METHOD, params: {}, id: ID             | asks, waits, says `answer: JSON`                                 |
| send: ANY                                       | any JSON value as a line                                         |
| line: T, end: "\n"                              | any text; hex: "fffe0a" any bytes                                |
| stderr: T, stderr_flood: N                      | a line, or N bytes, on stderr                                    |
| delay: S, gate: NAME, hang                      | waits for a time, for the file NAME in gates, for a cancel       |
| mark: NAME                                      | an entry in the log                                              |
| spawn: SECONDS, hold_stdout, ignore_sigterm, setsid | starts a grandchild that lives so long                       |
| die: CODE, signal: N                            | ends the process                                                 |
| close_stdout, close_stdin                       | closes the pipe, lives on (a read that waits takes one more line)|
"""

import fcntl
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

Json = dict[str, Any]

LIFETIME_S = 600
"""A process that a test forgot ends after this time, in seconds."""

NOT_FOUND = {"code": -32002, "message": "Session not found"}
BUSY = {"code": -32600, "message": "Prompt already in progress"}
USUAL_STEPS: dict[str, list[Any]] = {"session/prompt": ["heard"], "session/load": ["replay"]}


class Refused(Exception):
    """Raised to answer with an error object."""

    def __init__(self, error: Json) -> None:
        super().__init__(error["message"])
        self.error = error


class Silent(Exception):
    """Raised to give no answer."""


class Cancelled(Exception):
    """Raised where a turn notices that it was cancelled."""


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def as_json(value: Any) -> bytes:
    """Return a value as one line."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def parse(line: bytes) -> Json | None:
    """Return the object on a line, or None."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class Script:
    """The script, and the files that all its processes share."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self.keys: Json = json.load(file)
        self._base = os.path.dirname(os.path.abspath(path))
        self._log = self.path("log", "log.jsonl")

    def path(self, key: str, default: str) -> str:
        """Return the path of a key."""
        return os.path.join(self._base, self.keys.get(key, default))

    def log(self, **entry: Any) -> None:
        """Append one entry to the log, in one write."""
        line = json.dumps({"time": time.time(), "pid": os.getpid(), **entry}).encode() + b"\n"
        descriptor = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        write_all(descriptor, line)
        os.close(descriptor)

    def rule(self, method: str, text: str) -> Json:
        """Return the first rule of a method that applies to a text; {} when there is none."""
        rules = self.keys.get("on", {}).get(method, [])
        for number, rule in enumerate(rules if isinstance(rules, list) else [rules]):
            mark = f"{method} {number}"
            if re.search(rule.get("match", ""), text) and self._applied(mark) < rule.get("times", 1e9):
                self.log(event="rule", rule=mark)
                return dict(rule)
        return {}

    def sessions(self) -> list["Session"]:
        """Return the sessions that are stored."""
        names = sorted(os.listdir(self.path("store", "store")))
        return [Session(self, name.removesuffix(".jsonl")) for name in names if name.endswith(".jsonl")]

    def _applied(self, mark: str) -> int:
        with open(self._log, "rb") as file:
            return sum((parse(line) or {}).get("rule") == mark for line in file)


class Session:
    """One conversation: a JSONL file of `{cwd}`, `{user, id}`, `{update}` and `{set}`."""

    def __init__(self, script: Script, session_id: str) -> None:
        self.id = session_id
        self.records: list[Json] = []
        self.call: Call | None = None
        self.mode: str | None = next(iter(script.keys.get("modes", [])), None)
        self.options: list[Json] = [dict(option) for option in script.keys.get("options", [])]
        directory = script.path("store", "store")
        os.makedirs(directory, exist_ok=True)
        self._path = os.path.join(directory, session_id.replace("/", "_"))
        self._script = script
        self._stored = 0
        self._lock = -1

    def read(self) -> bool:
        """Read the records from disk; tell whether there are any."""
        try:
            with open(self._path + ".jsonl", "rb") as file:
                self.records = [record for line in file if (record := parse(line))]
        except FileNotFoundError:
            return False
        self._stored = len(self.records)
        if self._script.keys.get("restore_modes"):
            for record in self.records:
                self.set(**record.get("set", {}))
        return bool(self.records)

    def append(self, *records: Json) -> None:
        """Keep records; store all of them once there is a prompt, or at once if the script says so."""
        self.records += records
        if not self.prompts() and self._script.keys.get("store_when") != "new":
            return
        with open(self._path + ".jsonl", "ab", 0) as file:
            file.write(b"".join(map(as_json, self.records[self._stored :])))
        self._stored = len(self.records)

    def prompts(self) -> int:
        """Return the number of user prompts known."""
        return sum("user" in record for record in self.records)

    def begin(self, call: "Call", text: str) -> None:
        """Begin a turn: the prompt is stored at once. Refused while another turn runs."""
        if self.call:
            raise Refused(BUSY)
        self.call = call
        self.append({"user": text, "id": f"message-{os.urandom(4).hex()}"})

    def end(self, call: "Call") -> None:
        """End a turn: what the agent said is stored."""
        self.append(*({"update": update} for update in call.updates))
        self.call = None

    def set(self, **values: Any) -> None:
        """Set the mode, and options by their id."""
        self.mode = values.pop("mode", self.mode)
        for option in self.options:
            option["currentValue"] = values.get(option["id"], option.get("currentValue"))

    def state(self) -> Json:
        """Return modes and options as the answers of new, load and resume carry them."""
        state: Json = {}
        if self.mode is not None:
            modes = [{"id": mode, "name": mode.title()} for mode in self._script.keys["modes"]]
            state["modes"] = {"currentModeId": self.mode, "availableModes": modes}
        if self.options:
            state["configOptions"] = self.options
        return state

    def listed(self) -> Json:
        """Return the entry of session/list."""
        self.read()
        return {"sessionId": self.id, "cwd": next((record["cwd"] for record in self.records if "cwd" in record), "/")}

    def hold(self) -> None:
        """Take the lock, which the kernel gives up when this process dies. Refused while another process has it."""
        if not self._script.keys.get("lock") or self._lock >= 0:
            return
        descriptor = os.open(self._path + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = int(os.read(descriptor, 20) or 0)
            os.close(descriptor)
            self._script.log(event="in_use", owner=owner)
            data = {"reason": "thread_active_writer", "owner": {"pid": owner}}
            raise Refused({"code": -32600, "message": "Session is in use", "data": data}) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._lock = descriptor

    def release(self) -> None:
        """Give the lock up."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def replayed(record: Json, step: Json) -> Json | None:
    """Return the update that replays a record, changed as a `replay` step says; None when it is left out."""
    update: Json = dict(record.get("update", {}))
    if "user" in record:
        content = {"type": "text", "text": record["user"]}
        update = {"sessionUpdate": "user_message_chunk", "messageId": record["id"], "content": content}
    kind, ids = update.get("sessionUpdate"), step.get("ids", "same")
    if kind not in step.get("kinds", [kind]) or (kind == "tool_call" and not step.get("tool_starts", True)):
        return None
    if ids != "same" and (message_id := update.pop("messageId", None)) and ids == "new":
        update["messageId"] = f"{message_id}-again"
    return update or None


class Call:
    """One request that is being handled, and the steps that it takes."""

    def __init__(self, agent: "Agent", session: Session, text: str) -> None:
        self._agent, self.session, self._text = agent, session, text
        self.session_id = session.id
        self.memory = session.prompts()
        self.updates: list[Json] = []
        self.answers: SimpleQueue[Json] = SimpleQueue()
        self._cancelled = threading.Event()
        self._message_id = f"message-{os.urandom(4).hex()}"

    def cancel(self) -> None:
        """Stop at the next step or wait, unless the script ignores cancels."""
        if not self._agent.keys.get("ignore_cancel"):
            self._cancelled.set()

    def settle(self) -> None:
        """Forget the cancel: what comes now belongs to the answer to it."""
        self._cancelled.clear()

    def perform(self, steps: list[Any]) -> None:
        """Do steps in order. Raises Cancelled."""
        for step in steps:
            named = {step: True} if isinstance(step, str) else step
            name = next(iter(named))
            getattr(self, f"_do_{name}")(named[name], named)
            self._pause(0)

    def _pause(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise Cancelled

    def send_update(self, update: Json) -> None:
        """Send one session/update."""
        params = {"sessionId": self.session_id, "update": update}
        self._agent.send({"method": "session/update", "params": params})

    def _say(self, update: Json) -> None:
        self.updates.append(update)
        self.send_update(update)

    def _chunk(self, text: str, step: Json, kind: str = "agent_message_chunk") -> None:
        message_id = step.get("message_id", self._message_id if self._agent.keys.get("message_ids", True) else None)
        update = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
        self._say(update if message_id is None else {**update, "messageId": message_id})

    def _do_replay(self, count: int, step: Json) -> None:
        updates = [update for record in self.session.records if (update := replayed(record, step))]
        for update in updates if count is True else updates[:count]:
            self._pause(step.get("delay", 0))
            self.send_update(update)

    def _do_heard(self, _: Any, step: Json) -> None:
        self._chunk(f"heard: {self._text} | memory: {self.memory}", step)

    def _do_state(self, _: Any, step: Json) -> None:
        values = {option["id"]: option.get("currentValue") for option in self.session.options}
        self._chunk(f"mode: {self.session.mode} | options: {json.dumps(values)}", step)

    def _do_text(self, text: str, step: Json) -> None:
        self._chunk(text, step)

    def _do_thought(self, text: str, step: Json) -> None:
        self._chunk(text, step, "agent_thought_chunk")

    def _do_chunks(self, count: int, step: Json) -> None:
        for number in range(1, count + 1):
            self._chunk(step.get("text", "chunk {n} ").replace("{n}", str(number)), step)
            self._pause(step.get("delay", 0))

    def _do_huge(self, size: int, step: Json) -> None:
        self._chunk("x" * size, step)

    def _do_tool(self, title: str, step: Json) -> None:
        head = {"toolCallId": step.get("id", f"call-{os.urandom(4).hex()}")}
        if step.get("start", True):
            start = {"title": title, "kind": "execute", "status": "in_progress", "rawInput": {"name": title}}
            self._say({"sessionUpdate": "tool_call", **head, **start})
        if step.get("end", True):
            content = [{"type": "content", "content": {"type": "text", "text": step.get("content", "done")}}]
            self._say({"sessionUpdate": "tool_call_update", **head, "status": "completed", "content": content})

    def _do_update(self, update: Json, step: Json) -> None:
        self.session_id = step.get("session", self.session_id)
        self._say(update)

    def _do_echo(self, _: Any, __: Json) -> None:
        content = {"type": "text", "text": self._text}
        self.send_update({"sessionUpdate": "user_message_chunk", "content": content})

    def _do_permission(self, title: str, step: Json) -> None:
        call = {"toolCallId": f"call-{os.urandom(4).hex()}", "title": title, "kind": "edit", "status": "pending"}
        kinds = ("allow_once", "reject_once")
        options = step.get("options") or [{"optionId": kind, "name": kind, "kind": kind} for kind in kinds]
        params = {"sessionId": self.session_id, "toolCall": call, "options": options}
        answer = self._ask("session/request_permission", params, step)
        if not step.get("wait", True):
            return
        outcome = (answer.get("result") or {}).get("outcome") or {}
        if outcome.get("outcome") == "cancelled":
            self.cancel()
        self._pause(0)
        self._chunk(f"permission: {outcome.get('optionId') or outcome.get('outcome')}", step)

    def _do_request(self, method: str, step: Json) -> None:
        answer = self._ask(method, step.get("params", {}), step)
        self._chunk(f"answer: {json.dumps({key: answer[key] for key in ('result', 'error') if key in answer})}", step)

    def _ask(self, method: str, params: Json, step: Json) -> Json:
        request_id = step.get("id", f"request-{os.urandom(4).hex()}")
        self._agent.waiting[request_id] = self.answers
        self._agent.send({"id": request_id, "method": method, "params": params})
        while step.get("wait", True):
            try:
                return self.answers.get(timeout=0.01)
            except Empty:
                self._pause(0)
        return {}

    def _do_send(self, message: Any, _: Json) -> None:
        self._agent.write(as_json(message))

    def _do_line(self, text: str, step: Json) -> None:
        self._agent.write((text + step.get("end", "\n")).encode())

    def _do_hex(self, digits: str, _: Json) -> None:
        self._agent.write(bytes.fromhex(digits))

    def _do_stderr(self, text: str, _: Json) -> None:
        write_all(2, text.encode() + b"\n")

    def _do_stderr_flood(self, size: int, _: Json) -> None:
        write_all(2, (b"noise on stderr\n" * (size // 16 + 1))[:size])

    def _do_delay(self, seconds: float, _: Json) -> None:
        self._pause(seconds)

    def _do_gate(self, name: str, _: Json) -> None:
        path = os.path.join(self._agent.script.path("gates", "gates"), name)
        while not os.path.exists(path):
            self._pause(0.01)

    def _do_hang(self, _: Any, __: Json) -> None:
        self._pause(LIFETIME_S)

    def _do_mark(self, name: str, _: Json) -> None:
        self._agent.script.log(event="mark", name=name)

    def _do_spawn(self, seconds: float, step: Json) -> None:
        import subprocess  # costs as much as all the rest of the start

        ready, told = os.pipe()
        ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if step.get("ignore_sigterm") else ""
        code = f"import os, signal, time; {ignore}os.write({told}, b'1'); os.close({told}); time.sleep({seconds})"
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=None if step.get("hold_stdout") else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=bool(step.get("setsid")),
            pass_fds=[told],
        )
        os.close(told)
        os.read(ready, 1)
        os.close(ready)
        self._agent.script.log(event="spawned", child=child.pid)

    def _do_die(self, code: int, _: Json) -> None:
        os._exit(code)

    def _do_signal(self, number: int, _: Json) -> None:
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(os.getpid(), number)
        time.sleep(LIFETIME_S)

    def _do_close_stdout(self, _: Any, __: Json) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def _do_close_stdin(self, _: Any, __: Json) -> None:
        self._agent.keys["ignore_eof"] = True
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


class Agent:
    """Answers requests, each in a thread of its own, while the main thread reads and logs."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.keys = script.keys
        self.waiting: dict[Any, SimpleQueue[Json]] = {}
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()
        self._results: dict[str, Callable[[Session, Json], Json]] = {
            "initialize": self._initialize,
            "session/new": lambda session, _: {"sessionId": session.id, **session.state()},
            "session/list": lambda _, __: {"sessions": [stored.listed() for stored in self.script.sessions()]},
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_option,
            "session/prompt": lambda _, __: {"stopReason": "end_turn"},
            **dict.fromkeys(("authenticate", "logout", "session/close", "session/delete"), lambda _, __: {}),
        }
        for method in self._restoring():
            self._results[method] = lambda session, _: session.state()

    def _restoring(self) -> list[str]:
        return [f"session/{name}" for name in ("load", "resume") if self.keys.get(name, True)]

    def write(self, data: bytes) -> None:
        """Write bytes to stdout."""
        with self._lock:
            try:
                write_all(1, data)
            except BrokenPipeError:
                if not self.keys.get("ignore_eof"):
                    os._exit(0)

    def send(self, message: Json) -> None:
        """Write one JSON-RPC message."""
        self.write(as_json({"jsonrpc": "2.0", **message}))

    def receive(self, line: bytes) -> None:
        """Log one line and act on it."""
        message = parse(line)
        if message is None:
            self.script.log(raw=line.decode("utf-8", "replace"))
            return
        self.script.log(message=message)
        method, params = message.get("method"), message.get("params") or {}
        if method is None:
            self.waiting.pop(message.get("id"), SimpleQueue()).put(message)
        elif method == "session/cancel":
            self._cancel(params)
        elif message.get("id") is not None:
            self._request(message["id"], method, params)

    def _cancel(self, params: Json) -> None:
        session = self._sessions.get(str(params.get("sessionId")))
        if session and session.call:
            session.call.cancel()

    def _request(self, request_id: Any, method: str, params: Json) -> None:
        """Find the rule and the session here, where one line comes after the other; do the rest in a thread."""
        text = text_of(params) if method == "session/prompt" else json.dumps(params)
        rule = self.script.rule(method, text)
        request_id = str(request_id) if self.keys.get("string_ids") else request_id
        try:
            self._check(method, rule)
            session = self._session(method, params, rule)
            call = Call(self, session, text)
            if method == "session/prompt":
                session.begin(call, text)
        except Silent:
            return
        except Refused as refused:
            self.send({"id": request_id, "error": refused.error})
            return
        threading.Thread(target=self._run, args=(request_id, method, params, rule, call), daemon=True).start()

    def _check(self, method: str, rule: Json) -> None:
        if method not in self._results and not rule:
            raise Refused({"code": -32601, "message": f"Method not found: {method}"})

    def _run(self, request_id: Any, method: str, params: Json, rule: Json, call: Call) -> None:
        usual = [] if {"error", "silent"} & rule.keys() else USUAL_STEPS.get(method, [])
        try:
            call.perform(rule.get("steps", usual))
        except Cancelled:
            call.settle()
            rule = {"stop_reason": "cancelled", **self.script.rule("session/cancel", "")}
            call.perform(rule.get("steps", []))
        if rule.get("silent"):
            return
        if method == "session/prompt":
            call.session.end(call)
        try:
            answer = {"error": rule["error"]} if "error" in rule else self._result(method, params, rule, call.session)
        except Refused as refused:
            answer = {"error": refused.error}
        self.send({"id": request_id, **answer})
        call.settle()
        call.perform(rule.get("after", []))

    def _result(self, method: str, params: Json, rule: Json, session: Session) -> Json:
        if "result" in rule:
            return {"result": rule["result"]}
        stop = {"stopReason": rule["stop_reason"]} if "stop_reason" in rule else {}
        usual = self._results[method](session, params) if method in self._results else {}
        return {"result": {**usual, **stop, **rule.get("merge", {})}}

    def _session(self, method: str, params: Json, rule: Json) -> Session:
        """Return the session that a request is about. Refused, or Silent, when it is unknown or in use."""
        session_id = str(params.get("sessionId") or f"fake-{os.urandom(8).hex()}")
        live = self._sessions.get(session_id)
        restoring = method in {"session/load", "session/resume"}
        if method != "session/new" and "sessionId" not in params:
            return Session(self.script, session_id)
        if live and not restoring:
            return live
        session = Session(self.script, session_id)
        known = method == "session/new" or (restoring and session.read())
        if not known and not {"error", "result", "silent"} & rule.keys():
            refuse_unknown(self.keys.get("unknown", NOT_FOUND))
        if "error" not in rule:
            if live:
                live.release()
            session.hold()
            self._sessions[session_id] = session
        if method == "session/new":
            session.append({"cwd": params.get("cwd")})
        return session

    def _initialize(self, _: Session, __: Json) -> Json:
        sessions: Json = {"list": {}, "close": {}, **({"resume": {}} if "session/resume" in self._restoring() else {})}
        capabilities = {"loadSession": "session/load" in self._restoring(), "sessionCapabilities": sessions}
        return {
            "protocolVersion": 1,
            "agentCapabilities": {**capabilities, **self.keys.get("capabilities", {})},
            "agentInfo": {"name": "fake-agent", "version": self.keys.get("version", "1")},
            "authMethods": self.keys.get("auth_methods", []),
        }

    def _set_mode(self, session: Session, params: Json) -> Json:
        if params.get("modeId") not in self.keys.get("modes", []):
            raise Refused({"code": -32602, "message": f"No such mode: {params.get('modeId')}"})
        session.append({"set": {"mode": params["modeId"]}})
        session.set(mode=params["modeId"])
        return {}

    def _set_option(self, session: Session, params: Json) -> Json:
        if params.get("configId") not in {option["id"] for option in session.options}:
            raise Refused({"code": -32602, "message": f"No such option: {params.get('configId')}"})
        session.append({"set": {params["configId"]: params["value"]}})
        session.set(**{params["configId"]: params["value"]})
        return {"configOptions": session.options}


def text_of(params: Json) -> str:
    """Return the text of a prompt."""
    return "\n".join(block["text"] for block in params.get("prompt", []) if block.get("type") == "text")


def refuse_unknown(how: Any) -> None:
    """Answer a request about a session that is not known as the script says: with an error, not at all, or well."""
    if how == "silent":
        raise Silent
    if how != "accept":
        raise Refused(how)


def on_sigterm(script: Script) -> None:
    """Log SIGTERM; then die of it, unless the script ignores it."""
    script.log(event="sigterm")
    if not script.keys.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve stdin until its end."""
    script = Script(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda _, __: on_sigterm(script))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIFETIME_S)
    values = {name: os.environ[name] for name in script.keys.get("log_env", []) if name in os.environ}
    script.log(event="start", argv=sys.argv, cwd=os.getcwd(), env=sorted(os.environ), values=values)
    agent = Agent(script)
    Call(agent, Session(script, "none"), "").perform(script.keys.get("start", []))
    for line in sys.stdin.buffer:
        agent.receive(line)
    script.log(event="eof")
    if script.keys.get("ignore_eof"):
        time.sleep(LIFETIME_S)
    time.sleep(script.keys.get("exit_delay", 0))
    os._exit(0)


if __name__ == "__main__":
    main()
