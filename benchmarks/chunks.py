"""Text chunks per second: one agent, SQLite with synchronous=FULL, and a subscriber."""

import json
import statistics

from benchmarks.figures import Bar, Figure, figure
from benchmarks.flood import Kind, compare, cpu_details
from benchmarks.flood_agent import chunk
from benchmarks.wire import Message

CHUNKS = 200_000
ROUNDS = 7
BAR = Bar(floor=0.6, stretch=1.5, higher=True)


def _delta(message: Message) -> str:
    return str(message.value()["text"])


def _bare(update: dict[str, object]) -> str:
    content = update["content"]
    assert isinstance(content, dict)
    return str(content["text"])


def _expected(count: int) -> str:
    return "".join(json.loads(chunk(number))["params"]["update"]["content"]["text"] for number in range(count))


KIND = Kind(
    command="chunks",
    action="session.message.delta",
    text_of=_delta,
    expected=_expected,
    bare_text=_bare,
    stored="SELECT content FROM messages WHERE turn_id = ? AND type = 'message' AND author_type = 'agent' ORDER BY seq",
)


def measure(rounds: int | None) -> list[Figure]:
    """Return the rate as a multiple of a bare client's."""
    bare, ours = compare(KIND, CHUNKS, rounds or ROUNDS)
    reads = CHUNKS / statistics.median(run.seconds for run in bare)
    stores = CHUNKS / statistics.median(run.seconds for run in ours)
    return [
        figure(
            "text chunks, agent to SQLite and subscriber",
            "x bare",
            [one.seconds / other.seconds for one, other in zip(bare, ours, strict=True)],
            BAR,
            baseline=f"bare client {reads:,.0f}/s",
            checked=f"{CHUNKS:,} chunks a round: each once and in order, at the subscriber and in the database",
            details={"chunks a second": stores, **cpu_details(CHUNKS, bare, ours)},
        )
    ]
