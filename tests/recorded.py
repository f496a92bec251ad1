"""Conversations as a journal tells them: what we wrote, and the bytes that agentctl journalled around it.

The recorded ones are those of real agents in tests/contract/transcripts. Ids are given out as the reader gives them
out: our requests count from 1, and so do the lines that we write.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from kandev.agentctl import records

TRANSCRIPTS = Path(__file__).parent / "contract" / "transcripts"
NAMES = sorted(path.stem for path in TRANSCRIPTS.glob("*.jsonl"))
REPLAYS = sorted(path.stem for path in (TRANSCRIPTS / "replays").glob("*.jsonl"))


class Ours(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ours. `method` is '' for an answer to the agent; `reply_to` is then the id of its request."""

    method: str = ""
    reply_to: int | str | None = None
    option: str = ""


Step = Ours | bytes
"""We write a line, or the journal says this: whole lines."""


def conversation(messages: Iterable[Ours | dict[str, Any] | bytes]) -> list[Step]:
    """Returns the steps of a conversation that begins with the agent's start: each line of ours is journalled."""
    steps: list[Step] = [records.encode(records.Started(gen=1, pid=7, start_time=7, pgid=7))]
    number = 0
    for message in messages:
        if isinstance(message, Ours):
            number += 1
            written = records.encode(records.StdinLine(n=number)) + records.encode(records.StdinWritten(n=number))
            steps += [message, written]
        elif isinstance(message, bytes):
            steps.append(records.escape(message, at_line_start=True) + b"\n")
        else:
            steps.append(msgspec.json.encode(message) + b"\n")
    return steps


def processes(name: str) -> list[list[dict[str, Any]]]:
    """Returns what was recorded of each process in a file of `replays`: `dir`, and `msg`, or a line as `text`."""
    found: list[list[dict[str, Any]]] = []
    for text in (TRANSCRIPTS / "replays" / f"{name}.jsonl").read_bytes().splitlines():
        record = json.loads(text)
        if record["dir"] == "out" and record["msg"].get("method") == "initialize":
            found.append([])
        found[-1].append(record)
    return found


def recorded(name: str) -> list[Step]:
    """Returns a recorded conversation of a real agent, which then ends with exit code 0."""
    end = records.encode(records.Exited(code=0, signal=None))
    return [*conversation(_messages(name)), end]


def _messages(name: str) -> Iterator[Ours | dict[str, Any]]:
    ids: dict[int, int] = {}
    for text in (TRANSCRIPTS / f"{name}.jsonl").read_bytes().splitlines():
        record = json.loads(text)
        message = record["msg"]
        if record["dir"] == "in":
            yield {**message, "id": ids[message["id"]]} if _is_answer(message) else message
        elif "method" in message:
            if "id" in message:
                ids[message["id"]] = len(ids) + 1
            yield Ours(method=message["method"])
        else:
            yield Ours(reply_to=message["id"], option=message["result"]["outcome"].get("optionId", ""))


def _is_answer(message: dict[str, Any]) -> bool:
    return "method" not in message
