"""`python -m chaos`: plays episodes of rounds and tells what did not hold. Exit code 1 when something did not."""

import argparse
import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from chaos.episode import Outcome, play
from chaos.report import Summary

EPISODE_ROUNDS: Final = 20
"""Rounds on one home; then the next episode begins with a fresh one."""
INSIDE: Final = "KANDEV_CHAOS_MOUNTS"


def main() -> int:
    """Read the arguments, make sure of private mounts where they are allowed, play."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=EPISODE_ROUNDS)
    parser.add_argument("--seed", default="", help="any word; without one a fresh one is drawn and printed")
    parser.add_argument("--episode", type=int, help="play only this one")
    parser.add_argument("--episode-rounds", type=int, default=EPISODE_ROUNDS, help="rounds on one home")
    parser.add_argument("--parallel", type=int, default=2, help="so many episodes at once")
    parser.add_argument("--keep", type=Path, help="where the files of a failing round are kept")
    parser.add_argument("--runtime", choices=("standalone", "detached"), default="standalone", help="of all agents")
    parser.add_argument("--json", type=Path, help="where the summary is written, too")
    arguments = parser.parse_args()
    if INSIDE not in os.environ:
        _enter_mounts()
    mounted = os.environ[INSIDE] == "1"
    if not mounted:
        _say("No private mount is allowed here: no disk is filled in this run.")
    keep = arguments.keep or Path(tempfile.mkdtemp(prefix="chaos-kept-"))
    run = Run(arguments.seed or secrets.token_hex(3), mounted=mounted, keep=keep, runtime=arguments.runtime)
    _say(f"seed {run.summary.seed}")
    if arguments.episode is not None:
        lengths = {arguments.episode: arguments.rounds}
    else:
        lengths = episode_lengths(arguments.rounds, arguments.episode_rounds)
    asyncio.run(run.play(lengths, parallel=arguments.parallel))
    _say(str(run.summary))
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(run.summary)))
    with contextlib.suppress(OSError):
        keep.rmdir()  # nothing had to be kept
    return 1 if run.summary.violations else 0


def episode_lengths(rounds: int, each: int) -> dict[int, int]:
    """Return how many rounds each episode has."""
    return {number: min(each, rounds - begin) for number, begin in enumerate(range(0, rounds, each))}


def _enter_mounts() -> None:
    """Begin again in a mount namespace of our own: what is mounted there ends with us, however we end."""
    for how in (["unshare", "-m"], ["unshare", "-rm"]):
        possible = (
            shutil.which("unshare")
            and not subprocess.run(
                [*how, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False, capture_output=True
            ).returncode
        )
        if possible:
            os.execvpe(how[0], [*how, sys.executable, "-m", "chaos", *sys.argv[1:]], {**os.environ, INSIDE: "1"})
    os.environ[INSIDE] = "0"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Run:
    """All episodes of a seed, and what they gave."""

    def __init__(self, seed: str, *, mounted: bool, keep: Path, runtime: str) -> None:
        self.summary = Summary(seed=seed)
        self._mounted = mounted
        self._keep = keep
        self._runtime = runtime

    async def play(self, lengths: Mapping[int, int], *, parallel: int) -> None:
        """Play the episodes and tell of each."""
        began = time.monotonic()
        places = asyncio.Semaphore(parallel)
        async with asyncio.TaskGroup() as group:
            for number, rounds in lengths.items():
                group.create_task(self._episode(number, rounds, places))
        self.summary.seconds = time.monotonic() - began

    async def _episode(self, number: int, rounds: int, places: asyncio.Semaphore) -> None:
        summary = self.summary
        async with places:
            try:
                outcome = await play(
                    f"{summary.seed}/{number}",
                    rounds,
                    mounted=self._mounted,
                    keep=self._keep,
                    runtime=self._runtime,
                )
            except Exception:  # noqa: BLE001  # the other episodes go on, and the run fails
                outcome = Outcome(
                    reports=[f"VIOLATION: seed {summary.seed}, episode {number}\n{traceback.format_exc()}"]
                )
        for report in outcome.reports:
            _say(f"\n{report}\n")
        summary.violations += len(outcome.reports)
        summary.rounds += outcome.rounds
        summary.faults += outcome.faults
        summary.kills += outcome.kills
        summary.counted += outcome.counts
        _say(f"episode {number}: {outcome.rounds} rounds in {outcome.seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
