"""A Docker engine of the tests' own: dockerd of Debian's package docker.io on its own paths, and nothing left behind.

    with DockerEngine() as engine:
        engine.docker("run", "--rm", engine.image, "true")

As a program it cleans up what killed test runs left: `python tests/runtimes/engine.py`.
"""

import contextlib
import http.client
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PREFIX = "kandev-engine-"
IMAGE = "kandev-test/python:1"
DOCKER, DOCKERD = "/usr/bin/docker", "/usr/sbin/dockerd"
LIMIT = 60.0
"""Seconds that the engine has to start, and any command."""
CHAINS = ("DOCKER-USER", "DOCKER-ISOLATION-STAGE-1", "DOCKER-ISOLATION-STAGE-2", "DOCKER")
PACE = 0.05


class CannotStart(Exception):
    """Raised where no engine can be started, with the reason."""


def why_not() -> str:
    """Why no engine can be started here; '' when nothing is known against it."""
    if os.geteuid() != 0:
        return "dockerd needs root"
    missing = [name for name in (DOCKERD, DOCKER) if not os.access(name, os.X_OK)]
    return f"{missing[0]} is missing: apt-get install docker.io" if missing else ""


class DockerEngine:
    """One engine. In one network there can be no other: the two would share, and break, the bridge docker0."""

    def __init__(self) -> None:
        if reason := why_not():
            raise CannotStart(reason)
        clean_up_killed()
        if "docker0" in {name for _, name in socket.if_nameindex()}:  # /sys may show another network than ours
            raise CannotStart("another engine has its bridge docker0 here")
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        (self.directory / "owner").write_text(str(os.getpid()))
        self.socket = self.directory / "docker.sock"
        self.image = IMAGE
        self._forwarded = _forwarding()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
            self.make_image(IMAGE)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """What DOCKER_HOST is set to."""
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """The process id of dockerd."""
        assert self._process is not None, "the engine does not run"
        return self._process.pid

    def start(self) -> None:
        """Starts dockerd, and returns once it answers. Raises CannotStart with the end of its log."""
        (self.directory / "forwarding").write_text(self._forwarded)
        (self.directory / "network").write_text(_network())
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(
                        DOCKERD,
                        "--data-root",
                        str(self.directory / "data"),
                        "--exec-root",
                        str(self.directory / "exec"),
                    ),
                    *("-p", str(self.directory / "pid"), "-H", self.url, "--live-restore"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + LIMIT
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise CannotStart((self.directory / "log").read_text(errors="replace")[-600:])
            time.sleep(PACE)

    def stop(self) -> None:
        """Ends dockerd in order; with --live-restore its containers go on."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills dockerd and its containerd; the containers go on."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None, "the engine does not run"
        containerd = _read_pid(self.directory / "exec/containerd/containerd.pid")
        self._process.send_signal(number)
        self._process.wait(LIMIT)
        # A new dockerd takes a dying containerd for a live one and waits for it.
        deadline = time.monotonic() + LIMIT
        while number is signal.SIGKILL and containerd and Path(f"/proc/{containerd}").exists():
            assert time.monotonic() < deadline, "containerd outlived dockerd"
            time.sleep(PACE)
        (self.directory / "pid").unlink(missing_ok=True)
        self._process = None

    def answers(self) -> bool:
        """Whether the engine answers a ping."""
        connection = http.client.HTTPConnection("docker", timeout=2)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(2)
            connection.sock.connect(str(self.socket))
            connection.request("GET", "/_ping")
            return connection.getresponse().status == http.client.OK
        return False

    def docker(self, *arguments: str) -> str:
        """What a command of the docker program printed. Raises AssertionError with its errors."""
        done = subprocess.run(
            [DOCKER, "-H", self.url, *arguments], capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
        return done.stdout.strip()

    def close(self) -> None:
        """Removes containers, processes, mounts, firewall rules and files."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            if self.answers() and (left := self.docker("ps", "-aq").split()):
                self.docker("rm", "-f", *left)
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LIMIT)
        _clear(self.directory)
        _remove_bridge(self._forwarded)

    def make_image(self, name: str, trees: Sequence[Path] = (), path: str = "/usr/bin:/bin") -> None:
        """Makes an image in which programs of the directories `trees`, once mounted, run too; `path` is its PATH."""
        # Beside the others when it is run as a program, in the package when tests import it.
        from runtimes.image import write_image

        archive = self.directory / "image.tar"
        write_image(archive, trees)
        self.docker("import", "--change", f"ENV PATH={path}", str(archive), name)
        archive.unlink()

    @property
    def gateway(self) -> str:
        """This machine's address for its containers."""
        subnet = self.docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Subnet}}")
        return str(next(ipaddress.ip_network(subnet).hosts()))


def clean_up_killed() -> None:
    """Removes what engines left whose test run was killed. One in another network that others use is left to those."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        forwarded = network = ""
        owner = _read_pid(directory / "owner")
        if owner and _runs_tests(owner):
            continue
        with contextlib.suppress(FileNotFoundError):
            forwarded = (directory / "forwarding").read_text()
            network = (directory / "network").read_text()
        ours = network in {"", _network()}
        if not ours and _used_by_others(network, directory):
            continue
        _clear(directory)
        if forwarded and ours:
            _remove_bridge(forwarded)


def _runs_tests(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _clear(directory: Path) -> None:
    """Ends every process that names the directory, or hangs below one, and removes mounts and files."""
    for _ in range(3):
        for pid in _processes_of(directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PACE)
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed([place for place in mounts if place.startswith(f"{directory}/")]):
        subprocess.run(["umount", "-l", place], check=False, capture_output=True)
    shutil.rmtree(directory, ignore_errors=True)


def _processes_of(directory: Path) -> Iterator[int]:
    naming = [pid for pid in _pids() if str(directory).encode() in _command(pid)]
    for pid in naming:
        yield from _below(pid)
        yield pid


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _below(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield from _below(int(child))
                yield int(child)


def _read_pid(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return 0


# The network


def _network(process: int | str = "self") -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{process}/ns/net")
    return ""


def _used_by_others(network: str, directory: Path) -> bool:
    own = {*_processes_of(directory)}
    return any(_network(pid) == network for pid in _pids() if pid not in own)


def _forwarding() -> str:
    return Path("/proc/sys/net/ipv4/ip_forward").read_text().strip()


def _remove_bridge(forwarded: str) -> None:
    """Removes docker0 and every rule and chain of the engine; what others made stays."""
    for table in ("filter", "nat"):
        rules = _run("iptables", "-t", table, "-S").splitlines()
        for rule in rules:
            if rule.startswith("-A") and ("DOCKER" in rule or "docker0" in rule or "172.17.0.0/16" in rule):
                _run("iptables", "-t", table, "-D", *rule.split()[1:])
        for chain in CHAINS:
            _run("iptables", "-t", table, "-F", chain)
            _run("iptables", "-t", table, "-X", chain)
    _run("iptables", "-P", "FORWARD", "ACCEPT")
    _run("ip", "link", "del", "docker0")
    Path("/proc/sys/net/ipv4/ip_forward").write_text(forwarded)


def _run(*command: str) -> str:
    """The output of a command that may fail: what is not there need not be removed."""
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT).stdout
    return ""


if __name__ == "__main__":
    clean_up_killed()
    sys.stdout.write("Nothing of the tests' engines is left.\n")
