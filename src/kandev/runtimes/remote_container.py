"""What a session's container on another host is made of, and what is brought there and back.

/kandev/                in the container: a volume of the session's own, which outlives the container
    agentctl.pyz
    token, arguments    of agentctl, for the next start of the container
    home/               the agent's home
    INSTANCE/           journal and socket of one instance
    NAME/               the session's directory
"""

import asyncio
import contextlib
import io
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kandev.agentctl.segments import SUFFIX, WAITING, journal_in
from kandev.agents.home_files import locate
from kandev.config import RemoteDockerConfig
from kandev.runtimes.base import InstanceRequest
from kandev.runtimes.container_files import port_inside
from kandev.runtimes.container_spec import (
    environment_of,
    extra_mount,
    home_labels,
    image_of,
    limits_of,
    publishes_port,
)
from kandev.runtimes.session_files import SessionFiles

__all__ = ["ARCHIVE", "RELAY", "ROOT", "RemoteFiles", "journal_from", "parcel", "remote_spec", "socket_inside"]

ROOT: Final = "/kandev"
ARCHIVE: Final = f"{ROOT}/agentctl.pyz"
_HOME: Final = f"{ROOT}/home"
_PIECE_BYTES: Final = 64 * 1024
_STDERR: Final = "stderr.log"
RELAY: Final = """
import os, select, socket, sys, time
there = socket.socket(socket.AF_UNIX)
ends = time.monotonic() + 8
while there.connect_ex(sys.argv[1]):
    if time.monotonic() > ends:
        sys.exit()
    time.sleep(0.02)
while True:
    for ready in select.select([0, there], [], [])[0]:
        data = os.read(0, 65536) if ready == 0 else there.recv(65536)
        if not data:
            sys.exit()
        if ready == 0:
            there.sendall(data)
        while ready != 0 and data:
            data = data[os.write(1, data):]
"""
"""A program that leads its stdin and stdout to the socket that it is given, as soon as somebody listens there."""


def socket_inside(instance_id: str) -> str:
    """Return the path of an instance's socket in its container."""
    return f"{ROOT}/{instance_id}/sock"


class RemoteFiles(SessionFiles):
    """What is kept here of one session's container on another host."""

    def __init__(self, root: Path, session_id: str) -> None:
        super().__init__(root, session_id)
        self._started = self.directory / "started"
        self._logins = self.directory / "logins"
        self._archive = self.directory / "archive"

    @property
    def instance_id(self) -> str:
        """The instance that the container was last started for; '' before the first start."""
        with contextlib.suppress(FileNotFoundError):
            return self._started.read_text().strip()
        return ""

    def note_started(self, instance_id: str) -> None:
        """Note that the container is started for an instance."""
        self._started.write_text(instance_id)

    def logins(self, places: Iterable[str], environ: Mapping[str, str]) -> dict[str, Path]:
        """Return the files by which the agent is logged in that changed here since they were brought, by their place.

        One that the agent renewed there stays, unless the user's own was renewed as well.
        """
        brought = self._brought()
        found: dict[str, Path] = {}
        for place in places:
            if place.startswith("$") and not place.startswith("${"):
                continue  # a variable, which comes with the agent's environment
            source, target = locate(place, environ), locate(place, {"HOME": _HOME})
            if not source.is_file() or not target.is_relative_to(_HOME):
                continue
            if source.stat().st_mtime_ns > brought.get(str(target), 0):
                found[str(target)] = source
        return found

    def note_logins(self, logins: Mapping[str, Path]) -> None:
        """Note that these are there now."""
        times = {target: source.stat().st_mtime_ns for target, source in logins.items()}
        self._logins.write_bytes(msgspec.json.encode({**self._brought(), **times}))

    def has_archive(self, archive: Path) -> bool:
        """Tell whether this agentctl is there; its name tells its content."""
        with contextlib.suppress(FileNotFoundError):
            return self._archive.read_text() == archive.name
        return False

    def note_archive(self, archive: Path) -> None:
        """Note that this agentctl is there now."""
        self._archive.write_text(archive.name)

    def forget_archive(self) -> None:
        """Note that agentctl is not there, or not as it was."""
        self._archive.unlink(missing_ok=True)

    def forget_brought(self) -> None:
        """Note that nothing is there: the volume is new."""
        self._logins.unlink(missing_ok=True)
        self.forget_archive()

    def _brought(self) -> dict[str, int]:
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            return msgspec.json.decode(self._logins.read_bytes(), type=dict[str, int])
        return {}


