"""Another host for the tests: network, mounts, processes and name of its own, with an sshd and a dockerd of its own.

    with FarHost() as far:
        far.docker("ps")
        far.link_down()

As a program it cleans up what killed test runs left: `python tests/runtimes/far_host.py`.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

PREFIX = "kandev-far-"
NAME, HERE, THERE = "kandevfar", "10.77.0.1", "10.77.0.2"
OUTER, INNER = "kandevfar0", "kandevfar1"
SSHD = "/usr/sbin/sshd"
PROGRAMS = (SSHD, "/usr/bin/docker", "/usr/sbin/dockerd", "/usr/bin/openssl", "/usr/bin/nsenter", "/usr/bin/unshare")
IMAGE = "kandev-test/python:1"
LIMIT = 60.0
PACE = 0.05

# Run in the namespaces as their first process: an overlay over this machine's files becomes the root.
INIT = """
set -e
hostname {name}
mount -t overlay overlay -o lowerdir=/,upperdir={store}/upper,workdir={store}/work {store}/root
cd {store}/root
mkdir -p dev sys proc run far old
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount --bind {store}/far far
pivot_root . old
cd /
umount -l /old
mkdir -p /run/sshd
ip link set lo up
rm -f /far/dockerd.pid /far/docker.sock
{sshd} -D -E /far/sshd.log -f /far/sshd_config &
dockerd --data-root /far/docker --exec-root /run/docker -p /far/dockerd.pid \
    -H unix:///var/run/docker.sock -H unix:///far/docker.sock -H tcp://{there}:2376 \
    --tlsverify --tlscacert /far/tls/ca.pem --tlscert /far/tls/server.pem --tlskey /far/tls/key.pem >>/far/log 2>&1 &
