"""Where the agents of an episode are: their processes as this machine sees them, and the journals of their agentctls.

In a container a process has a number of its own, which its agent and the journal tell, beside the one that it has here.
So what is remembered of a process goes by a name that no other process of the episode has.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from fakes import FakeAgent, runs
from kandev.agentctl.platform import all_processes, children, descendants, is_alive, process_stat
from kandev.agentctl.segments import journal_in
from kandev.runtimes.container_files import ContainerFiles

LIVE_ROWS: Final = "SELECT * FROM executors_running WHERE status IN ('creating', 'starting', 'ready')"
INSTANCE: Final = "KANDEV_INSTANCE_ID"
"""The variable that tells an agent its instance; the agents of an episode log it."""

Name = int | str
Rows = Callable[[str], Sequence[dict[str, Any]]]


class Sidecar(msgspec.Struct, frozen=True, kw_only=True):
    """An agentctl that lives. `root` is the process below which its whole place is."""

    session_id: str
    instance_id: str
    pid: int
    start_time: int
    root: int


class Place(Protocol):
    """What an episode asks about a runtime."""

    def sidecars(self) -> list[Sidecar]:
        """Every agentctl that lives."""
        ...

    def agents(self, agent: FakeAgent) -> list[int]:
        """The processes of an agent that live, without what they started, oldest first."""
        ...

    def everybody(self, agents: Iterable[FakeAgent]) -> set[Name]:
        """The names of all processes of these agents, and of what they started."""
        ...

    def name(self, sidecar: Sidecar, pid: int) -> Name:
        """The name of a process below an agentctl."""
        ...

    def name_told(self, instance_id: str, pid: int) -> Name:
        """The name of a process by the number that it has where it runs."""
        ...

    def named(self, entries: Iterable[dict[str, Any]]) -> Iterator[tuple[Name, dict[str, Any]]]:
        """The entries of an agent's log, each with the name of the process that wrote it."""
        ...

    def journal(self, session_id: str, instance_id: str) -> str:
        """Where an instance has its journal."""
        ...


class Here:
    """This machine itself: a process has one number, and rows name the agentctls."""

    def __init__(self, directory: Path, rows: Rows) -> None:
        self._directory = directory
        self._rows = rows

    def sidecars(self) -> list[Sidecar]:
        named = [
            Sidecar(
                session_id=row["session_id"],
                instance_id=row["instance_id"],
                pid=row["agentctl_pid"],
                start_time=row["agentctl_start_time"],
                root=row["agentctl_pid"],
            )
            for row in self._rows(LIVE_ROWS)
            if row["agentctl_pid"]
        ]
        return [one for one in named if is_alive(one.pid, one.start_time)]

    def agents(self, agent: FakeAgent) -> list[int]:
        return [pid for pid in agent.pids() if runs(pid)]

    def everybody(self, agents: Iterable[FakeAgent]) -> set[Name]:
        return {pid for agent in agents for pid in agent.alive()}

    def name(self, _sidecar: Sidecar, pid: int) -> Name:
        return pid

    def name_told(self, _instance_id: str, pid: int) -> Name:
        return pid

    def named(self, entries: Iterable[dict[str, Any]]) -> Iterator[tuple[Name, dict[str, Any]]]:
        return ((entry["pid"], entry) for entry in entries)

    def journal(self, _session_id: str, instance_id: str) -> str:
        return journal_in(str(self._directory / instance_id))


class Containers:
    """Containers on this machine: their processes are found by what their command lines name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def sidecars(self) -> list[Sidecar]:
        found = []
        beginning = f"@{self._directory}/"
        for init, words in _commands():
            session_id = next((w[len(beginning) :].partition("/")[0] for w in words if w.startswith(beginning)), "")
            if not session_id or not words[0].endswith("docker-init"):
                continue
            for pid in children(init):
                stat = process_stat(pid)
                if stat is not None and stat.alive and _command(pid)[:1] == ["python3"]:
                    instance_id = ContainerFiles(self._directory, session_id).instance_id
                    found.append(
                        Sidecar(
                            session_id=session_id,
                            instance_id=instance_id,
                            pid=pid,
                            start_time=stat.start_time,
                            root=init,
                        )
                    )
        return sorted(found, key=lambda one: one.start_time)

    def agents(self, agent: FakeAgent) -> list[int]:
        own = agent.command[-1]
        found = [process_stat(pid) for pid, words in _commands() if words[-1] == own and "-c" not in words]
        return [stat.pid for stat in sorted(filter(None, found), key=lambda stat: stat.start_time) if stat.alive]

    def everybody(self, _agents: Iterable[FakeAgent]) -> set[Name]:
        return {self.name(one, pid) for one in self.sidecars() for pid in descendants(one.pid)}

    def name(self, sidecar: Sidecar, pid: int) -> Name:
        return self.name_told(sidecar.instance_id, _number_inside(pid))

    def name_told(self, instance_id: str, pid: int) -> Name:
        return f"{instance_id}/{pid}"

    def named(self, entries: Iterable[dict[str, Any]]) -> Iterator[tuple[Name, dict[str, Any]]]:
        instances: dict[int, str] = {}
        for entry in entries:
            if entry.get("event") == "start":
                instances[entry["pid"]] = entry["values"][INSTANCE]
            yield self.name_told(instances[entry["pid"]], entry["pid"]), entry

    def journal(self, session_id: str, instance_id: str) -> str:
        return journal_in(str(self._directory / session_id / instance_id))


def place_of(runtime: str, home: Path, rows: Rows) -> Place:
    """Return the place of a runtime's agents; `rows` asks the database of the home."""
    if runtime == "docker":
        return Containers(home / "run/docker")
    return Here(home / "run" / ("" if runtime == "standalone" else runtime), rows)


def _commands() -> Iterator[tuple[int, list[str]]]:
    """Every process that has a command line; kernel threads and zombies have none."""
    for stat in all_processes():
        if words := _command(stat.pid):
            yield stat.pid, words


def _command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    return []


def _number_inside(pid: int) -> int:
    """The number of a process in its own namespace; 0 where it is gone, and names nothing any more."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0
