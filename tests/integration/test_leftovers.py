"""How tests find and end what they started."""

import asyncio
import subprocess
import sys
from pathlib import Path

from leftovers import end_process, ended, processes_naming

SLEEPER = "import os, sys; sys.stdout.write('up'); sys.stdout.flush(); os.read(0, 1)"


def start_sleeper(home: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", SLEEPER],
        env={"KANDEV_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.read(2) == b"up"
    return process


async def test_a_process_is_found_by_its_environment_and_ended(tmp_path: Path) -> None:
    """What a backend's agents inherit is enough to find them, also when nobody knows their pid."""
    process = start_sleeper(tmp_path)
    try:
        assert list(processes_naming(str(tmp_path))) == [process.pid]
        end_process(process.pid, naming="something else")
        assert process.poll() is None
        end_process(process.pid, naming=str(tmp_path))
        async with asyncio.timeout(30):
            await ended(process.pid)
        assert not processes_naming(str(tmp_path))
    finally:
        process.kill()
        process.communicate()