wait
"""
SSHD_CONFIG = f"""
ListenAddress {THERE}
HostKey /far/host_key
AuthorizedKeysFile /far/user_key.pub
StrictModes no
UsePAM no
PidFile none
PasswordAuthentication no
"""


class CannotStart(Exception):
    """Raised where no second host can be made, with the reason."""


def why_not() -> str:
    """Why no second host can be made here; '' when nothing is known against it."""
    if os.geteuid() != 0:
        return "namespaces and dockerd need root"
    missing = [name for name in PROGRAMS if not os.access(name, os.X_OK)]
    return f"{missing[0]} is missing: apt-get install docker.io openssh-server openssl" if missing else ""


class FarHost:
    """One host beside this one; there is one at a time."""

    def __init__(self) -> None:
        if reason := why_not():
            raise CannotStart(reason)
        clean_up_killed()
        if Path("/run/netns", NAME).exists():
            raise CannotStart("another test run has its second host here")
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        (self.directory / "owner").write_text(str(os.getpid()))
        self.far = self.directory / "far"
        self.identity, self.known_hosts = self.far / "user_key", self.directory / "known_hosts"
        self.tls = self.far / "tls"
        self.image = IMAGE
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            for name in ("upper", "work", "root", "far/tls"):
                (self.directory / name).mkdir(parents=True)
            self._make_keys()
            self._make_network()
            self.start()
            self._make_image()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ssh_url(self) -> str:
        """The engine by SSH."""
        return f"ssh://root@{THERE}"

    @property
    def tls_url(self) -> str:
        """The engine by TLS; `tls` has what a client needs."""
        return f"tcp://{THERE}:2376"

    def start(self) -> None:
        """Boots it, and returns once its sshd and its engine answer."""
        script = INIT.format(name=NAME, store=self.directory, sshd=SSHD, there=THERE)
        with (self.directory / "boot.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("nsenter", f"--net=/run/netns/{NAME}", "unshare", "--mount", "--uts", "--pid", "--fork"),
                    *("--kill-child", "sh", "-c", script),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + LIMIT
        while not (self._listens(22) and self._listens(2376) and self._has_engine()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise CannotStart(self._log())
            time.sleep(PACE)

    def power_off(self) -> None:
        """Kills everything that runs there, at once."""
        process, self._process = self._process, None
        assert process is not None, "the host does not run"
        process.kill()
        process.wait(LIMIT)
        deadline = time.monotonic() + LIMIT
        while _processes_naming(str(self.directory)) and time.monotonic() < deadline:
            time.sleep(PACE)

    def link_down(self) -> None:
        """Pulls the cable, at its far end: here the way stays, and nothing goes another one."""
        _run("nsenter", f"--net=/run/netns/{NAME}", "ip", "link", "set", INNER, "down")

    def link_up(self) -> None:
        """Puts the cable back."""
        _run("nsenter", f"--net=/run/netns/{NAME}", "ip", "link", "set", INNER, "up")

    def docker(self, *arguments: str) -> str:
        """What a command of the docker program printed. Raises AssertionError with its errors."""
        command = ["/usr/bin/docker", "-H", f"unix://{self.far}/docker.sock", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
        return done.stdout.strip()

    def close(self) -> None:
        """Removes processes, network and files."""
        if self._process is not None:
            self.power_off()
        _remove_network()
        _remove_control_groups(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _make_network(self) -> None:
        _run("ip", "netns", "add", NAME)
        _run("ip", "link", "add", OUTER, "type", "veth", "peer", "name", INNER)
        _run("ip", "link", "set", INNER, "netns", NAME)
        _run("ip", "addr", "add", f"{HERE}/30", "dev", OUTER)
        _run("ip", "link", "set", OUTER, "up")
        for command in (["addr", "add", f"{THERE}/30", "dev", INNER], ["link", "set", INNER, "up"]):
            _run("nsenter", f"--net=/run/netns/{NAME}", "ip", *command)

    def _make_keys(self) -> None:
        for name in ("host_key", "user_key"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.far / name))
        (self.far / "sshd_config").write_text(SSHD_CONFIG)
        kind, key, *_ = (self.far / "host_key.pub").read_text().split()
        self.known_hosts.write_text(f"{THERE} {kind} {key}\n")
        ca, made = (str(self.tls / "ca.pem"), str(self.tls / "ca.key")), ("-days", "2", "-newkey", "rsa:2048", "-nodes")
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        _run("openssl", "req", "-x509", *made, "-subj", "/CN=ca", *usage, "-keyout", ca[1], "-out", ca[0])
        for name in ("server", "cert"):
            key_file, request = str(self.tls / "key.pem"), str(self.tls / "request")
            extensions = self.tls / "extensions"
            extensions.write_text(f"subjectAltName=IP:{THERE}\nextendedKeyUsage=serverAuth,clientAuth\n")
            old = ("-key", key_file) if Path(key_file).exists() else ("-newkey", "rsa:2048", "-keyout", key_file)
            _run("openssl", "req", "-new", "-nodes", *old, "-subj", f"/CN={name}", "-out", request)
            signed = ("-CA", ca[0], "-CAkey", ca[1], "-CAcreateserial", "-extfile", str(extensions))
            _run(
                "openssl", "x509", "-req", "-days", "2", *signed, "-in", request, "-out", str(self.tls / f"{name}.pem")
            )

    def _make_image(self) -> None:
        from runtimes.image import write_image  # beside this file when it is a program

        archive = self.directory / "image.tar"
        write_image(archive)
        self.docker("import", "--change", "ENV PATH=/usr/bin:/bin", str(archive), IMAGE)
        archive.unlink()

    def _listens(self, port: int) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((THERE, port), timeout=1):
            return True
        return False

    def _has_engine(self) -> bool:
        with contextlib.suppress(AssertionError):
            return bool(self.docker("version", "-f", "{{.Server.Version}}"))
        return False

    def _log(self) -> str:
        texts = [
            path.read_text(errors="replace")[-600:]
            for path in (self.directory / "boot.log", self.far / "log")
            if path.exists()
        ]
        return "\n".join(texts)


def clean_up_killed() -> None:
    """Removes what hosts left whose test run was killed."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            owner = int((directory / "owner").read_text())
            if b"python" in Path(f"/proc/{owner}/cmdline").read_bytes():
                continue
        for pid in _processes_naming(str(directory)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + LIMIT
        while _processes_naming(str(directory)) and time.monotonic() < deadline:
            time.sleep(PACE)
        _remove_network()
        _remove_control_groups(directory)
        shutil.rmtree(directory, ignore_errors=True)


def _remove_network() -> None:
    for command in (("link", "del", OUTER), ("netns", "del", NAME)):
        subprocess.run(["ip", *command], capture_output=True, check=False, timeout=LIMIT)


def _remove_control_groups(directory: Path) -> None:
    """Removes the groups of the host's own containers, which stay, empty, when it is switched off."""
    for container in (directory / "far/docker/containers").glob("*"):
        for group in Path("/sys/fs/cgroup").glob(f"*/docker/{container.name}"):
            with contextlib.suppress(OSError):
                group.rmdir()


def _processes_naming(text: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if text.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    if done.returncode:
        raise CannotStart(f"{' '.join(command)}: {done.stderr.strip()}")


if __name__ == "__main__":
    clean_up_killed()
    sys.stdout.write("Nothing of the tests' second hosts is left.\n")
