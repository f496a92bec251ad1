"""The recorded conversation of a session: its entries, their lines, and the resume context made of them.

A history file holds one JSON object a line: user_message, agent_message, tool_call, tool_result (specification,
"Recording"), and a boundary where a fresh start begins. The file may end in a torn line, hold runs of NUL bytes and
repeat entries; a reader takes what is good (HIST-5).
"""

import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

CONTEXT_LIMIT = 24_000
"""Characters of a whole resume context (HIST-7)."""

MESSAGE_LIMIT = 2000
RESULT_LIMIT = 500
"""Characters of one entry in the context (specification, "Resume context format")."""

RECORD_LIMIT = 256_000
"""Characters of one entry in the file. The context shows 2000 of them; the message itself is in the database."""

TITLE = "RESUME CONTEXT FOR CONTINUING TASK"
HISTORY_HEAD = "=== EXECUTION HISTORY ==="
REQUEST_HEAD = "=== CURRENT REQUEST ==="
INSTRUCTIONS_HEAD = "=== INSTRUCTIONS ==="
INSTRUCTIONS = (
    "You are continuing work on the above task...",
    "Do not repeat work that was already completed.",
)

_TRUNCATED = "... [truncated]"
_NAME_LIMIT = 200
_QUOTE = "> "
_PADDING = b"\0 \t\r"
_LEFT_OUT_ROOM = 48
_LONGEST_CLUSTER = 32
_JOINER = "\u200d"
_SKIN_TONES = range(0x1F3FB, 0x1F400)

# What a reader could take for a line of the context itself, whatever decoration stands before it.
_HEADING = re.compile(
    r"[\W_]*?(={2,}|\[\s*(USER|ASSISTANT)\s*\]|\[\s*TOOL\s+(CALL|RESULT)\b|\[\s*\d+ earlier entr|RESUME CONTEXT FOR)",
    re.IGNORECASE,
)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, tag="user_message"):
    """What a person wrote: the prompt itself, never the context it was sent in (HIST-9)."""

    message_id: str = ""
    time: str = ""
    content: str


class AgentMessage(msgspec.Struct, frozen=True, kw_only=True, tag="agent_message"):
    """A whole message of the agent."""

    message_id: str = ""
    time: str = ""
    content: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call"):
    """The agent called a tool."""

    message_id: str = ""
    time: str = ""
    name: str


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, tag="tool_result"):
    """What the tool answered, with its content (HIST-10)."""

    message_id: str = ""
    time: str = ""
    name: str
    content: str = ""


class Boundary(msgspec.Struct, frozen=True, kw_only=True, tag="boundary"):
    """A fresh start: nothing before it is told to an agent again."""

    time: str = ""
    reason: str = "fresh_start"


Entry = UserMessage | AgentMessage | ToolCall | ToolResult | Boundary
"""`time` is UTC in ISO 8601 as everywhere; `message_id` is the message in the database that the entry tells of."""

EntryKey = tuple[type[Entry], str]
"""A call and its result share a message, so the type is part of what must not repeat."""


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A resume context, and how many of the entries it tells. With nothing to tell, the text is the prompt."""

    text: str
    used: int
    total: int


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


def entry_key(entry: Entry) -> EntryKey | None:
    """Return what makes `entry` the same as another one; None if it is never taken for a repetition."""
    if isinstance(entry, Boundary) or not entry.message_id:
        return None
    return type(entry), entry.message_id


def encode_entry(entry: Entry) -> bytes:
    """Return the line of `entry`, its newline included. Lone surrogates become U+FFFD (HIST-6)."""
    if isinstance(entry, UserMessage | AgentMessage | ToolResult) and len(entry.content) > RECORD_LIMIT:
        entry = msgspec.structs.replace(entry, content=truncate(entry.content, RECORD_LIMIT))
    try:
        return _encoder.encode(entry) + b"\n"
    except UnicodeEncodeError:
        return _encoder.encode(_scrubbed(entry)) + b"\n"


def decode_line(line: bytes) -> Entry | None:
    """Return the entry of one line; None if there is none in it (HIST-5). NUL bytes around it are ignored."""
    try:
        return _decoder.decode(line.strip(_PADDING))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decode_entries(data: bytes) -> list[Entry]:
    """Return the good entries of `data` in order, each message's first line only (HIST-5)."""
    entries: list[Entry] = []
    seen: set[EntryKey] = set()
    for line in data.split(b"\n"):
        entry = decode_line(line)
        if entry is None:
            continue
        key = entry_key(entry)
        if key is not None and key in seen:
            continue
        if key is not None:
            seen.add(key)
        entries.append(entry)
    return entries


def newest_entry(data: bytes) -> Entry | None:
    """Return the last good entry of `data`, without decoding what stands before it."""
    lines = reversed(data.split(b"\n"))
    return next((entry for line in lines if (entry := decode_line(line)) is not None), None)


