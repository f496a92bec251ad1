"""What the kernel counts of other processes: CPU time and proportional memory."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

PROC = Path("/proc")


def cpu_ns(pid: int) -> int:
    """Return the CPU time of all threads so far, in nanoseconds; 0 for a process that is gone."""
    total = 0
    with contextlib.suppress(OSError):
        for task in (PROC / str(pid) / "task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total


def pss_mb(pid: int) -> float:
    """Return the memory of a process in MB, shared pages divided among those who share them."""
    return _rollup(pid)["Pss"] / 1024


def private_mb(pid: int) -> float:
    """Return the memory that nobody else uses, in MB."""
    rollup = _rollup(pid)
    return (rollup["Private_Clean"] + rollup["Private_Dirty"]) / 1024


def _rollup(pid: int) -> dict[str, int]:
    """Return the sums of smaps in KB."""
    fields = {}
    for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        fields[name] = int(value.split()[0])
    return fields


def tree(pid: int) -> list[int]:
    """Return a process and everything below it."""
    found = [pid]
    for above in found:
        with contextlib.suppress(OSError):
            for task in (PROC / str(above) / "task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


class Stopwatch:
    """Wall time and the CPU time of some processes since it was made."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._cpu = {name: cpu_ns(pid) for name, pid in pids.items()}
        self._began = time.perf_counter()

    def seconds(self) -> float:
        """Return the wall time."""
        return time.perf_counter() - self._began

    def total_s(self) -> float:
        """Return all CPU time of the processes since they were started, in seconds."""
        return sum(map(cpu_ns, self._pids.values())) / 1e9

    def cpu_us(self) -> dict[str, float]:
        """Return the CPU time of each process in microseconds."""
        return {name: (cpu_ns(pid) - self._cpu[name]) / 1000 for name, pid in self._pids.items()}
