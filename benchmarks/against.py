"""CPU time against an older commit: `make bench ARGS="--against COMMIT"`.

HEAD is compared with it. Both run the same benchmarks, in turn, so that a slow phase of the machine reaches both.
The minimum of the runs is compared: other work on the machine only ever adds to CPU time.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import number

HERE = Path(__file__).resolve().parent.parent
OURS = frozenset({"agentctl", "backend"})
"""The processes whose code the two versions do not share; the agent and the subscriber are the benchmark's."""


def compare(commit: str, measures: Sequence[str], runs: int) -> str:
    """Return a table: each process's CPU time, least of the runs, of it and of HEAD, and their ratio.

    Raises subprocess.CalledProcessError where git does not know the commit or a benchmark fails.
    """
    with _sources_of(commit) as then, _sources_of("HEAD") as now:
        taken: list[tuple[dict[str, float], dict[str, float]]] = []
        for run in range(runs):
            print(f"run {run + 1} of {runs}", file=sys.stderr)
            taken.append((_measure(then, measures), _measure(now, measures)))
    rows = [f"{'CPU time, least of ' + str(runs):<60} {commit[:12]:>12} {'HEAD':>10} {'ratio':>6}"]
    for name in taken[0][1]:
        old, new = (min(run[name] for run in side) for side in zip(*taken, strict=True))
        rows.append(f"{name:<60} {number(old):>12} {number(new):>10} {new / old:>6.2f}")
    return "\n".join(rows)


@contextmanager
def _sources_of(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kandev-bench-") as folder:
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=HERE, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder) / "src"


def _measure(sources: Path, measures: Sequence[str]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks", "--only", ",".join(measures), "--rounds", "1", "--json", "-"]
    environment = {**os.environ, "PYTHONPATH": f"{sources}{os.pathsep}{HERE / 'tests'}"}
    done = subprocess.run(command, cwd=HERE, env=environment, check=True, stdout=subprocess.PIPE)
    return dict(_cpu_times(json.loads(done.stdout)["figures"]))


def _cpu_times(figures: Sequence[Mapping[str, object]]) -> Iterator[tuple[str, float]]:
    for figure in figures:
        details = figure["details"]
        assert isinstance(details, dict)
        for name, value in details.items():
            process, _, unit = name.partition(", ")
            if "CPU" in unit and process in OURS:
                yield f"{figure['what']}: {name}", value
