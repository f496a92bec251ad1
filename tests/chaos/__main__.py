"""`python -m chaos`: plays episodes of rounds and tells what did not hold. Exit code 1 when something did not."""

import argparse
import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from chaos.episode import Outcome, Setting, play
from chaos.report import Summary
from runtimes.engine import CannotStart, DockerEngine

EPISODE_ROUNDS: Final = 20
"""Rounds on one home; then the next episode begins with a fresh one."""
INSIDE: Final = "KANDEV_CHAOS_MOUNTS"


def main() -> int:
    """Read the arguments, make sure of private mounts where they are allowed, play."""
    arguments = _arguments()
    docker = arguments.runtime == "docker"
    if INSIDE not in os.environ:
        _enter_namespaces(["unshare", "-mn"] if docker else ["unshare", "-m"], ["unshare", "-rm"])
    signal.signal(signal.SIGTERM, _end_in_order)
    try:
        with _engine() if docker else contextlib.nullcontext() as engine:
            return _play(arguments, engine)
    except CannotStart as error:
        _say(f"No Docker engine can be started here: {error}")
        return 2


def _end_in_order(*_: object) -> None:
    raise KeyboardInterrupt


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=EPISODE_ROUNDS)
    parser.add_argument("--seed", default="", help="any word; without one a fresh one is drawn and printed")
    parser.add_argument("--episode", type=int, help="play only this one")
    parser.add_argument("--episode-rounds", type=int, default=EPISODE_ROUNDS, help="rounds on one home")
    parser.add_argument(
        "--parallel", type=int, default=2, help="so many episodes at once; one with docker, whose engine is killed"
    )
    parser.add_argument("--keep", type=Path, help="where the files of a failing round are kept")
    parser.add_argument(
        "--runtime",
        choices=("standalone", "detached", "docker"),
        default="standalone",
        help="of all agents; docker starts an engine of its own (root, Debian's docker.io), in a network of its own",
    )
    parser.add_argument("--json", type=Path, help="where the summary is written, too")
    return parser.parse_args()


def _engine() -> DockerEngine:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=False)  # of a network that has nothing else
    return DockerEngine()


def _play(arguments: argparse.Namespace, engine: DockerEngine | None) -> int:
    mounted = os.environ[INSIDE] == "1"
    if not mounted:
        _say("No private mount is allowed here: no disk is filled in this run.")
    keep = arguments.keep or Path(tempfile.mkdtemp(prefix="chaos-kept-"))
    setting = Setting(runtime=arguments.runtime, engine=engine, mounted=mounted, keep=keep)
    run = Run(arguments.seed or secrets.token_hex(3), setting)
    _say(f"seed {run.summary.seed}")
    if arguments.episode is not None:
        lengths = {arguments.episode: arguments.rounds}
    else:
        lengths = episode_lengths(arguments.rounds, arguments.episode_rounds)
    asyncio.run(run.play(lengths, parallel=1 if engine else arguments.parallel))
    _say(str(run.summary))
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(run.summary)))
    with contextlib.suppress(OSError):
        keep.rmdir()  # nothing had to be kept
    return 1 if run.summary.violations else 0


def episode_lengths(rounds: int, each: int) -> dict[int, int]:
    """Return how many rounds each episode has."""
    return {number: min(each, rounds - begin) for number, begin in enumerate(range(0, rounds, each))}


def _enter_namespaces(*hows: list[str]) -> None:
    """Begin again in a mount namespace of our own: what is mounted there ends with us, however we end."""
    for how in hows:
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

    def __init__(self, seed: str, setting: Setting) -> None:
        self.summary = Summary(seed=seed)
        self._setting = setting

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
                outcome = await play(f"{summary.seed}/{number}", rounds, self._setting)
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
