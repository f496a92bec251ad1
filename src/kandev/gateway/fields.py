"""The kinds of fields in requests, with the words that an error uses for each pattern."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

CONTENT_CHARS = 4 * 1024 * 1024
LINE_CHARS = 4096

_ID = r"^[0-9a-zA-Z_-]{1,64}\Z"
_LINE = r"^[^\x00-\x1f\x7f]*\Z"
_TEXT = r"^[^\x00]*\Z"

Id = Annotated[str, Meta(pattern=_ID)]
# A title, a name or a path: no control characters, which would forge lines in terminals and logs.
Line = Annotated[str, Meta(max_length=LINE_CHARS, pattern=_LINE)]
# NUL ends text in SQLite's functions and in agents written in C; the rest of the control characters may be pasted.
Text = Annotated[str, Meta(min_length=1, max_length=CONTENT_CHARS, pattern=_TEXT)]
SearchText = Annotated[str, Meta(min_length=1, max_length=LINE_CHARS, pattern=_TEXT)]
ClientId = Annotated[str, Meta(min_length=1, max_length=128, pattern=_LINE)]
Limit = Annotated[int, Meta(ge=1, le=200)]
LogLimit = Annotated[int, Meta(ge=1, le=10_000)]
Seq = Annotated[int, Meta(ge=0, le=2**53)]

PATTERN_WORDS: Mapping[str, str] = {
    repr(_ID): "an id: 1 to 64 letters, digits, - or _",
    repr(_LINE): "text on one line, without control characters",
    repr(_TEXT): "text without NUL characters",
}
"""What msgspec's error shows of a pattern, and what a person is told."""
