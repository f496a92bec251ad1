"""Updates that cannot be joined, per second: each tool call is a message of its own."""

from benchmarks.figures import Bar, Figure
from benchmarks.flood import Kind, compare, rate_figure
from benchmarks.wire import Message

CALLS = 30_000
ROUNDS = 5
BAR = Bar(floor=30_000, stretch=80_000, higher=True)


def _added(message: Message) -> str:
    shown = message.value()["message"]
    return f"{shown['metadata']['tool_call_id']}\n" if shown["type"] == "tool_call" else ""


def _expected(count: int) -> str:
    return "".join(f"call-{number:08d}\n" for number in range(count))


KIND = Kind(
    command="tools",
    action="session.message.added",
    text_of=_added,
    expected=_expected,
    bare_text=lambda update: f"{update['toolCallId']}\n",
    stored="SELECT json_extract(metadata, '$.tool_call_id') || char(10) FROM messages "
    "WHERE turn_id = ? AND type = 'tool_call' ORDER BY seq",
)


def measure(rounds: int | None) -> list[Figure]:
    """Return tool calls per second."""
    bare, ours = compare(KIND, CALLS, rounds or ROUNDS)
    return [rate_figure("tool calls, agent to SQLite and subscriber", CALLS, bare, ours, BAR)]
