"""`make bench`: every line of the table of quality bars, with its baseline beside it.

    make bench ARGS="--only resume,chunks --rounds 5 --json bench.json"
    make bench ARGS="--only chunks,tools --against v0.1.0"

Nothing here fails for being slow; only a lost or reordered update ends it with an error.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from benchmarks import chunks, latency, memory, requests, resume, runtimes, start, status, tools
from benchmarks.against import compare
from benchmarks.figures import Figure, notes, table

COMPARED_RUNS = 7

MEASURES: Mapping[str, Callable[[int | None], list[Figure]]] = {
    "resume": resume.measure,
    "chunks": chunks.measure,
    "tools": tools.measure,
    "latency": latency.measure,
    "requests": requests.measure,
    "status": status.measure,
    "start": start.measure,
    "memory": memory.measure,
    "runtimes": runtimes.measure,
}


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default=",".join(MEASURES), metavar="NAMES", help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each measure; each has its own default")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too; - is standard output, instead")
    parser.add_argument("--against", metavar="COMMIT", help="compare CPU time with that commit's, in turn, 7 runs")
    given = parser.parse_args(arguments)
    given.only = given.only.split(",")
    for name in given.only:
        if name not in MEASURES:
            parser.error(f"there is no measure {name!r}; there are {', '.join(MEASURES)}")
    return given


def main(arguments: list[str]) -> int:
    given = _parse(arguments)
    if given.against:
        print(compare(given.against, given.only, given.rounds or COMPARED_RUNS))
        return 0
    figures: list[Figure] = []
    for name in given.only:
        began = time.perf_counter()
        figures += MEASURES[name](given.rounds)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    load = os.getloadavg()[0]
    report = [{**msgspec.structs.asdict(one), "reached": one.verdict} for one in figures]
    encoded = msgspec.json.format(msgspec.json.encode({"load": load, "cores": os.cpu_count(), "figures": report}))
    if given.json == "-":
        print(encoded.decode())
        return 0
    print(f"\n{os.cpu_count()} cores, load {load:.1f}. Other work is in it: trust ratios and CPU time.\n")
    print(f"{table(figures)}\n\n{notes(figures)}")
    if given.json:
        Path(given.json).write_bytes(encoded + b"\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
