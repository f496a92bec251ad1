"""A flood through the whole server, and the same flood to a bare client; what came and what was stored is compared."""

import time
from collections.abc import Callable

import msgspec

from benchmarks.bare import BareClient
from benchmarks.figures import Bar, Figure, figure, medians
from benchmarks.processes import Stopwatch
from benchmarks.server import Server
from benchmarks.wire import Message, Wire


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of flood: the agent's command, the notification that carries its content, and what has to arrive.

    `text_of` takes content out of a notification, `stored` is the query that gives it from the database.
    """

    command: str
    action: str
    text_of: Callable[[Message], str]
    expected: Callable[[int], str]
    bare_text: Callable[[dict[str, object]], str]
    stored: str


class Run(msgspec.Struct, frozen=True):
    """One run: its wall time, and the CPU time of each process in microseconds."""

    seconds: float
    cpu_us: dict[str, float]


def bare_run(kind: Kind, count: int) -> Run:
    """Let a bare client read the flood."""
    with BareClient() as client:
        client.open()
        began, cpu = time.perf_counter(), time.process_time()
        texts = [kind.bare_text(update) for update, _ in client.prompt(f"{kind.command} {count}")]
        run = Run(time.perf_counter() - began, {"client": (time.process_time() - cpu) * 1e6})
    assert "".join(texts) == kind.expected(count), "the bare client lost something"
    return run


def kandev_run(kind: Kind, count: int, server: Server, wire: Wire, session: tuple[str, str]) -> Run:
    """Let the server read the flood: from the request until its subscriber has the last update, all of it stored."""
    task_id, session_id = session
    watch = Stopwatch(server.pids(session_id))
    wire.call("message.add", task_id=task_id, session_id=session_id, content=f"{kind.command} {count}")
    texts: list[str] = []
    while (message := wire.event()).action != "session.turn.completed":
        if message.action == kind.action:
            texts.append(kind.text_of(message))
    run = Run(watch.seconds(), watch.cpu_us())
    expected = kind.expected(count)
    assert "".join(texts) == expected, "the subscriber lost or reordered something"
    turn_id = message.value()["turn"]["id"]
    stored = "".join(row[0] for row in server.rows(kind.stored, turn_id))
    assert stored == expected, "the database lost or reordered something"
    return run


def compare(kind: Kind, count: int, rounds: int) -> tuple[list[Run], list[Run]]:
    """Return the runs of the bare client and of the server, taken in turns."""
    bare, ours = [], []
    with Server() as server:
        server.start()
        with server.client() as wire:
            session = server.new_session(wire)
            kandev_run(kind, count // 10, server, wire, session)  # warms the caches of both
            for _ in range(rounds):
                bare.append(bare_run(kind, count))
                ours.append(kandev_run(kind, count, server, wire, session))
    return bare, ours


def cpu_details(count: int, bare: list[Run], ours: list[Run]) -> dict[str, float]:
    """Return the CPU time of an update in each process, in microseconds."""
    per_update = medians([{name: us / count for name, us in run.cpu_us.items()} for run in ours])
    client = medians([{"bare client": run.cpu_us["client"] / count} for run in bare])
    return {f"{name}, us CPU an update": us for name, us in {**client, **per_update}.items()}


def rate_figure(what: str, count: int, bare: list[Run], ours: list[Run], bar: Bar) -> Figure:
    """Return updates per second."""
    reads = sorted(count / run.seconds for run in bare)[len(bare) // 2]
    return figure(
        what,
        "1/s",
        [count / run.seconds for run in ours],
        bar,
        baseline=f"bare client {reads:,.0f}",
        checked=f"{count:,} updates a round: each once and in order, at the subscriber and in the database",
        details=cpu_details(count, bare, ours),
    )
