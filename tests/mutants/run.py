"""Breaks each rule on purpose and expects its tests to turn red: `make mutants`, `make mutants ARGS="TOK-3"` for one.

A file ID.patch beside this one is a small change of the code that breaks the rule ID. Each is put into a copy of the
checkout, and only the tests that carry the id run there, the fast ones first, up to the first that fails. Exit code 1
if a mutant survives, or if a patch does not fit the code any more.
"""

# ruff: noqa: T201 - a table is printed

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

HERE = Path(__file__).parent
CHECKOUT = HERE.parent.parent
sys.path.insert(0, str(CHECKOUT / "tests"))

from rule_ids import Carrier, carriers  # noqa: E402 - found by the line above

FAST_FIRST = ("unit", "model", "fuzz", "contract", "integration", "crash", "chaos")
"""Folders of tests. Others need more than a checkout: agents, a browser, an engine."""
LIMIT_S = 240.0
"""A mutant that hangs its tests for so long is noticed, too."""
PLUGINS = ("-p", "no:cacheprovider", "-p", "mutants.first_example")
TESTS_FAILED = 1
FAILURE = re.compile(r"/\S+:\d+: (.+)")
NO_PROGRAM = re.compile(r"^(ImportError|ModuleNotFoundError|SyntaxError|NameError)|ended with 1 at its start")
"""A test that fails like this saw no broken rule, but a patch that broke the program."""
APPLY = ("git", "apply", "-C1")
"""One line around a change is enough to find its place, wherever it has moved to."""

COLOURS = {"killed": "\x1b[32m", "survived": "\x1b[31m", "stale": "\x1b[31m", "broken": "\x1b[31m"}
PLAIN = "\x1b[0m"


class Verdict(NamedTuple):
    """What became of one mutant: killed, survived, stale where its patch does not fit, broken where nothing ran."""

    rule: str
    tests: int
    what: str
    seconds: float
    by: str


class Tree:
    """A copy of the checkout with a Python of its own, which imports `kandev` from the copy and nowhere else."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "tree"
        for name in _files():
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, target)
        venv.create(directory / "python", symlinks=True, with_pip=False)
        self.python = directory / "python/bin/python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        found_here = directory / "python/lib" / version / "site-packages/here.pth"
        found_here.write_text(f"{self.root / 'src'}\n{sysconfig.get_path('purelib')}\n")

    def judge(self, patch: Path, tests: Sequence[str]) -> Verdict:
        """Put the patch in, run the tests, take it out again."""
        began = time.monotonic()
        if subprocess.run([*APPLY, patch], cwd=self.root, check=False, capture_output=True).returncode:
            return Verdict(patch.stem, len(tests), "stale", 0.0, "the patch does not fit the code any more")
        try:
            what, by = self._test(tests)
        finally:
            subprocess.run([*APPLY, "-R", patch], cwd=self.root, check=True)
            # Compiled files are told by size and second, which the next patch may share.
            for compiled in self.root.rglob("__pycache__"):
                shutil.rmtree(compiled, ignore_errors=True)
        return Verdict(patch.stem, len(tests), what, time.monotonic() - began, by)

    def _test(self, tests: Sequence[str]) -> tuple[str, str]:
        if not tests:
            return "survived", "no test carries this id"
        command = [str(self.python), "-m", "pytest", "-x", "-q", "--tb=line", *PLUGINS, *tests]
        with subprocess.Popen(
            command,
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root / "tests")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return "killed", f"hung for {LIMIT_S:g} s"
        if process.returncode == TESTS_FAILED:
            why = next(_reasons(output), "")
            return "broken" if NO_PROGRAM.search(why) else "killed", f"{next(_failures(output), '')}: {why}"
        return "survived", output.strip().rpartition("\n")[2]


def _failures(output: str) -> Iterator[str]:
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            yield line.split(" ")[1].rpartition("/")[2]


def _reasons(output: str) -> Iterator[str]:
    """What pytest's --tb=line says of a failure, without the place."""
    for line in output.splitlines():
        if found := FAILURE.fullmatch(line):
            yield found[1][:160]


def _files() -> list[str]:
    """Every file of the checkout that is not ignored, as it is now."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=CHECKOUT, check=True, capture_output=True, text=True
    )
    return [name for name in listed.stdout.split("\0") if name and (CHECKOUT / name).is_file()]


def tests_of(rule: str, found: Sequence[Carrier]) -> list[str]:
    """The tests that carry a rule, the fast ones first, as pytest names them."""
    paths = {one.path: one.path.relative_to(CHECKOUT / "tests").parts[0] for one in found if one.rule == rule}
    mine = [one for one in found if one.rule == rule and paths[one.path] in FAST_FIRST]
    mine.sort(key=lambda one: FAST_FIRST.index(paths[one.path]))
    return list(dict.fromkeys(f"{one.path.relative_to(CHECKOUT)}::{one.name}" for one in mine))


def patches(ids: Sequence[str] = ()) -> list[Path]:
    """The patches of these rules, or all."""
    return sorted(path for path in HERE.glob("*.patch") if not ids or path.stem in ids)


def judged(chosen: Sequence[Path], jobs: int) -> Iterator[Verdict]:
    """The verdicts, in the order of the patches; `jobs` mutants are tested at a time."""
    found = carriers()
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory, ThreadPoolExecutor(jobs) as pool:
        free: Queue[Tree] = Queue()
        for number in range(jobs):
            free.put(Tree(Path(directory) / str(number)))

        def judge(patch: Path) -> Verdict:
            tree = free.get()
            try:
                return tree.judge(patch, tests_of(patch.stem, found))
            finally:
                free.put(tree)

        yield from pool.map(judge, chosen)


def shown(verdict: Verdict) -> str:
    """One line of the table."""
    what = f"{verdict.what:<8}"
    if sys.stdout.isatty():
        what = f"{COLOURS[verdict.what]}{what}{PLAIN}"
    return f"{verdict.rule:<10} {verdict.tests:>5}  {what} {verdict.seconds:>6.1f} s  {verdict.by}"


def main() -> int:
    """Print the table; 1 if a mutant lives."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ids", nargs="*", help="rules, as TOK-3; all without any")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    options = parser.parse_args()
    chosen = patches(options.ids)
    print(f"{'rule':<10} {'tests':>5}  {'mutant':<8} {'time':>8}  by")
    alive = 0
    for verdict in judged(chosen, options.jobs):
        print(shown(verdict), flush=True)
        alive += verdict.what != "killed"
    print(f"{len(chosen) - alive} of {len(chosen)} mutants were killed")
    return 1 if alive or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
