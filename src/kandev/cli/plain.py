"""Text from agents, made safe for a terminal.

What an agent writes is untrusted: an escape sequence could retitle the window, write to the clipboard, or overwrite a
line that asks for a permission. Everything that is shown passes through here; what goes out as JSON is escaped instead.
"""

import re

_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC ... BEL or ST
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # DCS, SOS, PM, APC ... ST
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    r"|\x1b(?:[ -/]+[0-~]|[0-OQ-WYZ\\`-~])"  # two or three characters, none that begins one of the above
    r"|\x9b[0-?]*[ -/]*[@-~]"  # CSI as one character
)
_OPEN_SEQUENCE = re.compile(
    r"\x1b(?:\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|\[[0-?]*[ -/]*|[ -/]*)\Z|\x9b[0-?]*[ -/]*\Z"
)
# C0 without tab and newline, DEL, C1, and the characters that turn the direction of a line.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_HELD = 4096  # characters: a sequence longer than this is not one


def strip_controls(text: str) -> str:
    """Return `text` without escape sequences and control characters; a carriage return becomes a new line."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROL.sub("", _SEQUENCE.sub("", text))
    return text.encode("utf-8", "replace").decode("utf-8")


def one_line(text: str, limit: int = 0) -> str:
    """Return `text` on one line, cut to `limit` characters (0: not cut)."""
    line = " ".join(strip_controls(text).split())
    return line[: limit - 1] + "…" if limit and len(line) > limit else line


class PlainStream:
    """Strips a text that arrives in pieces: a sequence that is cut in two is still taken out as a whole."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return what can be shown now; an unfinished sequence waits for the next piece."""
        text = self._held + piece
        self._held = ""
        unfinished = _OPEN_SEQUENCE.search(_SEQUENCE.sub(lambda match: "\x00" * len(match[0]), text))
        if unfinished and len(text) - unfinished.start() <= _HELD:
            self._held = text[unfinished.start() :]
            text = text[: unfinished.start()]
        elif text.endswith("\r"):
            self._held, text = "\r", text[:-1]
        return strip_controls(text)
