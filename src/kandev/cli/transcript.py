"""The transcript as text: whole messages for `history`, and a live one that shows every character once."""

from collections.abc import Iterable, Mapping
from typing import Any

from kandev.cli.plain import PlainStream, one_line, strip_controls

_STREAMED = frozenset({"message", "thinking"})
_MARKS = {"completed": "✓", "failed": "✗", "pending": "…", "in_progress": "…", "unknown": "?"}


def author(message: Mapping[str, Any], agent: str) -> str:
    """Return who speaks, as shown."""
    kind = message.get("author_type")
    return {"user": "You", "agent": agent or "Agent"}.get(str(kind), "kandev")


def message_text(message: Mapping[str, Any], agent: str) -> str:
    """Return one message as a paragraph without a new line at its end."""
    kind, content = str(message.get("type")), strip_controls(str(message.get("content") or ""))
    who = author(message, agent)
    asked = one_line(str(_metadata(message).get("state") or "asked"))
    lines = {
        "message": f"{who}: {content}",
        "thinking": f"{who} (thinking): {content}",
        "tool_call": f"  {tool_line(message)}",
        "plan": "  plan:\n    " + content.replace("\n", "\n    "),
        "permission_request": f"  permission: {one_line(content)} ({asked})",
        "status": f"── {content}",
        "error": f"── {content}",
    }
    return lines.get(kind) or f"  ({one_line(kind)}) {one_line(content, 200)}"


def tool_line(message: Mapping[str, Any]) -> str:
    """Return a tool call on one line: mark, title, status."""
    metadata = _metadata(message)
    status = str(metadata.get("status") or "")
    title = metadata.get("title") or metadata.get("name") or message.get("content") or "tool"
    return f"{_MARKS.get(status, '·')} {one_line(str(title), 200)}" + (f" ({one_line(status)})" if status else "")


class LiveTranscript:
    """Turns snapshots, messages and deltas into pieces of text to write; the same input twice writes nothing.

    Every method returns the text to write now. `missing` holds the ids of messages of which a piece is lacking: give
    them whole to `message()`. `last_seq` is the place in the transcript up to which everything was seen.
    """

    def __init__(self, agent: str = "") -> None:
        self.agent = agent
        self.missing: set[str] = set()
        self.own: set[str] = set()  # client_message_ids of what was typed here: it stands on the screen already
        self.last_seq = 0
        self._shown: dict[str, int] = {}  # characters taken of each streamed message
        self._kinds: dict[str, Mapping[str, Any]] = {}
        self._lines: dict[str, str] = {}  # last line written for a message that is no stream
        self._streams: dict[str, PlainStream] = {}
        self._writing = ""  # the message in whose last line the cursor stands

    def messages(self, messages: Iterable[Mapping[str, Any]]) -> str:
        """Take whole messages."""
        return "".join(self.message(message) for message in messages)

    def message(self, message: Mapping[str, Any]) -> str:
        """Take a whole message: new, grown or changed."""
        identity = str(message.get("id"))
        self.missing.discard(identity)
        if not isinstance(seq := message.get("seq"), int):
            return ""  # still queued: it has no place yet
        self.last_seq = max(self.last_seq, seq)
        if message.get("author_type") == "agent" and message.get("type") in _STREAMED:
            content = str(message.get("content") or "")
            self._kinds[identity] = message
            return self._grow(identity, self._shown.get(identity, 0), content[self._shown.get(identity, 0) :])
        return self._whole(identity, message)

    def delta(self, identity: str, offset: int, text: str) -> str:
        """Take a piece of a message, at `offset` characters of it."""
        shown = self._shown.get(identity, 0)
        if identity not in self._kinds or offset > shown:
            self.missing.add(identity)
            return ""
        return self._grow(identity, shown, text[shown - offset :])

    def end_line(self) -> str:
        """Return the new line that ends what is being written, if something is."""
        ended, self._writing = ("\n" if self._writing else ""), ""
        return ended

    def line(self, text: str) -> str:
        """Return `text` as a line of its own, after what is being written."""
        return self.end_line() + strip_controls(text) + "\n"

    def _grow(self, identity: str, shown: int, text: str) -> str:
        if not text:
            return ""
        self._shown[identity] = shown + len(text)
        stream = self._streams.setdefault(identity, PlainStream())
        head = "" if self._writing == identity else self.end_line() + self._head(identity, shown)
        self._writing = identity
        return head + stream.feed(text)

    def _head(self, identity: str, shown: int) -> str:
        message = self._kinds[identity]
        kind = " (thinking)" if message.get("type") == "thinking" else ""
        return f"{author(message, self.agent)}{kind}: " + ("… " if shown else "")

    def _whole(self, identity: str, message: Mapping[str, Any]) -> str:
        if message.get("client_message_id") in self.own:
            return ""
        text = message_text(message, self.agent)
        if self._lines.get(identity) == text:
            return ""
        self._lines[identity] = text
        return self.end_line() + text + "\n"


def _metadata(message: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = message.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}
