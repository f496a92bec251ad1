"""Memory: the idle backend with everything that it starts, and what a live session adds beside its agent."""

import statistics
import time

from benchmarks.figures import Bar, Figure, figure
from benchmarks.processes import private_mb, pss_mb, tree
from benchmarks.server import Server

SESSIONS = 10
ROUNDS = 1
SETTLE_S = 2.0
IDLE = Bar(floor=60, stretch=40)
LIVE = Bar(floor=15, stretch=7)


def _agents(server: Server) -> set[int]:
    return {row[0] for row in server.rows("SELECT agent_pid FROM executors_running WHERE status = 'ready'")}


def _round() -> tuple[float, float, dict[str, float]]:
    with Server() as server:
        server.start()
        time.sleep(SETTLE_S)  # until the fork server has loaded
        idle = {pid: pss_mb(pid) for pid in tree(server.pid)}
        with server.client() as wire:
            for _ in range(SESSIONS):
                server.new_session(wire)
        time.sleep(SETTLE_S)
        agents = _agents(server)
        live = {pid: pss_mb(pid) for pid in tree(server.pid) if pid not in agents}
        assert len(agents) == SESSIONS
        sidecars = {row[0] for row in server.rows("SELECT agentctl_pid FROM executors_running")}
        details = {
            "idle, the backend's process alone, MB": idle[server.pid],
            "idle, processes": float(len(idle)),
            "live, agentctl of a session (PSS), MB": statistics.fmean(live[pid] for pid in sidecars),
            "live, agentctl of a session (private), MB": statistics.fmean(private_mb(pid) for pid in sidecars),
            "live, the backend's process a session, MB": (live[server.pid] - idle[server.pid]) / SESSIONS,
        }
        return sum(idle.values()), (sum(live.values()) - sum(idle.values())) / SESSIONS, details


def measure(rounds: int | None) -> list[Figure]:
    """Return PSS in MB."""
    taken = [_round() for _ in range(rounds or ROUNDS)]
    details = taken[-1][2]
    return [
        figure(
            "idle backend and its fork server, PSS",
            "MB",
            [one[0] for one in taken],
            IDLE,
            baseline="none",
            checked="no session; every process of the backend's tree counted",
            details={name: value for name, value in details.items() if name.startswith("idle")},
        ),
        figure(
            "live session beside its agent, PSS",
            "MB",
            [one[1] for one in taken],
            LIVE,
            baseline="its agent",
            checked=f"{SESSIONS} sessions after a turn each; whole tree without agents, minus idle, divided",
            details={name: value for name, value in details.items() if name.startswith("live")},
        ),
    ]