def merge_entries(recorded: Iterable[Entry], expected: Sequence[Entry], missing: Sequence[Entry]) -> Iterator[Entry]:
    """Yield `recorded` with each of `missing` where `expected` has it.

    `expected` is what the database holds, in order, or the newest part of it; `missing` those of it that were not
    recorded. A missing entry that is older than a boundary stays before it.
    """
    place = {entry_key(entry): at for at, entry in enumerate(expected)}
    waiting = deque(missing)
    for entry in recorded:
        while waiting and _precedes(waiting[0], entry, place):
            yield waiting.popleft()
        yield entry
    yield from waiting


def since_boundary(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries after the last boundary."""
    for at in range(len(entries) - 1, -1, -1):
        if isinstance(entries[at], Boundary):
            return entries[at + 1 :]
    return entries


def render_resume_context(
    entries: Sequence[Entry], prompt: str, *, limit: int = CONTEXT_LIMIT, unread: int = 0
) -> Rendered:
    """Return `prompt` inside the resume context of the specification, with the newest of `entries` that fit.

    `unread` counts older entries that the caller did not even read. The prompt is never truncated. The text has at
    most `limit` characters; only a prompt that would leave the history less than a quarter of that makes it longer
    (HIST-7). Entries before a boundary are not told.
    """
    told = since_boundary(entries)
    total = len(told) + (unread if len(told) == len(entries) else 0)
    prompt = scrub(prompt)
    if not total:
        return Rendered(text=prompt, used=0, total=0)
    tail = (REQUEST_HEAD, prompt, INSTRUCTIONS_HEAD, *INSTRUCTIONS)
    frame = len("\n".join((TITLE, HISTORY_HEAD, *tail)))
    blocks = _newest_that_fit(told, total, max(limit - frame, limit // 4))
    left_out = total - len(blocks)
    note = [f"[{left_out} earlier {'entry' if left_out == 1 else 'entries'} left out]"] if left_out else []
    text = "\n".join((TITLE, HISTORY_HEAD, *note, *blocks, *tail))
    return Rendered(text=text, used=len(blocks), total=total)


def truncate(text: str, limit: int) -> str:
    """Return at most `limit` characters of `text`, with a mark behind them if some are missing.

    A character is a code point; a letter is not parted from its accents, nor an emoji from its parts (HIST-6).
    """
    if len(text) <= limit:
        return text
    end = limit
    while end > max(limit - _LONGEST_CLUSTER, 0) and _belong_together(text[end - 1], text[end]):
        end -= 1
    return text[:end] + _TRUNCATED


def scrub(text: str) -> str:
    """Return `text` with surrogate pairs joined and lone surrogates replaced by U+FFFD (HIST-6)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _newest_that_fit(entries: Sequence[Entry], total: int, room: int) -> list[str]:
    blocks: list[str] = []
    used = 0
    for entry in reversed(entries):
        block = _block(entry)
        if used + len(block) + 1 > room:
            break
        used += len(block) + 1
        blocks.append(block)
    # What does not fit is told in a line, and that line needs room too.
    while blocks and len(blocks) < total and used + _LEFT_OUT_ROOM > room:
        used -= len(blocks.pop()) + 1
    return blocks[::-1]


def _block(entry: Entry) -> str:
    match entry:
        case UserMessage():
            label, body = "[USER]:", _body(entry.content, MESSAGE_LIMIT)
        case AgentMessage():
            label, body = "[ASSISTANT]:", _body(entry.content, MESSAGE_LIMIT)
        case ToolCall():
            label, body = f"[TOOL CALL: {_tool_name(entry.name)}]", ""
        case ToolResult():
            label, body = f"[TOOL RESULT: {_tool_name(entry.name)}]", _body(entry.content, RESULT_LIMIT)
        case Boundary():
            raise AssertionError("since_boundary leaves none")
    return f"{label} {body}" if body else label


def _body(text: str, limit: int) -> str:
    """Return `text` so that no line of it can be taken for a line of the context (HIST-8)."""
    first, *rest = truncate(scrub(text), limit).splitlines() or [""]
    # The first line stands behind its label; splitlines knows every character that could begin a new one.
    return "\n".join([first, *(_QUOTE + line if _imitates(line) else line for line in rest)])


def _imitates(line: str) -> bool:
    plain = _COLOUR.sub("", line)
    if not plain.isascii():
        # A heading in full-width letters, or with invisible ones between, still reads as a heading.
        plain = "".join(char for char in unicodedata.normalize("NFKC", plain) if unicodedata.category(char) != "Cf")
    return _HEADING.match(plain) is not None


def _tool_name(name: str) -> str:
    words = truncate(" ".join(scrub(name).split()), _NAME_LIMIT)
    return words.translate({ord("["): "(", ord("]"): ")"}) or "tool"


def _precedes(missing: Entry, entry: Entry, place: dict[EntryKey | None, int]) -> bool:
    if isinstance(entry, Boundary):
        return missing.time <= entry.time
    key = entry_key(entry)
    return key is not None and place.get(key, -1) > place[entry_key(missing)]


def _belong_together(before: str, after: str) -> bool:
    joined = _JOINER in (before, after)
    return joined or unicodedata.category(after).startswith("M") or ord(after) in _SKIN_TONES


def _scrubbed(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, **{name: scrub(getattr(entry, name)) for name in entry.__struct_fields__})