def remote_spec(
    request: InstanceRequest,
    config: RemoteDockerConfig,
    *,
    home_id: str,
    volume: str,
    user: str,
    environ: Mapping[str, str],
    publishes: bool,
) -> dict[str, Any]:
    """Return what the engine is told. `user` is "UID:GID", `publishes` whether agentctl's port is on its loopback."""
    port = port_inside()
    mount = {"Type": "volume", "Source": volume, "Target": ROOT}
    return {
        "Image": image_of(config, request.agent),
        "Entrypoint": ["python3", "-I", "-S", ARCHIVE],
        "Cmd": [f"@{ROOT}/arguments"],
        "Env": [f"{name}={value}" for name, value in environment_of(config, environ, home=_HOME).items()],
        "User": user,
        "WorkingDir": "/",
        "ExposedPorts": {port: {}} if publishes else {},
        "Labels": {
            **home_labels(home_id),
            "kandev.session_id": request.session_id,
            "kandev.task_id": request.task_id,
            "kandev.instance_id": request.instance_id,
        },
        "HostConfig": {
            "Init": True,
            "Mounts": [mount, *map(extra_mount, config.mounts)],
            "PortBindings": {port: [{"HostIp": "127.0.0.1", "HostPort": ""}]} if publishes else {},
            **limits_of(config),
        },
    }


def parcel(
    archive: Path | None,
    *,
    token: str,
    instance_id: str,
    options: Iterable[str],
    config: RemoteDockerConfig,
    user: str,
    logins: Mapping[str, Path],
) -> bytes:
    """Return a tar for the container's root: everything that the start of an instance needs, with its owner.

    Without an `archive`, agentctl is there already.
    """
    uid, _, gid = user.partition(":")
    owner = (int(uid), int(gid))
    words = [
        *("--instance-id", instance_id, "--dir", f"{ROOT}/{instance_id}", "--token-file", f"{ROOT}/token", "--log"),
        *("--listen", f"unix:{socket_inside(instance_id)}"),
        *(("--listen", f"tcp:0.0.0.0:{port_inside().partition('/')[0]}") if publishes_port(config) else ()),
        *("--idle", str(config.idle_minutes * 60), *options),
    ]
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for directory in (ROOT, _HOME, f"{ROOT}/{instance_id}"):
            _add(tar, directory, owner, None, mode=0o700)
        if archive is not None:
            _add(tar, ARCHIVE, owner, archive.read_bytes(), mode=0o644)
        _add(tar, f"{ROOT}/token", owner, token.encode(), mode=0o600)
        _add(tar, f"{ROOT}/arguments", owner, "\n".join(words).encode(), mode=0o600)
        for parent in sorted({parent for target in logins for parent in Path(target).parents}):
            if parent != Path(_HOME) and parent.is_relative_to(_HOME):
                _add(tar, str(parent), owner, None, mode=0o700)
        for target, source in logins.items():
            _add(tar, target, owner, source.read_bytes(), mode=0o600)
    return made.getvalue()


def _add(tar: tarfile.TarFile, path: str, owner: tuple[int, int], content: bytes | None, *, mode: int) -> None:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.uid, entry.gid = owner
    entry.mode = mode
    entry.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
    entry.size = len(content or b"")
    tar.addfile(entry, io.BytesIO(content or b""))


async def journal_from(tar: Path, directory: Path) -> None:
    """Take the journal and stderr of an instance out of a tar of its directory there, into the one here.

    Whatever else is in the tar, and whatever it is called, is left out.
    """
    await asyncio.to_thread(_take_journal, tar, directory)


def _take_journal(path: Path, directory: Path) -> None:
    journal = Path(journal_in(str(directory)))
    shutil.rmtree(journal, ignore_errors=True)
    journal.mkdir(mode=0o700, parents=True)
    with contextlib.suppress(tarfile.TarError), tarfile.open(path) as tar:
        for entry in tar:
            target = _wanted(entry, directory, journal)
            content = tar.extractfile(entry) if target is not None and entry.isreg() else None
            if target is not None and content is not None:
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file, _PIECE_BYTES)


def _wanted(entry: tarfile.TarInfo, directory: Path, journal: Path) -> Path | None:
    _, _, inside = entry.name.partition("/")
    if inside == _STDERR:
        return directory / _STDERR
    above, _, name = inside.partition("/")
    segment = name == WAITING or (name.endswith(SUFFIX) and name.removesuffix(SUFFIX).isdecimal())
    return journal / name if above == journal.name and segment else None
