"""Where the Docker engine listens: what the docker command itself would use, unless the configuration differs."""

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from kandev.errors import Conflict

__all__ = ["engine_address"]

_DEFAULT: Final = "unix:///var/run/docker.sock"


def engine_address(host: str, context: str, environ: Mapping[str, str]) -> str:
    """Return the engine's address, "unix:///path" on this machine.

    In this order: `host` and `context` of the configuration, DOCKER_HOST, DOCKER_CONTEXT, the current context of the
    docker command, its default. Raises Conflict for a context that is not there.
    """
    if host:
        return host
    if not context and environ.get("DOCKER_HOST"):
        return environ["DOCKER_HOST"]
    directory = Path(environ.get("DOCKER_CONFIG") or os.path.join(environ.get("HOME", "/"), ".docker"))
    name = context or environ.get("DOCKER_CONTEXT") or str(_read(directory / "config.json").get("currentContext", ""))
    if name in {"", "default"}:
        return _DEFAULT
    found = _read(directory / "contexts/meta" / sha256(name.encode()).hexdigest() / "meta.json")
    try:
        return str(found["Endpoints"]["docker"]["Host"])  # type: ignore[index]  # what is missing raises
    except (KeyError, TypeError) as error:
        raise Conflict(f"There is no docker context {name!r} under {directory}.", reason="no_context") from error


def _read(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
