"""Start after a kill: 10,000 sessions, 1,000 of them left RUNNING, 50 with a journal of 1 MB nobody has read."""

import asyncio
import shutil
import statistics
import tempfile
from pathlib import Path

from benchmarks.figures import Bar, Figure, figure
from benchmarks.processes import Stopwatch
from benchmarks.seeded import RUNNING, SESSIONS, WITH_JOURNAL, Seeded, seed
from benchmarks.server import Server

ROUNDS = 5
BAR = Bar(floor=1.5, stretch=0.5)


def _start(server: Server) -> tuple[float, float]:
    """Start; return the seconds until the port answered, and the backend's CPU seconds until then."""
    took = server.start()
    return took, Stopwatch({"backend": server.pid}).total_s()


def _empty_s() -> tuple[float, float]:
    with Server() as server:
        return _start(server)


def _seeded_s(template: Path, seeded: Seeded) -> tuple[float, float]:
    """Start on a copy of the home, and look whether everything in it was settled and stored."""
    home = Path(tempfile.mkdtemp(prefix="kandev-bench-"))
    shutil.copytree(template, home, dirs_exist_ok=True)
    with Server(home=home) as server:
        measured = _start(server)
        _check(server, seeded)
    return measured


def _check(server: Server, seeded: Seeded) -> None:
    """Every session waits, every turn was closed, and what the journals held is stored."""
    states = dict(server.rows("SELECT state, count(*) FROM task_sessions GROUP BY state"))
    assert states == {"WAITING_FOR_INPUT": SESSIONS}, states
    turns = dict(server.rows("SELECT state, count(*) FROM turns GROUP BY state"))
    assert turns == {"completed": SESSIONS - RUNNING, "interrupted": RUNNING}, turns
    tools = server.rows("SELECT count(*) FROM messages WHERE type = 'tool_call'")[0][0]
    assert tools == seeded.tools, (tools, seeded.tools)
    chunks = "SELECT sum((length(content) - length(replace(content, ' numbered text;', ''))) / 15) FROM messages"
    assert server.rows(chunks)[0][0] == seeded.chunks


def measure(rounds: int | None) -> list[Figure]:
    """Return seconds until the port answers."""
    empty, full = [], []
    with tempfile.TemporaryDirectory(prefix="kandev-bench-") as directory:
        template = Path(directory)
        seeded = asyncio.run(seed(template))
        for _ in range(rounds or ROUNDS):
            empty.append(_empty_s())
            full.append(_seeded_s(template, seeded))
    return [
        figure(
            "start with 10,000 sessions, 1,000 RUNNING, 50 journals",
            "s",
            [took for took, _ in full],
            BAR,
            baseline=f"empty home {statistics.median(took for took, _ in empty):.2f}",
            checked=f"{seeded.chunks:,} chunks and {seeded.tools:,} tool calls of {WITH_JOURNAL} journals stored; "
            f"{RUNNING:,} turns interrupted",
            details={
                "CPU of the backend until then, s": statistics.median(cpu for _, cpu in full),
                "the same on an empty home, s": statistics.median(cpu for _, cpu in empty),
            },
        )
    ]
