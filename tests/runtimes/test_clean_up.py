"""The tests' own engine is cleaned up also after its owner was killed. It runs first, without another engine."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtimes import far_host
from runtimes.engine import PREFIX, clean_up_killed, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no Docker engine can be started here: {why_not()}")
RULES = ("iptables", "-S")


def state_of_the_machine() -> tuple[str, str, str]:
    """Firewall, forwarding and processes, as far as an engine changes them."""
    rules = subprocess.run(RULES, capture_output=True, text=True, check=True).stdout
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    return rules, " ".join(line.split()[0] for line in links.splitlines()), forwarding()


def forwarding() -> str:
    return Path("/proc/sys/net/ipv4/ip_forward").read_text()


@pytest.mark.parametrize("within", [[], ["unshare", "-mn"]], ids=["here", "in a network of its own"])
def test_an_engine_whose_owner_was_killed_is_cleaned_up(tmp_path: Path, within: list[str]) -> None:
    """Processes, containers, mounts, firewall rules and files: all is as it was before."""
    before = state_of_the_machine()
    program = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "from runtimes.engine import DockerEngine\n"
        "engine = DockerEngine()\n"
        "engine.__enter__()\n"
        "engine.docker('run', '-d', engine.image, 'sleep', '600')\n"
        "print(engine.directory, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([*within, sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        directory = Path(owner.stdout.readline().strip())
        owner.kill()
    assert directory.name.startswith(PREFIX), "no other engine may run here, so this comes before its first use"
    clean_up_killed()
    assert not directory.exists()
    assert state_of_the_machine() == before
    deadline = time.monotonic() + 10  # killed processes are reaped a moment later
    while left := [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(directory).encode() in read(p)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.skipif(bool(far_host.why_not()), reason=f"no second host can be made here: {far_host.why_not()}")
def test_a_second_host_whose_owner_was_killed_is_cleaned_up() -> None:
    """Its processes, network, control groups and files are gone; nothing else was changed by it."""
    before = state_of_the_machine()
    program = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "from runtimes.far_host import FarHost\n"
        "host = FarHost()\n"
        "host.__enter__()\n"
        "print(host.directory, host.docker('run', '-d', host.image, 'sleep', '600'), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        directory, container = owner.stdout.readline().split()
        owner.kill()
    assert list(Path("/sys/fs/cgroup").glob(f"*/docker/{container}"))
    far_host.clean_up_killed()
    assert not Path(directory).exists()
    assert state_of_the_machine() == before
    assert not Path("/run/netns", far_host.NAME).exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/docker/{container}"))
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if directory.encode() in read(p)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
