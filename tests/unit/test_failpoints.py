"""Failpoints: the table is what the code has, and nothing happens unless the environment says so."""

import ast
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import kandev
from kandev.agentctl.failpoints import FAILPOINTS, environment_of_agentctl

ROOT = Path(kandev.__file__).parent
WRITERS = {"write", "write_patiently", "flush"}
"""Calls that commit: `store.write(job)` and its kin, awaited in the rooms that decide what is stored."""

ELSEWHERE = {
    "Store.write": "is the commit itself",
    "Store.write_patiently": "is the commit itself",
    "Ingest._store": "is the commit of `_commit`, which has them",
}


def uses() -> Iterator[tuple[str, str]]:
    """(name, file) of every call of `failpoint` in the code."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "failpoint":
                (argument,) = node.args
                assert isinstance(argument, ast.Constant), f"{path}: the name must stand there"
                yield str(argument.value), str(path.relative_to(ROOT))


def test_every_failpoint_is_declared_and_used_once() -> None:
    """A name that is armed cannot be one that nobody passes, nor a place have no sentence."""
    assert Counter(name for name, _file in uses()) == Counter(FAILPOINTS.keys())


def test_names_and_places_read_well() -> None:
    """A name says where and when, a place is one sentence."""
    assert [name for name in FAILPOINTS if not re.fullmatch(r"[a-z]+\.[a-z_]+", name)] == []
    assert [place for place in FAILPOINTS.values() if not re.fullmatch(r"[A-Za-z`].*[^.]\.", place)] == []


def commits(path: Path) -> Iterator[tuple[str, int, list[int]]]:
    """(function, line of a commit, lines of the failpoints in that function)."""
    tree = ast.parse(path.read_text())
    owners = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef)]
    for owner in owners:
        for function in [node for node in owner.body if isinstance(node, ast.AsyncFunctionDef)]:
            name = f"{owner.name}.{function.name}" if isinstance(owner, ast.ClassDef) else function.name
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            points = [node.lineno for node in calls if getattr(node.func, "id", "") == "failpoint"]
            awaited = [node.value for node in ast.walk(function) if isinstance(node, ast.Await)]
            for call in awaited:
                if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in WRITERS:
                    yield name, call.lineno, points


@pytest.mark.parametrize("room", ["orchestrator", "lifecycle", "store"])
def test_every_commit_has_a_failpoint_before_and_behind_it(room: str) -> None:
    """A commit that is added gets its two places, and by that its crash tests."""
    bare = []
    for path in sorted((ROOT / room).glob("*.py")):
        for name, line, points in commits(path):
            covered = any(point < line for point in points) and any(point > line for point in points)
            if not covered and name not in ELSEWHERE:
                bare.append(f"{path.name}:{line} in {name}")
    assert bare == []


def run(program: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Runs a few lines in an interpreter of its own, with these variables."""
    code = f"from kandev.agentctl.failpoints import failpoint\n{program}\nprint('lived')"
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def pass_by(*names: str) -> str:
    return "\n".join(f"failpoint({name!r})" for name in names)


A, B = "prompt.after_claim", "ingest.after_commit"


@pytest.mark.parametrize(
    ("armed", "passed", "killed"),
    [
        ("", [A, B], False),
        (A, [B], False),
        (A, [B, A], True),
        (f"{A}:3", [A, A, B], False),
        (f"{A}:3", [A, A, B, A], True),
        (f"{A}>{B}", [B, A], False),
        (f"{A}>{B}", [B, A, B], True),
        (f"{A}:2>{B}:2", [A, A, B, A, B], True),
    ],
)
def test_an_armed_failpoint_kills(armed: str, passed: list[str], killed: bool) -> None:  # noqa: FBT001 - the outcome
    """By SIGKILL, at the hit that was asked for, and nowhere else."""
    done = run(pass_by(*passed), KANDEV_FAILPOINT=armed)
    assert (done.returncode == -signal.SIGKILL, done.stdout == "lived\n") == (killed, not killed)


def test_only_declared_names_can_be_armed_or_passed(tmp_path: Path) -> None:
    """A slip of the pen is an error, not a test that kills nobody."""
    assert "there is no failpoint 'prompt.nowhere'" in run("", KANDEV_FAILPOINT="prompt.nowhere").stderr
    log = str(tmp_path / "log")
    assert "there is no failpoint 'nowhere'" in run(pass_by("nowhere"), KANDEV_FAILPOINT_LOG=log).stderr


def test_a_log_tells_what_was_passed_and_lets_only_one_fire(tmp_path: Path) -> None:
    """The second program, started in place of the killed one, goes on."""
    log = tmp_path / "log"
    armed = {"KANDEV_FAILPOINT": A, "KANDEV_FAILPOINT_LOG": str(log)}
    assert run(pass_by(B, A), **armed).returncode == -signal.SIGKILL
    assert run(pass_by(A), **armed).stdout == "lived\n"
    assert [line.split(" ")[1:] for line in log.read_text().splitlines()] == [[B], [A, "killed"], [A]]
    assert log.stat().st_mode & 0o777 == 0o600


def test_agentctl_is_armed_by_a_variable_of_its_own() -> None:
    """What arms the backend does not arm agentctl, and the log goes to both."""
    armed = {"KANDEV_FAILPOINT": A, "KANDEV_AGENTCTL_FAILPOINT": "agentctl.announced", "KANDEV_FAILPOINT_LOG": "/log"}
    expected = {"KANDEV_FAILPOINT": "agentctl.announced", "KANDEV_FAILPOINT_LOG": "/log"}
    assert environment_of_agentctl(armed) == expected
    assert environment_of_agentctl({"KANDEV_FAILPOINT": A}) == {}
