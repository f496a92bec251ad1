"""Failpoints: the table is what the code has, and nothing happens unless the environment says so."""

import ast
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from failpoint_places import (
    ROOT,
    Name,
    Place,
    awaited,
    bare,
    bodies,
    lines,
    places,
    posts,
    programs,
    starts_a_process,
)
from kandev.agentctl.failpoints import FAILPOINTS, environment_of_agentctl

WRITERS = {"write", "write_patiently", "flush"}
"""Calls that commit: `store.write(job)` and its kin, awaited in the rooms that decide what is stored."""
COMMITTING = ("orchestrator", "lifecycle", "store")

CLIENT = ROOT / "runtimes/agentctl_client.py"
PIPE = Name("os", "write")  # in agentctl/stdin.py

ENGINES = (ROOT / "runtimes/docker_engine.py", ROOT / "runtimes/remote_engine.py")
CHANGES = {"create", "start", "stop", "delete", "exec"}
"""What these ask aiodocker for, whose other calls change nothing."""

PASSED_ON = {
    "agentctl/spawn.py:spawn": Name("", "spawn"),
    "runtimes/fork_client.py:_start": Name("", "_start"),
    "runtimes/fork_client.py:start_cold": Name("", "start_cold"),
    "runtimes/local.py:LocalInstances._start": Name("self", "_start"),
    "worktrees/program.py:run_program": Name("", "run_program"),
    "worktrees/preparation.py:Preparation.run": Name("_preparation", "run"),
    "worktrees/git.py:Git._run": Name("self", "_run"),
    "worktrees/git.py:Git.write": Name("_git", "write"),
}
"""Functions that start a process for whoever calls them: the failpoints are the callers'."""

ELSEWHERE = {
    "store/store.py:Store.write": "is the commit itself",
    "store/store.py:Store.write_patiently": "is the commit itself",
    "orchestrator/workspaces.py:SessionWorkspaces._say": "the next time that work comes says again what still holds",
    "orchestrator/adoption.py:Adoption.doubt": "needs an engine that does not answer; the next start asks again",
    "orchestrator/search.py:Search._index_piece": "made from what is stored; what is missing is put in later",
    "lifecycle/ingest.py:Ingest._store": "is the commit of `_commit`, which has them",
    "agentctl/stdin.py:StdinWriter._write": "goes on with what `_begin` announced; that has the one before",
    "lifecycle/forking.py:_copied": "what it makes is the agent's; a start that is cut short makes another copy",
    "agentctl/programs.py:Programs.run": "Sources has them around all that git does; a copy see `_copied`",
    "worktrees/git.py:Git.ask": "git is only asked something; nothing is changed",
    "runtimes/remote_engine.py:RemoteEngine.run_piped": "a way to agentctl, which ends with whoever opened it",
    "orchestrator/installed_version.py:_words": "a program is asked for its version; nothing is stored of it",
    "orchestrator/hooks.py:Hooks._run": "a command of the user's, of which nothing is stored and nothing depends on it",
}
"""FILE:FUNCTION of what has its failpoints elsewhere, or needs none, and why."""


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


def without_reason(found: Iterable[Place]) -> list[str]:
    """Those that no exception names, to be read by whoever added one."""
    return [f"{place.name}, line {place.line}" for place in found if place.name not in ELSEWHERE]


def commits() -> list[Place]:
    files = [path for path in programs() if path.relative_to(ROOT).parts[0] in COMMITTING]
    return [place for place in places(lambda call: awaited(call, WRITERS), files) if not place.covered]


def sends() -> list[Place]:
    """To agentctl: every request that tells it to do something. To the agent: the writes into its stdin."""
    told = posts(CLIENT, "AgentctlClient")
    assert {"configure", "start", "send", "stop", "ack"} <= told

    def to_agentctl(call: ast.expr) -> bool:
        return awaited(call, told) and Name.of(call.value).receiver in {"client", "channel"}  # type: ignore[attr-defined]  # a call

    found = [*places(to_agentctl, programs()), *places(lambda c: Name.of(c) == PIPE, [ROOT / "agentctl/stdin.py"])]
    assert len(found) >= len(told) + 1, "nothing is sent any more? then this test looks in the wrong place"
    return [place for place in found if not place.covered]


def starts() -> list[Place]:
    return bare(starts_a_process, PASSED_ON)


def changes_of_engines() -> list[Place]:
    """What an engine is asked to do: by aiodocker, or by a request that is no GET."""

    def changes(call: ast.expr) -> bool:
        if not awaited(call, {*CHANGES, "call"}):
            return False
        asked = call.value  # type: ignore[attr-defined]  # an `await`
        is_get = any(isinstance(word, ast.Constant) and word.value == "GET" for word in asked.args)
        return Name.of(asked).called in CHANGES or not is_get

    found = [*places(changes, ENGINES)]
    assert len(found) > len(CHANGES), "an engine is not asked for anything any more? then this looks in the wrong place"
    return [place for place in found if not place.covered]


@pytest.mark.parametrize("missing", [commits, sends, starts, changes_of_engines])
def test_every_step_has_a_failpoint_before_and_behind_it(missing: Callable[[], list[Place]]) -> None:
    """A commit, a send, a start or a change of a container gets its two places, and by that its crash tests."""
    assert without_reason(missing()) == []


def test_every_exception_is_still_one() -> None:
    """A reason that nothing needs any more would hide what comes in its place."""
    assert {place.name for place in [*commits(), *sends(), *starts(), *changes_of_engines()]} >= set(ELSEWHERE)


def test_places_are_told_apart() -> None:
    """Two steps do not share what stands between them, and one without a failpoint on a side is bare."""
    assert [covered(text) for text in ("a s b", "a s", "s b", "a s b s c", "a s b c s d", "s")] == [
        [True],
        [False],
        [False],
        [False, False],
        [True, True],
        [False],
    ]


def covered(steps: str) -> list[bool]:
    """Which steps ("s") of a function are covered; each other letter is a failpoint on a line of its own."""
    body = "\n".join("    send()" if step == "s" else f"    failpoint('{step}')" for step in steps.split())
    (function,) = bodies(f"def f():\n{body}")
    return [covered for _line, covered in lines(lambda call: Name.of(call).called == "send", function)]


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
