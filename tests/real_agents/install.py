"""Puts the agents of packages/ into .real-agents/NAME (or KANDEV_REAL_AGENTS/NAME), each by an `npm ci` of its own.

One that cannot be installed does not keep the others from it. Node comes along in the version that they want.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = HERE / "packages"
PLACE = Path(os.environ.get("KANDEV_REAL_AGENTS") or HERE.parents[1] / ".real-agents").absolute()
NODE = "node"
AGENTS = tuple(sorted(place.name for place in PACKAGES.iterdir() if place.name != NODE))
LIMIT = 600.0
"""Seconds for one agent: up to half a gigabyte."""


class InstallFailed(Exception):
    """Raised when npm is missing or could not install; the text says why."""


def search_path(name: str) -> str:
    """A PATH that begins with the agent's commands and with the Node that was installed for it."""
    return os.pathsep.join([*map(str, (*_commands(name), *_commands(NODE))), os.environ["PATH"]])


def _commands(package: str) -> list[Path]:
    """Folders with commands: npm's own, and that of a package which is a program for one kind of machine."""
    modules = PLACE / package / "node_modules"
    return [folder for folder in (modules / ".bin", *modules.glob("*-linux-*/bin")) if folder.is_dir()]


def is_installed(name: str) -> bool:
    """True when what stands there was made from the lock that is here now."""
    return all(_is_current(package) for package in (NODE, name))


def install(name: str) -> None:
    """Installs an agent, and Node. Quick when it is there; raises InstallFailed."""
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs in one checkout
        for package in (NODE, name):
            if not _is_current(package):
                _run_npm(package)


def _is_current(package: str) -> bool:
    done = PLACE / package / "installed-lock.json"
    return done.exists() and done.read_bytes() == (PACKAGES / package / "package-lock.json").read_bytes()


def _run_npm(package: str) -> None:
    if shutil.which("npm") is None:
        raise InstallFailed("npm is not installed")
    place = PLACE / package
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for source in (PACKAGES / package / "package.json", PACKAGES / package / "package-lock.json", HERE / ".npmrc"):
        shutil.copyfile(source, place / source.name)
    command, environment = ["npm", "ci"], {**os.environ, "PATH": search_path(package)}
    try:
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise InstallFailed(f"npm ci took longer than {LIMIT:.0f} s") from None
    if done.returncode:
        raise InstallFailed(f"npm ci ended with {done.returncode}: {done.stderr.strip()[:400]}")
    if not any(any(folder.iterdir()) for folder in _commands(package)):
        raise InstallFailed("there is no program of it for this kind of machine")
    shutil.copyfile(place / "package-lock.json", place / "installed-lock.json")


def install_all(names: Sequence[str]) -> int:
    """Installs the named agents, or all; tells each, and returns how many failed."""
    failed = 0
    for name in names or AGENTS:
        began = time.monotonic()
        try:
            install(name)
        except InstallFailed as error:
            failed += 1
            sys.stdout.write(f"{name}: NOT installed: {error}\n")
        else:
            sys.stdout.write(f"{name}: in {PLACE / name} ({time.monotonic() - began:.0f} s)\n")
        sys.stdout.flush()
    return failed
