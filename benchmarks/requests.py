"""Other requests while an agent floods: `health.check` on a socket of its own, beside a subscriber that reads all."""

import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

from benchmarks.chunks import KIND
from benchmarks.figures import Bar, Figure, figure, percentile
from benchmarks.flood import kandev_run
from benchmarks.server import Server
from benchmarks.wire import Wire

CHUNKS = 1_000_000
ROUNDS = 3
PACE_S = 0.005
IDLE_REQUESTS = 300
BAR = Bar(floor=25, stretch=8)


def _subscribe(server: Server, session: tuple[str, str], parent: Connection) -> None:
    """Be the subscriber, in a process of its own; the flood begins when it is told to."""
    with server.client() as wire:
        wire.call("session.subscribe", session_id=session[1])
        parent.send("ready")
        parent.recv()
        run = kandev_run(KIND, CHUNKS, server, wire, session)
        parent.send(CHUNKS / run.seconds)


def _ask_ms(wire: Wire) -> float:
    began = time.perf_counter()
    wire.call("health.check")
    took = (time.perf_counter() - began) * 1000
    time.sleep(PACE_S)
    return took


def _flooded(server: Server, session: tuple[str, str], wire: Wire) -> tuple[list[float], float]:
    """Return the times of the requests during one flood, and the flood's rate."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    subscriber = context.Process(target=_subscribe, args=(server, session, there))
    subscriber.start()
    here.recv()
    here.send("go")
    times = []
    while not here.poll():
        times.append(_ask_ms(wire))
    rate: float = here.recv()
    subscriber.join()
    return times, rate


def measure(rounds: int | None) -> list[Figure]:
    """Return the 99th percentile in milliseconds."""
    idle, flooded, rates, asked = [], [], [], 0
    with Server() as server:
        server.start()
        with server.client() as wire:
            session = server.new_session(wire)
        with server.client() as wire:
            for _ in range(rounds or ROUNDS):
                idle.append([_ask_ms(wire) for _ in range(IDLE_REQUESTS)])
                times, rate = _flooded(server, session, wire)
                flooded.append(times)
                rates.append(rate)
                asked += len(times)
    quiet = statistics.median(percentile(one, 0.99) for one in idle)
    return [
        figure(
            "other requests during a flood, p99",
            "ms",
            [percentile(one, 0.99) for one in flooded],
            BAR,
            baseline=f"idle {quiet:.2f}",
            checked=f"{asked} requests beside floods of {CHUNKS:,} chunks, each once and in order",
            details={
                "p50, ms": statistics.median(percentile(one, 0.5) for one in flooded),
                "largest, ms": max(map(max, flooded)),
                "chunks a second meanwhile": statistics.median(rates),
            },
        )
    ]
