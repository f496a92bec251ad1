"""What a session's container is made of: image, mounts, limits, labels. Pure but for looking which files are there."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kandev.config import DockerConfig
from kandev.errors import Invalid
from kandev.runtimes.base import InstanceRequest
from kandev.runtimes.container_files import ContainerFiles, port_inside
from kandev.runtimes.container_user import ContainerUser
from kandev.worktrees.workspace import find_repository

__all__ = [
    "ARCHIVE",
    "container_name",
    "container_spec",
    "environment_of",
    "extra_mount",
    "home_labels",
    "image_of",
    "limits_of",
    "publishes_port",
]

ARCHIVE: Final = "/kandev/agentctl.pyz"
"""Where agentctl's file is mounted: one place, for a container that is older than its backend, too."""
_READ_ONLY: Final = ("hooks", "config")
"""What git, or anything that calls it outside of the container, would run or obey."""
_REFERENCE: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


def home_labels(home_id: str) -> dict[str, str]:
    """Return the labels of every container of a home (CONT-3)."""
    return {"kandev.managed": "true", "kandev.home": home_id}


def container_name(home_id: str, session_id: str) -> str:
    """Return the name of a session's container: one at most, because names are unique."""
    return f"kandev-{home_id[:8]}-{session_id}"


def image_of(config: DockerConfig, agent: str) -> str:
    """Return the image for an agent; '' where none is configured."""
    return config.images.get(agent, config.image)


def publishes_port(config: DockerConfig) -> bool:
    """True where agentctl can be reached by a published port: not without a network, nor in that of this machine."""
    return config.network not in {"none", "host"}


def container_spec(
    request: InstanceRequest,
    config: DockerConfig,
    files: ContainerFiles,
    *,
    archive: Path,
    user: ContainerUser,
    home_id: str,
    environ: Mapping[str, str],
) -> dict[str, Any]:
    """Return what the engine is told. `archive` is agentctl's zipapp on this machine."""
    port = port_inside()
    published = publishes_port(config)
    host: dict[str, Any] = {
        "Init": True,
        "Mounts": [*_mounts(request.cwd, files, archive), *map(extra_mount, config.mounts)],
        **limits_of(config),
        "PortBindings": {port: [{"HostIp": "127.0.0.1", "HostPort": ""}]} if published else {},
    }
    return {
        "Image": image_of(config, request.agent),
        "Entrypoint": ["python3", "-I", "-S", ARCHIVE],
        "Cmd": [f"@{files.arguments}"],
        "Env": [f"{name}={value}" for name, value in environment_of(config, environ, home=str(files.home)).items()],
        "User": f"{user.uid}:{user.gid}",
        "WorkingDir": "/",
        "ExposedPorts": {port: {}} if published else {},
        "Labels": {
            **home_labels(home_id),
            "kandev.session_id": request.session_id,
            "kandev.task_id": request.task_id,
            "kandev.instance_id": request.instance_id,
        },
        "HostConfig": host,
    }


def limits_of(config: DockerConfig) -> dict[str, Any]:
    """Return the part of a HostConfig that limits a container, its network too."""
    network = {"NetworkMode": config.network} if config.network else {}
    return {"Memory": config.memory_mb << 20, "NanoCpus": int(config.cpus * 1e9), **network}


def environment_of(config: DockerConfig, environ: Mapping[str, str], *, home: str) -> dict[str, str]:
    """Return what a container's environment has beyond its image's; a "$NAME" that is not set is left out."""
    given: dict[str, str] = {}
    for name, value in config.env.items():
        reference = _REFERENCE.fullmatch(value)
        if reference is None:
            given[name] = value
        elif reference[1] in environ:
            given[name] = environ[reference[1]]
    return {**given, "HOME": home}


def _mounts(cwd: str, files: ContainerFiles, archive: Path) -> list[dict[str, Any]]:
    """Return the mounts, each at its own path: the session's directories writable, what leads outside read-only."""
    mounts = [_bind(str(files.directory)), {**_bind(str(archive), read_only=True), "Target": ARCHIVE}]
    if not cwd:
        return mounts
    mounts.append(_bind(cwd))
    pointer = os.path.join(cwd, ".git")
    repository = find_repository(cwd) if os.path.exists(pointer) else None
    if repository is None:
        return mounts
    common = str(repository.common)
    if not Path(common).is_relative_to(cwd):
        # The pointer too: git outside of the container would follow it to hooks of the agent's.
        mounts += [_bind(common), _bind(pointer, read_only=True)]
    hooks = os.path.join(common, "hooks")
    os.makedirs(hooks, exist_ok=True)  # where there is none, an agent could make one
    return [*mounts, *(_bind(os.path.join(common, name), read_only=True) for name in _READ_ONLY)]


def _bind(path: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"Type": "bind", "Source": path, "Target": path, "ReadOnly": read_only}


def extra_mount(text: str) -> dict[str, Any]:
    """Return the mount that "SOURCE[:TARGET[:ro]]" means."""
    source, *rest = text.split(":")
    target, mode = _target_and_mode(source, rest)
    if not source.startswith("/") or not target.startswith("/") or mode not in {"", "ro", "rw"}:
        raise Invalid(f"{text!r} is no mount; write /PATH, /PATH:/INSIDE or /PATH:/INSIDE:ro", field="mounts")
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": mode == "ro"}


def _target_and_mode(source: str, rest: Sequence[str]) -> tuple[str, str]:
    if not rest:
        return source, ""
    return rest[0], ":".join(rest[1:])
