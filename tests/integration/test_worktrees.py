"""Directories of sessions, with real git: WORK-1 to WORK-7, kills in the middle, hooks that hang."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from kandev.domain.constants import Timing
from kandev.errors import Conflict, Invalid, TimedOut, Unavailable, WorkspaceMissing
from kandev.worktrees import State, Workspace, Worktrees, inspect, plan_empty, plan_in_place, plan_worktree
from repositories import GIT_ENVIRONMENT, commit, git

SESSION = "0123456789abcdef0123"


def listing(path: Path) -> bytes:
    """What is there, with sizes, times and modes."""
    return subprocess.run(["ls", "-lAR", str(path)], capture_output=True, check=True).stdout


def hook(repository: Path, script: str) -> None:
    file = repository / ".git" / "hooks" / "post-checkout"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process does; the limit only ends a broken run."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", "-b", "main", str(path)], check=True, env=GIT_ENVIRONMENT)
    commit(path, "file", "one")
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "worktrees"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def worktrees(directory: Path) -> Worktrees:
    return Worktrees(directory, environ=GIT_ENVIRONMENT)


@pytest.fixture
def plan(directory: Path, repository: Path) -> Workspace:
    return plan_worktree(directory, str(repository), session_id=SESSION, title="Fix the login!")


async def test_work_6_a_plan_touches_nothing_and_names_path_and_branch(plan: Workspace, directory: Path) -> None:
    """Path and branch are known before git runs, and a plan can be stored."""
    assert plan.path == str(directory / "fix-the-login-0123456789")
    assert plan.branch == "kandev/fix-the-login-0123456789"
    assert not plan.prepared
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("title", ["", "日本語", "../../etc", "--force", "a" * 500])
async def test_sec_2_a_title_never_becomes_a_path(
    title: str, directory: Path, repository: Path, worktrees: Worktrees
) -> None:
    """Whatever a task is called, its directory is one below ours, and git takes its branch."""
    plan = plan_worktree(directory, str(repository), session_id=SESSION, title=title)
    assert Path(plan.path).parent == directory
    assert (await worktrees.create(plan)).how == "made"
    with pytest.raises(Invalid, match="letters and digits"):
        plan_worktree(directory, str(repository), session_id="../x", title=title)


async def test_a_worktree_is_made_on_its_own_branch(worktrees: Worktrees, plan: Workspace, repository: Path) -> None:
    """It holds the committed files, on a branch that begins at the repository's HEAD."""
    made = await worktrees.create(plan)
    assert made.workspace == replace(plan, prepared=True)
    assert (Path(plan.path) / "file").read_text() == "one"
    assert git(Path(plan.path), "symbolic-ref", "HEAD") == f"refs/heads/{plan.branch}"
    assert git(repository, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert (await worktrees.validate(made.workspace)).how == "found"


async def test_a_worktree_begins_at_the_branch_asked_for(
    worktrees: Worktrees, plan: Workspace, repository: Path
) -> None:
    """A local branch, one that only origin has, and a commit are all understood."""
    first = git(repository, "rev-parse", "HEAD")
    second = commit(repository, "file", "two")
    git(repository, "update-ref", "refs/remotes/origin/remote-only", second)
    git(repository, "branch", "old", first)
    for name, expected in [("old", first), ("remote-only", second), (first, first), ("", second)]:
        assert await worktrees.check_repository(str(repository), name) == expected
    await worktrees.create(replace(plan, base_branch="old"))
    assert git(Path(plan.path), "rev-parse", "HEAD") == first


@pytest.mark.parametrize("name", ["nothing", "--all"])
async def test_an_unknown_base_branch_is_refused(
    name: str, worktrees: Worktrees, plan: Workspace, repository: Path
) -> None:
    """The error names the field, and neither branch nor directory is left."""
    with pytest.raises(Invalid, match=name) as caught:
        await worktrees.create(replace(plan, base_branch=name))
    assert caught.value.details["field"] == "base_branch"
    assert inspect(plan) is State.MISSING
    assert git(repository, "branch", "--list", "kandev/*") == ""


async def test_work_7_what_is_no_repository_is_refused_with_what_to_do(
    worktrees: Worktrees, plan: Workspace, tmp_path: Path
) -> None:
    """A plain directory and a missing one get a clear error; in place, the plain one is fine."""
    plain = tmp_path / "plain"
    plain.mkdir()
    with pytest.raises(Invalid, match=r"is no git repository. Run `git init` there and commit, or use it in place"):
        await worktrees.create(replace(plan, repository_path=str(plain)))
    with pytest.raises(Invalid, match="is no directory"):
        await worktrees.create(replace(plan, repository_path=str(tmp_path / "gone")))
    assert (await worktrees.create(plan_in_place(str(plain)))).workspace.path == str(plain)
    with pytest.raises(Invalid, match="is no directory"):
        await worktrees.create(plan_in_place(str(tmp_path / "gone")))


async def test_work_7_a_repository_without_a_commit_is_refused(
    worktrees: Worktrees, plan: Workspace, tmp_path: Path
) -> None:
    """It says that a commit is wanted, or "in place"."""
    fresh = tmp_path / "fresh"
    git(tmp_path, "init", "-q", str(fresh))
    with pytest.raises(Invalid, match=r"has no commit yet.*or use it in place"):
        await worktrees.create(replace(plan, repository_path=str(fresh)))


async def test_work_7_without_a_repository_the_session_has_an_empty_directory(
    worktrees: Worktrees, directory: Path
) -> None:
    """It is made, found, made again with a note, and removed with its files only by force."""
    plan = plan_empty(directory, session_id=SESSION)
    first = await worktrees.validate(plan)
    assert (first.how, first.note) == ("made", "")
    made = first.workspace
    path = Path(made.path)
    assert path.stat().st_mode & 0o777 == 0o700
    assert (await worktrees.validate(made)).how == "found"
    path.rmdir()
    again = await worktrees.validate(made)
    assert (again.how, path.is_dir()) == ("rebuilt", True)
    assert "gone" in again.note
    (path / "work").write_text("x")
    with pytest.raises(Conflict) as caught:
        await worktrees.remove(made)
    assert caught.value.reason == "uncommitted_changes"
    assert (await worktrees.remove(made, force=True)).directory
    assert not path.exists()


async def test_work_1_a_lost_directory_is_rebuilt_from_its_branch(worktrees: Worktrees, plan: Workspace) -> None:
    """Same path, same branch, its commits there, and a line that says so."""
    made = (await worktrees.create(plan)).workspace
    path = Path(plan.path)
    head = commit(path, "work", "done")
    shutil.rmtree(path)
    rebuilt = await worktrees.validate(made)
    assert (rebuilt.how, rebuilt.workspace) == ("rebuilt", made)
    assert plan.branch in rebuilt.note
    assert (path / "work").read_text() == "done"
    assert git(path, "rev-parse", "HEAD") == head
    assert git(path, "symbolic-ref", "HEAD") == f"refs/heads/{plan.branch}"


async def test_work_1_an_empty_directory_in_its_place_is_filled(worktrees: Worktrees, plan: Workspace) -> None:
    """A directory that lost all its content, git's pointer too, is a lost directory."""
    made = (await worktrees.create(plan)).workspace
    shutil.rmtree(plan.path)
    Path(plan.path).mkdir()
    assert (await worktrees.validate(made)).how == "rebuilt"
    assert (Path(plan.path) / "file").exists()


async def test_work_6_rebuilding_never_prunes(
    worktrees: Worktrees, plan: Workspace, repository: Path, directory: Path
) -> None:
    """Another worktree whose disk is away is still known to git afterwards."""
    other = plan_worktree(directory, str(repository), session_id="f" * 20, title="other")
    await worktrees.create(other)
    made = (await worktrees.create(plan)).workspace
    shutil.rmtree(plan.path)
    shutil.rmtree(other.path)
    await worktrees.validate(made)
    assert f"worktree {other.path}" in git(repository, "worktree", "list", "--porcelain").splitlines()


async def test_work_2_without_directory_and_branch_the_workspace_is_missing(
    worktrees: Worktrees, plan: Workspace, repository: Path
) -> None:
    """A typed error, nothing is made in its place, and a removal still works."""
    made = (await worktrees.create(plan)).workspace
    git(repository, "worktree", "remove", "--force", plan.path)
    git(repository, "branch", "-D", plan.branch)
    with pytest.raises(WorkspaceMissing) as caught:
        await worktrees.validate(made)
    assert (caught.value.code, caught.value.reason) == ("CONFLICT", "workspace_missing")
    assert inspect(made) is State.MISSING
    assert git(repository, "branch", "--list", "kandev/*") == ""
    removed = await worktrees.remove(made, delete_branch=True)
    assert (removed.directory, removed.branch) == (False, False)


async def test_work_2_a_lost_repository_is_a_missing_workspace(
    worktrees: Worktrees, plan: Workspace, repository: Path, tmp_path: Path
) -> None:
    """What it holds is kept without force, as nobody can tell what was committed; a repository around it is not it."""
    git(tmp_path, "init", "-q")
    made = (await worktrees.create(plan)).workspace
    shutil.rmtree(repository)
    with pytest.raises(WorkspaceMissing, match="is gone"):
        await worktrees.validate(made)
    with pytest.raises(Conflict) as caught:
        await worktrees.remove(made)
    assert caught.value.reason == "uncommitted_changes"
    assert (Path(plan.path) / "file").exists()
    assert (await worktrees.remove(made, force=True)).directory
    assert not Path(plan.path).exists()


def _a_file(path: Path, repository: Path) -> None:
    path.write_text("mine")


def _a_link(path: Path, repository: Path) -> None:
    path.symlink_to(repository)


def _another_repository(path: Path, repository: Path) -> None:
    git(path.parent, "clone", "-q", str(repository), str(path))


def _a_plain_directory(path: Path, repository: Path) -> None:
    path.mkdir()
    (path / "mine").write_text("mine")


def _a_worktree_of_another_repository(path: Path, repository: Path) -> None:
    clone = path.parent.parent / "clone"
    git(path.parent, "clone", "-q", str(repository), str(clone))
    git(clone, "worktree", "add", "-q", str(path))


def _a_copy_of_another_worktree(path: Path, repository: Path) -> None:
    origin = path.parent / "origin"
    git(repository, "worktree", "add", "-q", str(origin))
    subprocess.run(["cp", "-r", str(origin), str(path)], check=True)


@pytest.mark.parametrize(
    "put",
    [
        _a_file,
        _a_link,
        _another_repository,
        _a_plain_directory,
        _a_worktree_of_another_repository,
        _a_copy_of_another_worktree,
    ],
)
async def test_work_3_what_is_somebody_elses_now_is_never_touched(
    put: Callable[[Path, Path], None], worktrees: Worktrees, plan: Workspace, repository: Path
) -> None:
    """Validation, creation and a removal by force leave it as it is; the first two raise the typed error."""
    made = (await worktrees.create(plan)).workspace
    path = Path(plan.path)
    git(repository, "worktree", "remove", "--force", plan.path)
    put(path, repository)
    before = listing(path)
    for workspace in (made, plan):
        with pytest.raises(WorkspaceMissing):
            await worktrees.validate(workspace)
        with pytest.raises(WorkspaceMissing):
            await worktrees.create(workspace)
    removed = await worktrees.remove(made, force=True)
    assert not removed.directory
    assert "left alone" in removed.note
    assert listing(path) == before


async def test_work_3_files_that_git_forgot_are_kept(worktrees: Worktrees, plan: Workspace, repository: Path) -> None:
    """A worktree whose entry in the repository is gone may hold work: it is kept until a person says force."""
    made = (await worktrees.create(plan)).workspace
    (Path(plan.path) / "new").write_text("work")
    shutil.rmtree(repository / ".git" / "worktrees")
    for workspace in (made, plan):
        with pytest.raises(WorkspaceMissing, match="holds files"):
            await worktrees.validate(workspace)
    with pytest.raises(Conflict):
        await worktrees.remove(made)
    assert (Path(plan.path) / "new").read_text() == "work"


@pytest.mark.parametrize("name", ["file", "untracked", "deep/untracked"])
async def test_work_4_uncommitted_changes_are_never_removed(
    name: str, worktrees: Worktrees, plan: Workspace, repository: Path
) -> None:
    """Changed and untracked files stop a removal; the error names them; ignored files do not count."""
    commit(repository, ".gitignore", "ignored\n")
    made = (await worktrees.create(plan)).workspace
    changed = Path(plan.path) / name
    changed.parent.mkdir(exist_ok=True)
    changed.write_text("work")
    with pytest.raises(Conflict, match=name) as caught:
        await worktrees.remove(made)
    assert caught.value.reason == "uncommitted_changes"
    assert changed.read_text() == "work"
    git(Path(plan.path), "checkout", "-q", ".")
    git(Path(plan.path), "clean", "-qfd")
    (Path(plan.path) / "ignored").write_text("x")
    removed = await worktrees.remove(made)
    assert (removed.directory, removed.branch) == (True, False)
    assert not Path(plan.path).exists()
    assert git(repository, "branch", "--list", plan.branch).strip() == plan.branch
    assert plan.path not in git(repository, "worktree", "list")


async def test_work_4_force_is_a_persons_word(worktrees: Worktrees, plan: Workspace, directory: Path) -> None:
    """With force the directory goes, changes and all, and nothing of it stays behind."""
    made = (await worktrees.create(plan)).workspace
    (Path(plan.path) / "file").write_text("work")
    assert (await worktrees.remove(made, force=True)).directory
    assert not any(directory.rglob("file"))


async def test_commits_that_only_the_branch_has_are_not_deleted(
    worktrees: Worktrees, plan: Workspace, repository: Path
) -> None:
    """Nothing is removed until they are merged, or force is said; keeping the branch needs neither."""
    made = (await worktrees.create(plan)).workspace
    commit(Path(plan.path), "work", "done")
    with pytest.raises(Conflict, match="1 commits are only on branch") as caught:
        await worktrees.remove(made, delete_branch=True)
    assert caught.value.reason == "unmerged_commits"
    assert Path(plan.path).is_dir()
    git(repository, "merge", "-q", plan.branch)
    removed = await worktrees.remove(made, delete_branch=True)
    assert (removed.directory, removed.branch) == (True, True)
    assert git(repository, "branch", "--list", "kandev/*") == ""


async def test_commits_on_a_detached_head_are_not_lost(worktrees: Worktrees, plan: Workspace) -> None:
    """Commits that no branch holds go away with the worktree, so they stop its removal."""
    made = (await worktrees.create(plan)).workspace
    git(Path(plan.path), "checkout", "-q", "--detach")
    commit(Path(plan.path), "work", "done")
    with pytest.raises(Conflict, match="only on its HEAD") as caught:
        await worktrees.remove(made)
    assert caught.value.reason == "unmerged_commits"
    assert Path(plan.path).is_dir()


async def test_a_locked_worktree_is_removed_only_by_force(
    worktrees: Worktrees, plan: Workspace, repository: Path
) -> None:
    """A lock that a person set is respected."""
    made = (await worktrees.create(plan)).workspace
    git(repository, "worktree", "lock", plan.path)
    with pytest.raises(Conflict) as caught:
        await worktrees.remove(made)
    assert caught.value.reason == "worktree_locked"
    assert (await worktrees.validate(made)).how == "found"
    assert (await worktrees.remove(made, force=True)).directory
    assert plan.path not in git(repository, "worktree", "list")


async def test_state_9_removing_what_is_gone_is_no_error(
    worktrees: Worktrees, plan: Workspace, repository: Path, directory: Path
) -> None:
    """Directory gone, all of ours gone, never made: each removal succeeds, and git forgets the path."""
    made = (await worktrees.create(plan)).workspace
    shutil.rmtree(directory)
    assert not (await worktrees.remove(made)).directory
    assert plan.path not in git(repository, "worktree", "list")
    assert not (await worktrees.remove(plan)).directory


async def test_a_removal_cut_short_is_finished_by_the_next(
    worktrees: Worktrees, plan: Workspace, directory: Path
) -> None:
    """What a killed removal moved out of the way does not stay for ever."""
    left = directory / ".removed" / "left"
    left.mkdir(parents=True)
    made = (await worktrees.create(plan)).workspace
    await worktrees.remove(made)
    assert not left.exists()


async def test_a_directory_in_place_is_never_removed(worktrees: Worktrees, repository: Path) -> None:
    """It is the user's own; and when it is gone, that is said."""
    workspace = (await worktrees.create(plan_in_place(str(repository)))).workspace
    assert not (await worktrees.remove(workspace, force=True, delete_branch=True)).directory
    assert (repository / "file").exists()
    shutil.rmtree(repository)
    with pytest.raises(WorkspaceMissing, match="Put it back"):
        await worktrees.validate(workspace)


@contextlib.asynccontextmanager
async def blocked_checkout(repository: Path, tmp_path: Path) -> AsyncIterator[Path]:
    """A repository whose checkout stops at one file until the named pipe that this gives is opened for writing."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    log = tmp_path / "filter.log"
    git(repository, "config", "filter.gate.smudge", f"echo x >> {log}; read line < {gate}; cat")
    (repository / ".gitattributes").write_text("slow filter=gate\n")
    commit(repository, "slow", "slow")
    try:
        yield gate
    finally:
        git(repository, "config", "filter.gate.smudge", "cat")
        with contextlib.suppress(OSError):  # nobody waits there, unless a check failed before
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))


async def kill_git_in_the_middle(repository: Path, plan: Workspace) -> None:
    """Start git as `create` does, and kill it and its filter while it checks out files."""
    process = await asyncio.create_subprocess_exec(
        *("git", "-C", str(repository), "worktree", "add", "-q", "-b", plan.branch, plan.path),
        env={**GIT_ENVIRONMENT, "LC_ALL": "C"},
        start_new_session=True,
    )
    try:
        await until((repository.parent / "filter.log").exists)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def test_work_6_git_killed_in_the_middle_is_made_again_on_the_same_branch(
    worktrees: Worktrees, plan: Workspace, repository: Path, tmp_path: Path
) -> None:
    """`locked: initializing`, files missing: removed, made whole, and on the branch that was there already."""
    async with blocked_checkout(repository, tmp_path):
        await kill_git_in_the_middle(repository, plan)
    assert "locked initializing" in git(repository, "worktree", "list", "--porcelain")
    assert inspect(plan) is State.HALF_MADE
    assert not (Path(plan.path) / "slow").exists()
    made = await worktrees.validate(plan)
    assert (Path(plan.path) / "slow").read_text() == "slow"
    assert git(Path(plan.path), "status", "--porcelain") == ""
    assert git(Path(plan.path), "symbolic-ref", "HEAD") == f"refs/heads/{plan.branch}"
    assert "locked" not in git(repository, "worktree", "list", "--porcelain")
    assert (await worktrees.validate(made.workspace)).how == "found"


async def test_work_6_a_prepared_worktree_is_not_remade_whatever_its_lock_says(
    worktrees: Worktrees, plan: Workspace, repository: Path
) -> None:
    """Once an agent may have run there, the same mark is no permission to remove anything."""
    made = (await worktrees.create(plan)).workspace
    (Path(plan.path) / "new").write_text("work")
    [entry] = (repository / ".git" / "worktrees").iterdir()
    (entry / "locked").write_text("initializing")
    with pytest.raises(WorkspaceMissing):
        await worktrees.validate(made)
    with pytest.raises(Conflict):
        await worktrees.remove(made)
    assert (Path(plan.path) / "new").read_text() == "work"


@pytest.mark.parametrize("left", ["branch", "entry", "directory"])
async def test_work_6_other_leftovers_of_a_killed_git_are_taken_over(
    left: str, worktrees: Worktrees, plan: Workspace, repository: Path
) -> None:
    """Only the branch, only the locked entry, only the empty directory: creation goes on from each."""
    git(repository, "branch", plan.branch)
    if left == "entry":
        git(repository, "worktree", "add", "-q", "--lock", "--reason", "initializing", plan.path, plan.branch)
        shutil.rmtree(plan.path)
    if left == "directory":
        Path(plan.path).mkdir()
    made = await worktrees.create(plan)
    assert (Path(plan.path) / "file").exists()
    assert (await worktrees.validate(made.workspace)).how == "found"


CREATE_IN_A_PROCESS = """
import asyncio, os, sys
from pathlib import Path
from kandev.worktrees import Worktrees, plan_worktree
directory, repository, session = sys.argv[1:]
plan = plan_worktree(Path(directory), repository, session_id=session, title="Fix the login!")
asyncio.run(Worktrees(Path(directory), environ=os.environ).create(plan))
"""


@pytest.fixture
def backend(directory: Path, repository: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts another process that creates the same workspace."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        source = str(Path(__file__).parents[2] / "src")
        process = subprocess.Popen(
            [sys.executable, "-c", CREATE_IN_A_PROCESS, str(directory), str(repository), SESSION],
            env={**GIT_ENVIRONMENT, "PYTHONPATH": source},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


async def test_crash_2_a_git_that_outlived_its_backend_is_waited_for(
    backend: Callable[[], subprocess.Popen[bytes]],
    worktrees: Worktrees,
    plan: Workspace,
    repository: Path,
    tmp_path: Path,
) -> None:
    """The backend is killed while its git checks out; the next one neither disturbs that git nor starts a second."""
    async with blocked_checkout(repository, tmp_path) as gate:
        process = backend()
        await until((tmp_path / "filter.log").exists)
        process.kill()
        process.wait()
        assert inspect(plan) is State.HALF_MADE
        timing = Timing(git_lock_s=0.1, git_checkout_s=20)
        impatient = Worktrees(Path(plan.path).parent, environ=GIT_ENVIRONMENT, timing=timing)
        with pytest.raises(Unavailable, match="still works on"):
            await impatient.create(plan)
        waiting = asyncio.create_task(worktrees.validate(plan))
        with gate.open("w") as opened:
            opened.write("go\n")
        await waiting
    assert (Path(plan.path) / "slow").read_text() == "slow"
    assert (tmp_path / "filter.log").read_text() == "x\n"


async def test_race_6_a_cancelled_creation_leaves_no_git_and_can_be_repeated(
    worktrees: Worktrees, plan: Workspace, repository: Path, tmp_path: Path
) -> None:
    """Cancel ends git and what it started, and the next call makes the worktree."""
    pid_file = tmp_path / "pid"
    async with blocked_checkout(repository, tmp_path) as gate:
        git(repository, "config", "filter.gate.smudge", f"trap '' TERM; echo $$ > {pid_file}; read line < {gate}; cat")
        creation = asyncio.create_task(worktrees.create(plan))
        await until(lambda: pid_file.exists() and bool(pid_file.read_text()))
        creation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creation
        filter_pid = int(pid_file.read_text())
        await until(lambda: not Path(f"/proc/{filter_pid}/fd/0").exists())
    assert (await worktrees.create(plan)).how == "made"
    assert (Path(plan.path) / "slow").read_text() == "slow"


async def test_a_hook_that_hangs_is_ended_and_said(
    directory: Path, plan: Workspace, repository: Path, tmp_path: Path
) -> None:
    """The call ends with a typed error, the hook is gone, and what git made is used by the next call."""
    pid_file = tmp_path / "pid"
    hook(repository, f"trap '' TERM; echo $$ > {pid_file}; while :; do sleep 1; done")
    with pytest.raises(TimedOut, match="git did not end"):
        await Worktrees(directory, environ=GIT_ENVIRONMENT, timing=Timing(git_checkout_s=1)).create(plan)
    pid = int(pid_file.read_text())
    await until(lambda: not Path(f"/proc/{pid}/fd/0").exists())
    assert (await Worktrees(directory, environ=GIT_ENVIRONMENT).create(plan)).workspace.prepared


async def test_a_hook_that_stays_in_the_background_does_not_hold_the_call(
    worktrees: Worktrees, plan: Workspace, repository: Path, directory: Path, tmp_path: Path
) -> None:
    """A child that keeps the output and the lock's descriptor open stops neither this call nor the next."""
    pid_file = tmp_path / "pid"
    hook(repository, f"sleep 1000 & echo $! >> {pid_file}")
    try:
        await worktrees.create(plan)
        other = plan_worktree(directory, str(repository), session_id="f" * 20, title="other")
        [first] = pid_file.read_text().split()
        assert Path(f"/proc/{first}/fd/0").exists()
        await Worktrees(directory, environ=GIT_ENVIRONMENT, timing=Timing(git_lock_s=0.1)).create(other)
    finally:
        for pid in pid_file.read_text().split():
            os.kill(int(pid), signal.SIGKILL)


async def test_a_hook_that_fails_does_not_fail_a_worktree_that_is_whole(
    worktrees: Worktrees, plan: Workspace, repository: Path
) -> None:
    """Git passes the hook's exit code on, although all files are there."""
    hook(repository, "exit 3")
    assert (await worktrees.create(plan)).how == "made"


async def test_concurrent_creations_in_one_repository_all_succeed(
    worktrees: Worktrees, repository: Path, directory: Path
) -> None:
    """Eight at once, by two objects as by two programs: eight whole worktrees."""
    second = Worktrees(directory, environ=GIT_ENVIRONMENT)
    plans = [plan_worktree(directory, str(repository), session_id=f"{n}" * 20, title="t") for n in range(8)]
    await asyncio.gather(*((worktrees, second)[n % 2].create(plan) for n, plan in enumerate(plans)))
    for plan in plans:
        assert git(Path(plan.path), "status", "--porcelain") == ""
    assert len(git(repository, "worktree", "list").splitlines()) == 9


async def test_concurrent_creations_of_one_workspace_agree(worktrees: Worktrees, plan: Workspace) -> None:
    """Two calls for one session make one worktree, and both succeed."""
    both = await asyncio.gather(worktrees.create(plan), worktrees.create(plan))
    assert both[0].workspace == both[1].workspace
    assert (Path(plan.path) / "file").exists()


async def test_what_git_refuses_is_said_in_its_words(worktrees: Worktrees, plan: Workspace, repository: Path) -> None:
    """A branch named kandev leaves no room for kandev/...: a typed error, and nothing is left behind."""
    git(repository, "branch", "kandev")
    with pytest.raises(Conflict, match="cannot lock ref") as caught:
        await worktrees.create(plan)
    assert caught.value.reason == "git_failed"
    assert inspect(plan) is State.MISSING


async def test_the_backends_own_git_variables_do_not_lead_astray(
    directory: Path, plan: Workspace, repository: Path, tmp_path: Path
) -> None:
    """A backend that was started from a git hook still works on the session's repository."""
    other = tmp_path / "other"
    git(tmp_path, "init", "-q", str(other))
    environ = {**GIT_ENVIRONMENT, "GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(other)}
    await Worktrees(directory, environ=environ).create(plan)
    assert plan.path in git(repository, "worktree", "list")


async def test_without_git_the_error_says_so(directory: Path, plan: Workspace) -> None:
    """No git on the PATH is a typed error that may be tried again."""
    with pytest.raises(Unavailable, match="git cannot be started: No such file"):
        await Worktrees(directory, environ={"PATH": str(directory)}).create(plan)


async def test_files_are_copied_and_setup_runs_in_the_worktree(
    directory: Path, plan: Workspace, repository: Path
) -> None:
    """Copies keep their mode, a missing one is no error, and setup is told both paths and none of our variables."""
    (repository / ".env").write_text("KEY=1")
    (repository / ".env").chmod(0o600)
    setup = 'echo "in $PWD of $KANDEV_REPOSITORY_PATH, token: $KANDEV_TOKEN"; cat .env; echo oops >&2'
    worktrees = Worktrees(
        directory,
        environ={**GIT_ENVIRONMENT, "KANDEV_TOKEN": "s3cret"},
        setup=setup,
        copy=[".env", "missing", "file"],
    )
    made = await worktrees.create(plan)
    assert made.setup_output == f"in {plan.path} of {repository}, token: \nKEY=1oops\n"
    assert (Path(plan.path) / ".env").stat().st_mode & 0o777 == 0o600
    # It is no change of the agent's as long as it is the same, although git does not ignore it.
    (Path(plan.path) / ".env").write_text("KEY=2")
    with pytest.raises(Conflict, match=r"\.env"):
        await worktrees.remove(made.workspace)
    (Path(plan.path) / ".env").write_text("KEY=1")
    assert (await worktrees.remove(made.workspace)).directory


async def test_setup_runs_again_when_a_worktree_is_rebuilt(directory: Path, plan: Workspace) -> None:
    """What setup made was lost with the directory; where it was found nothing runs."""
    worktrees = Worktrees(directory, environ=GIT_ENVIRONMENT, setup=["touch", "made by setup"])
    made = (await worktrees.create(plan)).workspace
    (Path(plan.path) / "made by setup").unlink()
    await worktrees.validate(made)
    assert not (Path(plan.path) / "made by setup").exists()
    shutil.rmtree(plan.path)
    await worktrees.validate(made)
    assert (Path(plan.path) / "made by setup").exists()


async def test_a_failing_setup_is_said_with_its_bounded_output(directory: Path, plan: Workspace) -> None:
    """Exit code and last lines are in the error, the end of the output with it; the next creation runs it again."""
    failing = Worktrees(directory, environ=GIT_ENVIRONMENT, setup="yes | head -c 1000000; echo no network; exit 7")
    with pytest.raises(Conflict, match="ended with 7: y y no network") as caught:
        await failing.create(plan)
    assert (caught.value.reason, caught.value.details["exit_code"]) == ("setup_failed", 7)
    assert caught.value.details["output"].endswith("y\nno network\n")
    assert len(caught.value.details["output"]) == 64 * 1024
    good = Worktrees(directory, environ=GIT_ENVIRONMENT, setup="echo fine")
    assert (await good.validate(plan)).setup_output == "fine\n"


async def test_a_setup_that_hangs_is_ended(directory: Path, plan: Workspace) -> None:
    """It ends with a typed error after its time."""
    hanging = Worktrees(directory, environ=GIT_ENVIRONMENT, setup=["sleep", "1000"], timing=Timing(setup_s=0.5))
    with pytest.raises(TimedOut, match="did not end"):
        await hanging.create(plan)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", ""])
async def test_sec_2_a_copy_never_leads_out_of_the_repository(name: str, directory: Path) -> None:
    """Such a name is refused before anything runs."""
    with pytest.raises(Invalid, match="inside the repository"):
        Worktrees(directory, environ=GIT_ENVIRONMENT, copy=[name])


async def test_sec_2_a_committed_link_does_not_lead_a_copy_out(
    directory: Path, plan: Workspace, repository: Path, tmp_path: Path
) -> None:
    """A repository that links a directory elsewhere gets nothing written there."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (repository / "config").symlink_to(outside)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "link")
    (repository / "config").unlink()
    (repository / "config").mkdir()
    (repository / "config" / ".env").write_text("x")
    await Worktrees(directory, environ=GIT_ENVIRONMENT, copy=["config/.env"]).create(plan)
    assert list(outside.iterdir()) == []
