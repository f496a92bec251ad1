"""Puts the agents that package.json names into .real-agents/ at the top of the checkout, by `npm ci`."""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PLACE = HERE.parents[1] / ".real-agents"
WANTED = ("package.json", "package-lock.json", ".npmrc")
LIMIT = 600.0
"""Seconds for the download of half a gigabyte."""


class InstallFailed(Exception):
    """Raised when npm is missing or could not install; the text says why."""


def install() -> Path:
    """The folder of the agents' commands. Quick when the installed lock is the wanted one; raises InstallFailed."""
    PLACE.mkdir(exist_ok=True)
    with (PLACE / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs in one checkout
        if not _is_current():
            _run_npm()
    return PLACE / "node_modules" / ".bin"


def _is_current() -> bool:
    done = PLACE / "installed-lock.json"
    return done.exists() and done.read_bytes() == (HERE / "package-lock.json").read_bytes()


def _run_npm() -> None:
    if shutil.which("npm") is None:
        raise InstallFailed("npm is not installed")
    for name in WANTED:
        shutil.copyfile(HERE / name, PLACE / name)
    try:
        done = subprocess.run(["npm", "ci"], cwd=PLACE, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise InstallFailed(f"npm ci took longer than {LIMIT:.0f} s") from None
    if done.returncode:
        raise InstallFailed(f"npm ci ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    shutil.copyfile(HERE / "package-lock.json", PLACE / "installed-lock.json")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{install()}\n")
    except InstallFailed as failed:
        sys.exit(str(failed))
