"""`task.session.status` with 10,000 sessions stored: the time in the server, from the frame to the encoded answer."""

import asyncio
import contextlib
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figures import Bar, Figure, figure, percentile
from benchmarks.seeded import seed
from kandev.app import Backend
from kandev.config import load_config
from kandev.gateway import protocol
from kandev.gateway.actions import perform
from kandev.gateway.context import Context
from kandev.gateway.outbox import Outbox

ASKED = 1_000
ROUNDS = 7
BAR = Bar(floor=1, stretch=0.3)
HEALTH = '{"id":"1","type":"request","action":"health.check","payload":{}}'
STATUS = '{"id":"1","type":"request","action":"task.session.status","payload":{"task_id":"%s","session_id":"%s"}}'


async def _times_ms(context: Context, frames: list[str], expected: bytes) -> list[float]:
    """Return the time of each frame, read, answered and encoded in the loop of the backend."""
    times = []
    for frame in frames:
        began = time.perf_counter()
        (request,) = protocol.decode_frame(frame)
        assert isinstance(request, protocol.Request)
        answer = protocol.response(request, await perform(context, request))
        times.append((time.perf_counter() - began) * 1000)
        assert expected in answer, answer
    return times


async def _measure(rounds: int) -> Figure:
    with tempfile.TemporaryDirectory(prefix="kandev-bench-") as directory:
        seeded = await seed(Path(directory))
        config = load_config({"KANDEV_HOME": directory})
        async with Backend.open(config) as backend:
            context = Context(backend, Outbox())
            health, status = [], []
            for _ in range(rounds):
                health.append(await _times_ms(context, [HEALTH] * ASKED, b'"status":"ok"'))
                chosen = random.sample(seeded.sessions, ASKED)
                frames = [STATUS % names for names in chosen]
                status.append(await _times_ms(context, frames, b'"state":"WAITING_FOR_INPUT"'))
    quick = statistics.median(statistics.median(one) for one in health)
    return figure(
        "status with 10,000 sessions stored, in the server",
        "ms",
        [statistics.median(one) for one in status],
        BAR,
        baseline=f"health.check {quick:.3f}",
        checked=f"{ASKED} sessions a round, chosen at random; each answered with its state",
        details={"p99, ms": statistics.median(percentile(one, 0.99) for one in status)},
    )


def measure(rounds: int | None) -> list[Figure]:
    """Return the median in milliseconds."""
    with contextlib.redirect_stdout(sys.stderr):  # where the backend's log goes
        return [asyncio.run(_measure(rounds or ROUNDS))]
