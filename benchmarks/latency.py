"""From the agent's write to the subscriber, while the session is otherwise idle: one update at a time."""

import statistics
import time

from benchmarks.bare import BareClient
from benchmarks.figures import Bar, Figure, figure, medians, percentile
from benchmarks.processes import Stopwatch
from benchmarks.server import Server
from benchmarks.wire import Wire

TICKS = 200
PAUSE_MS = 50
ROUNDS = 3
MEDIAN = Bar(floor=3, stretch=1.5)
LATE = Bar(floor=10, stretch=3)
PROMPT = f"ticks {TICKS} {PAUSE_MS}"


class _Ticks:
    """Collects ticks: their numbers, and the milliseconds from write to receipt."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.ms: list[float] = []

    def add(self, text: str, at_ns: int) -> None:
        for tick in text.split(";")[:-1]:
            number, written_ns = map(int, tick.split())
            self.numbers.append(number)
            self.ms.append((at_ns - written_ns) / 1e6)

    def check(self) -> list[float]:
        assert self.numbers == list(range(TICKS)), "ticks were lost or reordered"
        return self.ms


def _bare_ms() -> list[float]:
    ticks = _Ticks()
    with BareClient() as client:
        client.open()
        for update, at_ns in client.prompt(PROMPT):
            ticks.add(update["content"]["text"], at_ns)
    return ticks.check()


def _kandev_ms(wire: Wire, task_id: str, session_id: str) -> list[float]:
    ticks = _Ticks()
    wire.call("message.add", task_id=task_id, session_id=session_id, content=PROMPT)
    while (message := wire.event()).action != "session.turn.completed":
        at_ns = time.monotonic_ns()
        if message.action == "session.message.delta":
            ticks.add(message.value()["text"], at_ns)
    return ticks.check()


def measure(rounds: int | None) -> list[Figure]:
    """Return median and 99th percentile in milliseconds, each of whole rounds."""
    bare, ours, cpu = [], [], []
    with Server() as server:
        server.start()
        with server.client() as wire:
            session = server.new_session(wire)
            for _ in range(rounds or ROUNDS):
                bare.append(_bare_ms())
                watch = Stopwatch(server.pids(session[1]))
                ours.append(_kandev_ms(wire, *session))
                cpu.append({f"{name}, us CPU an update": us / TICKS for name, us in watch.cpu_us().items()})
    checked = f"{TICKS} updates a round, {PAUSE_MS} ms apart: each once and in order"
    figures = []
    for name, share, bar in (("p50", 0.5, MEDIAN), ("p99", 0.99, LATE)):
        client = statistics.median(percentile(one, share) for one in bare)
        figures.append(
            figure(
                f"idle latency, agent's write to subscriber, {name}",
                "ms",
                [percentile(one, share) for one in ours],
                bar,
                baseline=f"bare client {client:.2f}",
                checked=checked,
                details=medians(cpu),
            )
        )
    return figures
