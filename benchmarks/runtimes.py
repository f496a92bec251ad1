"""What each runtime adds: from a request to the agent's first chunk, and to each chunk. Standalone is the baseline.

The session has a worktree of a small repository. Every round takes the runtimes in turn, so that a slow phase of the
machine reaches all of them.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.chunks import KIND
from benchmarks.figures import Figure, figure, medians
from benchmarks.flood import Run, kandev_run
from benchmarks.places import Places, places
from benchmarks.server import PACE_S, Server
from benchmarks.wire import Wire
from kandev.runtimes import kill_leftovers

ROUNDS = 5
FLOODS = 3
CHUNKS = 50_000
FILES = 100
REST_S = 0.3
END_S = 30.0
BASE = "standalone"
PROMPT = "chunks 1"


class _Session(msgspec.Struct, frozen=True, kw_only=True):
    runtime: str
    task_id: str
    id: str


class _Took(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from a request to the first chunk, and those of the stages of the start that it needed."""

    ms: float
    stages: Mapping[str, float]


def _repository(directory: Path) -> Path:
    for number in range(FILES):
        (directory / f"file-{number:03d}.txt").write_text(f"Line of file {number}.\n" * 50)
    me = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), (*me, "commit", "-q", "-m", "files")):
        subprocess.run(["git", "-C", str(directory), *words], check=True)
    return directory


def _first_chunk(wire: Wire, session: _Session, action: str, **payload: str) -> _Took:
    began = time.perf_counter()
    wire.call(action, task_id=session.task_id, session_id=session.id, **payload)
    wire.until("session.message.delta")
    took = (time.perf_counter() - began) * 1000
    wire.until("session.turn.completed")
    outcome = wire.call("task.session.get", task_id=session.task_id, session_id=session.id)["resumes"][0]
    return _Took(ms=took, stages=outcome["stages"])


def _launch(server: Server, runtime: str, repository: Path) -> tuple[_Session, _Took]:
    with server.client() as wire:
        created = wire.call(
            "task.create",
            agent="flood",
            description=PROMPT,
            start=False,
            runtime=runtime,
            repository_path=str(repository),
        )
        session = _Session(runtime=runtime, task_id=created["task"]["id"], id=created["session"]["id"])
        wire.call("session.subscribe", session_id=session.id)
        return session, _first_chunk(wire, session, "task.session.start")


def _prompt(server: Server, session: _Session) -> _Took:
    with server.client() as wire:
        wire.call("session.subscribe", session_id=session.id)
        return _first_chunk(wire, session, "message.add", content=PROMPT)


def _end_agent(server: Server, session: _Session) -> None:
    """Let the agent end by itself, as one does that was idle; return once its instance is gone."""
    query = "SELECT instance_id FROM executors_running WHERE session_id = ?"
    instance_id = server.rows(query, session.id)[0][0]
    with server.client() as wire:
        wire.call("session.subscribe", session_id=session.id)
        wire.call("message.add", task_id=session.task_id, session_id=session.id, content="leave")
        wire.until("session.turn.completed")
    deadline = time.monotonic() + END_S
    while any((server.home / "run").rglob(instance_id)):
        assert time.monotonic() < deadline, f"the instance of {session.runtime} did not end"
        time.sleep(PACE_S)
    time.sleep(REST_S)


