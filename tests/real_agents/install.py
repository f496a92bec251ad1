"""Puts the agents of packages/ into .real-agents/NAME (or KANDEV_REAL_AGENTS/NAME), each on its own, from its lock.

One that cannot be installed does not keep the others from it. Those of npm get Node in the version that they want; one
of PyPI gets an environment of a Python that is new enough, where the machine has one.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = HERE / "packages"
PLACE = Path(os.environ.get("KANDEV_REAL_AGENTS") or HERE.parents[1] / ".real-agents").absolute()
NODE = "node"
AGENTS = tuple(sorted(place.name for place in PACKAGES.iterdir() if place.name != NODE))
LOCKS = ("package-lock.json", "requirements.lock")
PYTHONS = ("python3", "python3.14", "python3.13", "python3.12")
PYTHON_WANTED = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 12))"
LIMIT = 600.0
"""Seconds for one agent: up to half a gigabyte."""


class InstallFailed(Exception):
    """Raised when something that is needed is missing or could not install; the text says why."""


def search_path(name: str) -> str:
    """A PATH that begins with the agent's commands and with the Node that was installed for it."""
    return os.pathsep.join([*map(str, (*_commands(name), *_commands(NODE))), os.environ["PATH"]])


def folders(name: str) -> tuple[list[Path], list[Path]]:
    """What an image needs to hold the agent: the folders that it was installed to, and those with commands."""
    parts = _parts(name)
    return [PLACE / part for part in parts], [folder for part in parts for folder in _commands(part)]


def _commands(package: str) -> list[Path]:
    """Folders with commands: npm's own, that of a package which is a program for one kind of machine, Python's."""
    modules = PLACE / package / "node_modules"
    folders = (modules / ".bin", *modules.glob("*-linux-*/bin"), PLACE / package / "venv" / "bin")
    return [folder for folder in folders if folder.is_dir()]


def is_installed(name: str) -> bool:
    """True when what stands there was made from the lock that is here now."""
    return all(_is_current(package) for package in _parts(name))


def can_run(name: str) -> bool:
    """True when the machine has what the agent runs on; Node comes along."""
    return _lock(name).name != "requirements.lock" or bool(_python())


def install(name: str) -> None:
    """Installs an agent, and what it runs on. Quick when it is there; raises InstallFailed."""
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs in one checkout
        for package in _parts(name):
            if not _is_current(package):
                _install_anew(package)


def _parts(name: str) -> tuple[str, ...]:
    return (NODE, name) if _lock(name).name == "package-lock.json" else (name,)


def _lock(package: str) -> Path:
    return next(path for name in LOCKS if (path := PACKAGES / package / name).exists())


def _is_current(package: str) -> bool:
    done = PLACE / package / "installed.lock"
    return done.exists() and done.read_bytes() == _lock(package).read_bytes()


def _install_anew(package: str) -> None:
    place, lock = PLACE / package, _lock(package)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if lock.name == "package-lock.json":
        _run_npm(place, package)
    else:
        _run_pip(place, lock)
    if not any(any(folder.iterdir()) for folder in _commands(package)):
        raise InstallFailed("there is no program of it for this kind of machine")
    shutil.copyfile(lock, place / "installed.lock")


def _run_npm(place: Path, package: str) -> None:
    if shutil.which("npm") is None:
        raise InstallFailed("npm is not installed")
    for source in (PACKAGES / package / "package.json", PACKAGES / package / "package-lock.json", HERE / ".npmrc"):
        shutil.copyfile(source, place / source.name)
    _run(["npm", "ci"], place, search_path(package))


def _run_pip(place: Path, lock: Path) -> None:
    python = _python()
    if not python:
        raise InstallFailed(f"it needs Python 3.12 or newer with venv; none of {', '.join(PYTHONS)} is that")
    _run([python, "-m", "venv", "venv"], place, os.environ["PATH"])
    options = ("--disable-pip-version-check", "install", "--quiet", "--require-hashes", "--no-deps", "-r")
    _run(["venv/bin/python", "-m", "pip", *options, str(lock)], place, os.environ["PATH"])


def _python() -> str:
    """The first Python on the PATH that is new enough; '' where there is none."""
    for name in PYTHONS:
        found = shutil.which(name)
        if found and subprocess.run([found, "-c", PYTHON_WANTED], capture_output=True, check=False).returncode == 0:
            return found
    return ""


def _run(command: Sequence[str], place: Path, path: str) -> None:
    environment = {**os.environ, "PATH": path}
    try:
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise InstallFailed(f"{command[0]} took longer than {LIMIT:.0f} s") from None
    if done.returncode:
        raise InstallFailed(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[:400]}")


def install_all(names: Iterable[str]) -> int:
    """Installs the named agents, or all that can run here; tells each, and returns how many failed."""
    failed = 0
    for name in names or AGENTS:
        if not names and not can_run(name):
            sys.stdout.write(f"{name}: left out, this machine has not what it runs on\n")
            continue
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
