"""Processes of containers that their engine lost are ended; nothing else is."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kandev.runtimes.lost_containers import end_lost

SLEEPS = (sys.executable, "-c", "print(flush=True); import time; time.sleep(600)")
AS_FIRST = ("unshare", "-rpf", "--kill-child", *SLEEPS)


def can_make_namespaces() -> bool:
    try:
        return subprocess.run(["unshare", "-rpf", "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def arguments(tmp_path: Path) -> Path:
    path = tmp_path / "arguments"
    path.touch()
    return path


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that a test starts; they end with it."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(started: list[subprocess.Popen[bytes]], *command: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None
    process.stdout.readline()  # it runs
    return process


@pytest.mark.skipif(not can_make_namespaces(), reason="no process namespace is allowed here")
async def test_proc_2_the_first_process_of_a_lost_container_is_killed(
    arguments: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """By the file on its command line; another session's lives on."""
    lost = start(started, *AS_FIRST, f"@{arguments}")
    other = start(started, *AS_FIRST, f"@{arguments}-of-another")
    assert await end_lost(arguments)
    lost.wait(10)
    assert other.poll() is None
    assert not await end_lost(arguments)


async def test_proc_2_a_process_that_is_no_container_is_left_alone(
    arguments: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """A name alone is no proof: whoever looks at the file lives on."""
    reader = start(started, *SLEEPS, f"@{arguments}")
    assert not await end_lost(arguments)
    assert reader.poll() is None
