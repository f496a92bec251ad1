"""Recorded dialogues of Claude Code's own command line, of version 2.1.318 against a fake model server, shortened.

In tests/contract/transcripts/stream, one JSON object a line: first the command, then {"dir", "msg"} of each line, with
`dir` "out" for ours, and last how the process ended.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kandev.protocols.dialect import Burst, Event

STREAMS = Path(__file__).parent / "contract" / "transcripts" / "stream"
NAMES = sorted(path.stem for path in STREAMS.glob("*.jsonl"))

Json = dict[str, Any]


def lines(name: str) -> Iterator[tuple[str, Json]]:
    """Yields each line of the dialogue: "out" and what we wrote, "in" and what the agent wrote."""
    for text in (STREAMS / f"{name}.jsonl").read_text().splitlines():
        record = json.loads(text)
        if record.get("dir") in {"in", "out"}:
            yield record["dir"], record["msg"]


def said(name: str, kind: str) -> list[Json]:
    """Returns what the agent wrote of one type."""
    return [message for way, message in lines(name) if way == "in" and message["type"] == kind]


def encoded(message: Json) -> bytes:
    """Returns a message as its line."""
    return json.dumps(message).encode()


def flat(event: Event) -> list[Event]:
    """Returns the events of a line one by one."""
    return [one for inner in event.events for one in flat(inner)] if isinstance(event, Burst) else [event]
