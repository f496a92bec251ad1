"""Resume to ready, over a bare client that spawns the same agent, initializes and loads."""

import statistics
import time

from benchmarks.bare import BareClient
from benchmarks.figures import Bar, Figure, figure, medians
from benchmarks.server import Server
from benchmarks.wire import Wire

ROUNDS = 15
REST_S = 0.2
BAR = Bar(floor=25, stretch=8)


def _bare_ms(agent_session: str) -> float:
    began = time.perf_counter()
    with BareClient() as client:
        client.open(agent_session)
        return (time.perf_counter() - began) * 1000


def _resume_ms(wire: Wire, task_id: str, session_id: str) -> tuple[float, dict[str, float]]:
    """Resume through the WebSocket until the agent is ready; return the stages of the server too."""
    before = wire.call("task.session.status", task_id=task_id, session_id=session_id)
    assert before["needs_resume"], before
    began = time.perf_counter()
    answer = wire.call("task.session.resume", task_id=task_id, session_id=session_id, wait=True)
    took = (time.perf_counter() - began) * 1000
    assert answer["state"] == "WAITING_FOR_INPUT", answer
    outcome = wire.call("task.session.get", task_id=task_id, session_id=session_id)["resumes"][0]
    assert outcome["how"] == "native", outcome
    return took, {f"stage {name}, ms": ms for name, ms in outcome["stages"].items()}


def measure(rounds: int | None) -> list[Figure]:
    """Return what the server adds, in milliseconds. Each session is resumed once, after a kill of the backend."""
    rounds = rounds or ROUNDS
    bare, ours, stages = [], [], []
    with Server() as server:
        server.start()
        with server.client() as wire:
            sessions = [server.new_session(wire) for _ in range(rounds + 1)]
        server.kill()
        server.start()
        time.sleep(1)  # the fork server loads beside the first requests
        with server.client() as wire:
            _resume_ms(wire, *sessions.pop())
            for task_id, session_id in sessions:
                time.sleep(REST_S)
                bare.append(_bare_ms("bench"))
                time.sleep(REST_S)
                took, of_server = _resume_ms(wire, task_id, session_id)
                ours.append(took)
                stages.append(of_server)
    return [
        figure(
            "resume to ready, over the bare client",
            "+ ms",
            [one - other for one, other in zip(ours, bare, strict=True)],
            BAR,
            baseline=f"bare client {statistics.median(bare):.1f} ms",
            checked=f"{rounds} sessions after a kill -9, each resumed natively (session/load) and WAITING_FOR_INPUT",
            details={"whole resume, ms": statistics.median(ours), **medians(stages)},
        )
    ]
