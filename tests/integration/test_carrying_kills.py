"""Kills on the way of sources and work, on either side; the next start settles what was cut short (CRASH-3)."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import carrying_trip
from carrying_trip import BINARY, SESSION
from kandev.agentctl.failpoints import FAILPOINTS
from kandev.runtimes import AgentctlClient
from leftovers import ended
from repositories import GIT_ENVIRONMENT, commit, git

HERE = [name for name in FAILPOINTS if name.startswith(("sources.", "work."))]
THERE = [f"agentctl.{when}_{what}" for what in ("sources", "checkout", "work") for when in ("before", "after")]
AGAIN = ["work.before_note:2", "work.after_note:2"]
"""The first note is of what was sent, the second of what came home."""


class Trip:
    """A repository, an agentctl without a tie to anybody, and trips that may be killed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._short = tempfile.TemporaryDirectory(prefix="kandev-")
        self._socket = Path(self._short.name) / "socket"
        self.repository = directory / "repository"
        self.far = directory / "far" / "trip"
        subprocess.run(["git", "init", "-q", "-b", "main", str(self.repository)], check=True, env=GIT_ENVIRONMENT)
        (self.repository / "gone").write_text("to be deleted")
        commit(self.repository, "file", "one")
        self._agentctl: subprocess.Popen[bytes] | None = None

    async def agentctl(self, armed: str = "") -> int:
        """Starts an agentctl on the same directory, and returns its pid once it answers."""
        words = ("-m", "kandev.agentctl", "--instance-id", "trip", "--dir", str(self._directory / "agentctl"))
        listen = ("--listen", f"unix:{self._socket}")
        self._agentctl = subprocess.Popen(  # noqa: ASYNC220 - it is waited for by its answer
            [sys.executable, *words, *listen], env=self._environment(armed), stdin=subprocess.DEVNULL
        )
        async with asyncio.timeout(60):
            while not self._socket.exists():
                await asyncio.sleep(0.02)
        client = AgentctlClient(f"unix:{self._socket}", instance_id="trip")
        try:
            await client.wait_ready(60)
        finally:
            await client.aclose()
        return self._agentctl.pid

    async def agentctl_died(self) -> None:
        assert self._agentctl is not None
        await ended(self._agentctl.pid)
        assert self._agentctl.wait() == -9
        self._socket.unlink()

    async def run(self, armed: str = "") -> int:
        """One trip; its exit code."""
        places = (self._socket, self._directory / "worktrees", self.repository, self.far)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "carrying_trip", *map(str, places)),
            env=self._environment(armed),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.said, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode

    def _environment(self, armed: str) -> dict[str, str]:
        path = {"PYTHONPATH": str(Path(carrying_trip.__file__).parent)}
        return {**GIT_ENVIRONMENT, **path, **({"KANDEV_FAILPOINT": armed} if armed else {})}

    def close(self) -> None:
        if self._agentctl is not None and self._agentctl.poll() is None:
            self._agentctl.terminate()
            self._agentctl.wait()
        self._short.cleanup()

    def check(self) -> None:
        """Branch and directory have what the agent did, once; nothing that was on its way is left."""
        (here,) = (self._directory / "worktrees").glob("trip-*")
        subjects = git(here, "log", "--format=%s").splitlines()
        assert subjects == ["Work that the agent has not committed", "agent", "file"]
        assert (here / "binary").read_bytes() == BINARY
        assert (here / "left").read_text() == "not committed"
        assert not (here / "gone").exists()
        assert git(here, "status", "--porcelain") == ""
        assert git(self.far, "status", "--porcelain") == "?? left"
        refs = [git(here, "rev-parse", f"refs/kandev/{SESSION}/{name}") for name in ("home", "work")]
        assert refs == [git(here, "rev-parse", "HEAD")] * 2
        assert list((self._directory / "worktrees/.carried").iterdir()) == []
        assert not self.far.with_name("trip.making").exists()


@pytest.fixture
def trip(tmp_path: Path) -> Iterator[Trip]:
    made = Trip(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("armed", [*HERE, *AGAIN])
async def test_crash_3_a_backend_killed_on_the_way_goes_on(trip: Trip, armed: str) -> None:
    """Between any two steps of either direction: the next trip brings everything, and nothing twice."""
    await trip.agentctl()
    assert await trip.run(armed) == -9
    assert await trip.run() == 0
    assert trip.said == b"[]"
    trip.check()


@pytest.mark.parametrize("armed", THERE)
async def test_crash_15_an_agentctl_killed_on_the_way_is_asked_again(trip: Trip, armed: str) -> None:
    """What it had begun is made anew, or is whole."""
    await trip.agentctl(armed)
    assert await trip.run() == 1
    await trip.agentctl_died()
    await trip.agentctl()
    assert await trip.run() == 0
    trip.check()