class _Measured:
    """What was taken, by runtime: launches, resumes of an agent that had ended, first prompts behind a kill, floods."""

    def __init__(self, names: Sequence[str]) -> None:
        self.launches: dict[str, list[_Took]] = {name: [] for name in names}
        self.resumes: dict[str, list[_Took]] = {name: [] for name in names}
        self.returns: dict[str, list[_Took]] = {name: [] for name in names}
        self.floods: dict[str, list[Run]] = {name: [] for name in names}

    def starts(self, server: Server, repository: Path, rounds: int) -> list[_Session]:
        """Launch and resume a session of each runtime in each round; return those of the later rounds, alive."""
        for name in self.launches:  # archives, images and caches are warm then, as on a machine in use
            _launch(server, name, repository)
        sessions = []
        for _ in range(rounds):
            for name in self.launches:
                session, launched = _launch(server, name, repository)
                self.launches[name].append(launched)
                _end_agent(server, session)
                self.resumes[name].append(_prompt(server, session))
                sessions.append(session)
                time.sleep(REST_S)
        return sessions

    def returned(self, server: Server, sessions: Sequence[_Session]) -> None:
        """Kill the backend under all sessions, start it, and prompt each."""
        server.kill()
        server.start()
        time.sleep(1)  # the fork server loads beside the first requests
        for session in sessions:
            self.returns[session.runtime].append(_prompt(server, session))
            time.sleep(REST_S)

    def flooded(self, server: Server, sessions: Sequence[_Session]) -> None:
        """Let one session of each runtime flood, in turns."""
        by_runtime = {session.runtime: session for session in sessions}
        for number in range(FLOODS + 1):
            for name, session in by_runtime.items():
                with server.client() as wire:
                    wire.call("session.subscribe", session_id=session.id)
                    run = kandev_run(KIND, CHUNKS, server, wire, (session.task_id, session.id))
                if number:  # the first warms the caches
                    self.floods[name].append(run)


@contextmanager
def _server(made: Places) -> Iterator[Server]:
    with Server(environment=made.environment, config=made.config) as server:
        try:
            server.start()
            yield server
            with server.client() as wire:
                for task in wire.call("task.list", limit=200)["tasks"]:
                    wire.call("task.delete", task_id=task["id"], force=True)
        finally:
            left = [str(path) for path in (server.home / "run/detached").glob("*")]
            asyncio.run(kill_leftovers(left))


def _times(what: str, taken: Mapping[str, Sequence[_Took]], shown: Mapping[str, str], checked: str) -> Iterator[Figure]:
    base = [one.ms for one in taken[BASE]]
    for name, times in taken.items():
        ours = [one.ms for one in times]
        stages = medians([{f"stage {stage}, ms": ms for stage, ms in one.stages.items()} for one in times])
        yield figure(
            f"{what}, {shown[name]}",
            f"x {BASE}",
            [one / other for one, other in zip(ours, base, strict=True)],
            None,
            baseline=f"{BASE} {statistics.median(base):.0f} ms",
            checked=checked,
            details={"whole, ms": statistics.median(ours), **stages},
        )


def _costs(taken: Mapping[str, Sequence[Run]], shown: Mapping[str, str]) -> Iterator[Figure]:
    base = [run.cpu_us["backend"] / CHUNKS for run in taken[BASE]]
    for name, runs in taken.items():
        ours = [run.cpu_us["backend"] / CHUNKS for run in runs]
        yield figure(
            f"a chunk's CPU time in the backend, {shown[name]}",
            f"x {BASE}",
            [one / other for one, other in zip(ours, base, strict=True)],
            None,
            baseline=f"{BASE} {statistics.median(base):.2f} us",
            checked=f"{CHUNKS:,} chunks a round: each once and in order, at the subscriber and in the database",
            details={
                "backend, us CPU a chunk": statistics.median(ours),
                "chunks a second": CHUNKS / statistics.median(run.seconds for run in runs),
            },
        )


def measure(rounds: int | None) -> list[Figure]:
    """Return each as a multiple of standalone, of the same round."""
    rounds = rounds or ROUNDS
    with places() as made, tempfile.TemporaryDirectory(prefix="kandev-bench-") as directory:
        for name, why in made.left_out.items():
            print(f"runtimes: {name} is left out: {why}", file=sys.stderr)
        measured = _Measured(list(made.shown))
        with _server(made) as server:
            sessions = measured.starts(server, _repository(Path(directory)), rounds)
            measured.flooded(server, sessions)
            measured.returned(server, sessions)
    to_chunk = f"{rounds} sessions of each, with a worktree of {FILES} files; from the request to the first chunk"
    return [
        *_times("launch", measured.launches, made.shown, to_chunk),
        *_times("resume", measured.resumes, made.shown, f"{to_chunk}, after the agent had ended"),
        *_times("prompt after a kill", measured.returns, made.shown, f"{to_chunk}, the backend killed and started"),
        *_costs(measured.floods, made.shown),
    ]
