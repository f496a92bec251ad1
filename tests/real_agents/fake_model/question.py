"""What a request asks for, whatever its dialect, and the answer that is planned for it."""

import json
import re
from collections.abc import Iterable
from typing import Any, Literal, Protocol

import msgspec

Json = dict[str, Any]

MARK = re.compile(r"MARK-\w+")
STEERING = re.compile(r"^\s*(slow|fail|hang): *(\d+)", re.MULTILINE)
COUNT = re.compile(r"\bcount from 1 to (\d+)", re.IGNORECASE)
TOOL = re.compile(r"^\s*tool: *(.+)$", re.MULTILINE)
SHELL_TOOLS = ("Bash", "bash", "shell_command", "exec_command", "run_shell_command", "shell")
WRAPPERS = ("<system-reminder>", "<session_context>", "<environment_context>")
CURRENT_REQUEST = "=== CURRENT REQUEST ==="
PIECE_PAUSE_S = 0.1
HANG_S = 3600.0


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What matters of one request.

    `messages` is how many it holds, `marks` stand in their order, `last` is the user's last text, `answered` tells
    that a tool's result follows it. `tools` are the parameters by name; `schema` is there where JSON is wanted.
    """

    messages: int
    marks: tuple[str, ...]
    last: str
    answered: bool = False
    tools: dict[str, Json] = {}
    schema: Json | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool."""

    name: str
    arguments: Json


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What to say: pieces of text with pauses between them, a tool's call, or an HTTP status that is a failure."""

    pieces: tuple[str, ...] = ()
    pause_s: float = 0.0
    tool: ToolCall | None = None
    status: int = 200

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. `piece` marks those that carry a piece of the text."""

    data: Json | str
    name: str = ""
    piece: Literal["", "first", "later"] = ""


class Dialect(Protocol):
    """How one API writes requests and answers. `usage` counts what nobody looks at, but clients insist on."""

    name: str

    def read(self, body: Json) -> Question:
        """What the body of a request holds."""

    def whole(self, answer: Answer, question: Question, model: str) -> Json:
        """The answer as one body."""

    def stream(self, answer: Answer, question: Question, model: str) -> Iterable[Frame]:
        """The same answer as events."""

    def failure(self, status: int) -> Json:
        """The body of an HTTP error."""


def marks_in(messages: Any) -> tuple[str, ...]:
    """Every mark once, in the order of its first place."""
    return tuple(dict.fromkeys(MARK.findall(json.dumps(messages))))


def texts_of(content: Any) -> list[str]:
    """The texts of a message's content, which is a text or a list of parts; what clients wrap around them left out."""
    if isinstance(content, str):
        return [content]
    texts = [part if isinstance(part, str) else part.get("text") or "" for part in content or []]
    return [text for text in texts if text and not text.lstrip().startswith(WRAPPERS)]


def plan(question: Question) -> Answer:
    """The answer to a question: steered by the user's last text, otherwise what the request held."""
    if question.schema is not None:
        return Answer(pieces=(json.dumps(example_of(question.schema)),))
    # Of a prompt inside a recorded conversation only the prompt steers.
    wanted = "" if question.answered else question.last.rpartition(CURRENT_REQUEST)[2]
    if found := STEERING.search(wanted):
        return _steered(found[1], int(found[2]))
    if found := COUNT.search(wanted):
        return Answer(pieces=tuple(f"{n} " for n in range(1, int(found[1]) + 1)), pause_s=PIECE_PAUSE_S)
    if (found := TOOL.search(wanted)) and (call := _shell_call(question, found[1].strip())):
        return Answer(tool=call)
    marks = " ".join(question.marks) or "none"
    return Answer(pieces=(f"HEARD {question.messages} messages, ", f"marks: {marks}"))


def _steered(kind: str, amount: int) -> Answer:
    if kind == "fail":
        return Answer(status=amount)
    if kind == "hang":
        return Answer(pieces=("I begin, ", "and end."), pause_s=HANG_S)
    return Answer(pieces=tuple(f"piece {n} " for n in range(1, amount + 1)), pause_s=PIECE_PAUSE_S)


def _shell_call(question: Question, command: str) -> ToolCall | None:
    name = next((tool for tool in SHELL_TOOLS if tool in question.tools), None)
    if name is None:
        return None
    parameters = question.tools[name]
    properties = parameters.get("properties") or {"command": {"type": "string"}}
    required = parameters.get("required") or []
    arguments = {key: example_of(kind) for key, kind in properties.items() if key in required}
    key = "cmd" if "cmd" in properties else "command"
    as_list = str(properties.get(key, {}).get("type", "")).lower() == "array"
    return ToolCall(name=name, arguments={**arguments, key: ["sh", "-c", command] if as_list else command})


def example_of(schema: Json) -> Any:
    """A small value that fits a JSON schema; only what agents were seen to ask for is understood."""
    if schema.get("enum"):
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf", "allOf"):
        if schema.get(choice):
            return example_of(schema[choice][0])
    kind = schema.get("type") or "object"
    kind = str(kind[0] if isinstance(kind, list) else kind).lower()
    if kind == "object":
        return {name: example_of(part) for name, part in (schema.get("properties") or {}).items()}
    return {"array": [], "integer": 1, "number": 1, "boolean": False, "null": None}.get(kind, "fake")


def framed(pieces: Iterable[str], build: Any, name: str = "") -> Iterable[Frame]:
    """The pieces of a text as frames; `build` makes the data of each."""
    for number, piece in enumerate(pieces):
        yield Frame(data=build(piece), name=name, piece="later" if number else "first")
