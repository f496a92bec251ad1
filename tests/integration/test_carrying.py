"""A branch that is carried to an agent elsewhere, and the work that comes home, with real git and a real agentctl."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from carrying_trip import BINARY, SESSION
from kandev.errors import AgentctlError, Conflict
from kandev.lifecycle.carrier import Carrier, Journey
from kandev.runtimes import AgentctlClient
from kandev.worktrees import Workspace, Worktrees, plan_empty, plan_in_place, plan_worktree
from kandev.worktrees.carrying import Verdict, judge
from repositories import GIT_ENVIRONMENT, commit, git
from sidecars import Sidecar, sidecar

MARK = "Kandev-Uncommitted: yes"


class Far:
    """A worktree here, and the directory elsewhere that it is carried to."""

    def __init__(self, made: Worktrees, workspace: Workspace, path: Path, client: AgentctlClient) -> None:
        self.made = made
        self.workspace = workspace
        self.path = path
        self.here = Path(workspace.path)
        self.client = client
        self.journey = Journey(session_id=SESSION, workspace=workspace, path=str(path))
        self._carrier = Carrier(made.carrying)

    async def carry_in(self) -> list[str]:
        return await self._carrier.carry_in(self.journey, self.client)

    async def bring_home(self) -> list[str]:
        return await self._carrier.bring_home(self.journey, self.client)

    def branch(self) -> str:
        return git(Path(self.workspace.repository_path), "rev-parse", self.workspace.branch)

    def ref(self, name: str) -> str:
        return git(Path(self.workspace.repository_path), "rev-parse", f"refs/kandev/{SESSION}/{name}")

    def lose(self) -> None:
        """The sandbox is gone, and another one has nothing."""
        self.path.rename(self.path.with_name("lost"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", "-b", "main", str(path)], check=True, env=GIT_ENVIRONMENT)
    git(path, "config", "user.name", "A Person")
    git(path, "config", "user.email", "person@example.invalid")
    (path / "gone").write_text("to be deleted")
    commit(path, "file", "one")
    return path


@pytest.fixture
async def agentctl() -> AsyncIterator[Sidecar]:
    async with sidecar() as one:
        yield one


@pytest.fixture
async def far(tmp_path: Path, repository: Path, agentctl: Sidecar) -> Far:
    """A session's worktree, not yet carried anywhere."""
    made = Worktrees(tmp_path / "worktrees", environ=GIT_ENVIRONMENT)
    plan = plan_worktree(tmp_path / "worktrees", str(repository), session_id=SESSION, title="trip")
    workspace = (await made.create(plan)).workspace
    return Far(made, workspace, tmp_path / "elsewhere" / "trip", agentctl.client)


@pytest.mark.parametrize(
    ("branch", "home", "work", "contained", "verdict"),
    [
        ("a", "a", "", False, Verdict.NOTHING),
        ("a", "a", "b", False, Verdict.MOVE),
        ("a", "a", "b", True, Verdict.MOVE),
        ("b", "a", "b", True, Verdict.THERE),
        ("c", "a", "b", True, Verdict.THERE),
        ("c", "a", "b", False, Verdict.MOVED),
        ("", "a", "b", False, Verdict.GONE),
        ("a", "", "b", False, Verdict.MOVED),
    ],
)
def test_the_branch_follows_only_from_where_it_was_left(
    branch: str,
    home: str,
    work: str,
    contained: bool,  # noqa: FBT001 - a table
    verdict: Verdict,
) -> None:
    """Whoever moved or removed it meanwhile keeps what he did."""
    assert judge(branch, home=home, work=work, contained=contained) is verdict


async def test_sources_go_out_with_their_history_and_the_work_comes_home(far: Far) -> None:
    """Commits, deletions and binary files come onto the branch, and the directory here follows."""
    assert await far.carry_in() == []
    assert (far.path / "file").read_text() == "one"
    assert git(far.path, "symbolic-ref", "HEAD") == f"refs/heads/{far.workspace.branch}"
    assert git(far.path, "config", "user.name") == "A Person"
    (far.path / "gone").unlink()
    (far.path / "binary").write_bytes(BINARY)
    work = commit(far.path, "file", "two")
    assert await far.bring_home() == []
    assert far.branch() == work
    assert (far.here / "binary").read_bytes() == BINARY
    assert (far.here / "file").read_text() == "two"
    assert not (far.here / "gone").exists()
    assert git(far.here, "status", "--porcelain") == ""


async def test_what_is_not_committed_comes_as_a_commit_that_says_so(far: Far) -> None:
    """It can be told apart, the agent's own index and HEAD stay, and the next work takes its place."""
    await far.carry_in()
    first = commit(far.path, "file", "two")
    (far.path / "file").write_text("three")
    git(far.path, "add", "file")
    (far.path / "file").write_text("four")
    (far.path / "new").write_text("new")
    before = git(far.path, "status", "--porcelain")
    await far.bring_home()
    assert git(far.path, "status", "--porcelain") == before
    assert git(far.path, "rev-parse", "HEAD") == first
    assert git(far.here, "rev-parse", "HEAD^") == first
    assert MARK in git(far.here, "log", "-1", "--format=%B")
    assert [(far.here / name).read_text() for name in ("file", "new")] == ["four", "new"]
    once = far.branch()
    await far.bring_home()
    assert far.branch() == once, "nothing changed, so nothing is made anew"
    last = commit(far.path, "file", "five")
    await far.bring_home()
    assert far.branch() == last
    assert git(far.here, "rev-parse", "HEAD^") == first, "the commit of what was not committed is gone"
    assert git(far.here, "status", "--porcelain") == ""


async def test_a_new_place_begins_where_the_lost_one_was(far: Far) -> None:
    """What came home uncommitted is uncommitted there again."""
    await far.carry_in()
    first = commit(far.path, "file", "two")
    (far.path / "new").write_text("new")
    await far.bring_home()
    far.lose()
    assert await far.carry_in() == []
    assert git(far.path, "rev-parse", "HEAD") == first
    assert git(far.path, "status", "--porcelain") == "?? new"
    once = far.branch()
    await far.bring_home()
    assert far.branch() == once


async def test_a_place_that_is_there_is_left_as_it_is(far: Far) -> None:
    """The next start sends nothing, and what was not brought home before comes home first."""
    await far.carry_in()
    (far.path / "file").write_text("two")
    assert await far.carry_in() == []
    assert (far.path / "file").read_text() == "two"
    assert (far.here / "file").read_text() == "two"


async def test_work_that_git_cannot_place_is_no_reason_not_to_start(far: Far) -> None:
    """It is said, it is kept, and the next time brings it."""
    await far.carry_in()
    work = commit(far.path, "file", "two")
    lock = Path(far.workspace.repository_path) / f".git/refs/heads/{far.workspace.branch}.lock"
    lock.touch()
    (note,) = await far.carry_in()
    assert "did not come home" in note
    assert far.ref("work") == work
    lock.unlink()
    assert await far.carry_in() == []
    assert far.branch() == work
    assert (far.here / "file").read_text() == "two"


async def test_a_branch_that_moved_here_is_left_alone(far: Far) -> None:
    """It is said where the work is; once it is merged, nothing more is said, and the branch stays the user's."""
    await far.carry_in()
    work = commit(far.path, "file", "agent's")
    mine = commit(far.here, "mine", "user's")
    (note,) = await far.bring_home()
    assert f"`git merge refs/kandev/{SESSION}/work`" in note
    assert (far.branch(), far.ref("work")) == (mine, work)
    assert (far.here / "file").read_text() == "one"
    git(far.here, "merge", "-q", "--no-edit", f"refs/kandev/{SESSION}/work")
    assert await far.bring_home() == []


async def test_a_branch_that_was_removed_is_not_made_again(far: Far) -> None:
    """The work is kept under its own name."""
    await far.carry_in()
    work = commit(far.path, "file", "agent's")
    git(far.here, "checkout", "-q", "--detach")
    git(far.here, "branch", "-q", "-D", far.workspace.branch)
    (note,) = await far.bring_home()
    assert "is gone here" in note
    assert far.ref("work") == work


@pytest.mark.parametrize("ignored", [False, True])
async def test_files_of_the_user_are_not_overwritten(far: Far, ignored: bool) -> None:  # noqa: FBT001 - both kinds
    """Neither what he changed nor what git does not know, ignored or not; the branch waits, and then follows."""
    await far.carry_in()
    name = "local.env" if ignored else "plain"
    if ignored:
        exclude = Path(far.workspace.repository_path) / ".git/info/exclude"
        exclude.parent.mkdir(exist_ok=True)
        exclude.write_text("local.env\n")
    began = far.branch()
    (far.here / name).write_text("user's")
    work = commit(far.path, name, "agent's")
    (note,) = await far.bring_home()
    assert name in note
    assert far.branch() == began
    assert (far.here / name).read_text() == "user's"
    (far.here / name).unlink()
    assert await far.bring_home() == []
    assert far.branch() == work
    assert (far.here / name).read_text() == "agent's"


async def test_what_the_user_changes_elsewhere_in_the_directory_stays(far: Far) -> None:
    """A change in a file that the agent did not touch is no hindrance."""
    await far.carry_in()
    (far.here / "gone").write_text("changed here")
    (far.here / "file").write_text("changed here, too")
    (far.path / "other").write_text("agent's")
    assert await far.bring_home() == []
    assert (far.here / "gone").read_text() == "changed here"
    commit(far.path, "file", "agent's")
    (note,) = await far.bring_home()
    assert "file" in note
    assert (far.here / "file").read_text() == "changed here, too"


async def test_a_detached_head_is_kept_beside_the_branch(far: Far) -> None:
    """The branch has what was committed on it; where the agent is now has a name of its own, and that is said."""
    await far.carry_in()
    on_branch = commit(far.path, "file", "two")
    git(far.path, "checkout", "-q", "--detach")
    detached = commit(far.path, "file", "three")
    (far.path / "left").write_text("left")
    (note,) = await far.bring_home()
    assert "detached HEAD" in note
    assert far.branch() == on_branch
    assert git(far.here, "rev-parse", f"refs/kandev/{SESSION}/elsewhere^") == detached


async def test_branches_that_the_agent_made_come_home(far: Far) -> None:
    """Under names of the session, where they are no branches of the user's."""
    await far.carry_in()
    git(far.path, "checkout", "-q", "-b", "idea")
    idea = commit(far.path, "file", "idea")
    git(far.path, "checkout", "-q", far.workspace.branch)
    assert await far.bring_home() == []
    assert far.ref("heads/idea") == idea
    assert "idea" not in git(far.here, "branch")


async def test_an_agent_that_goes_back_is_followed(far: Far) -> None:
    """Its branch is its own: what it took back, and amended, is taken back here."""
    await far.carry_in()
    began = far.branch()
    commit(far.path, "file", "two")
    await far.bring_home()
    git(far.path, "reset", "-q", "--hard", began)
    assert await far.bring_home() == []
    assert far.branch() == began
    assert (far.here / "file").read_text() == "one"
    amended = commit(far.path, "file", "three")
    await far.bring_home()
    assert far.branch() == amended


async def test_a_branch_without_a_commit_yet_comes_home(far: Far) -> None:
    """An agent on an orphan branch: its files come, without a parent."""
    await far.carry_in()
    git(far.path, "checkout", "-q", "--orphan", "fresh")
    (note,) = await far.bring_home()
    assert "on branch fresh" in note
    assert git(far.here, "show", f"refs/kandev/{SESSION}/elsewhere:file") == "one"


async def test_an_empty_repository_is_refused(tmp_path: Path, far: Far) -> None:
    """There is no commit to send, and that is said."""
    git(tmp_path, "init", "-q", "bare")
    workspace = replace(far.workspace, repository_path=str(tmp_path / "bare"))
    with pytest.raises(Conflict, match="with a commit to send"):
        await far.made.carrying.pack(workspace, SESSION)


async def test_a_shallow_clone_is_refused(tmp_path: Path, repository: Path, far: Far) -> None:
    """A part of a history cannot be carried; the error says what to do."""
    commit(repository, "file", "two")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", str(shallow))
    git(shallow, "branch", far.workspace.branch)
    with pytest.raises(Conflict, match="--unshallow"):
        await far.made.carrying.pack(replace(far.workspace, repository_path=str(shallow)), SESSION)


async def test_submodules_are_said(tmp_path: Path, repository: Path, far: Far) -> None:
    """They are not carried, in neither direction, and both directions say so."""
    other = tmp_path / "other"
    git(tmp_path, "init", "-q", "other")
    commit(other, "inner", "inner")
    git(far.here, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    commit(far.here, "file", "with a submodule")
    (note,) = await far.carry_in()
    assert "Submodules are not carried, and are empty there: sub" in note
    commit(far.path, "file", "two")
    (note,) = await far.bring_home()
    assert "only the commit's number came home: sub" in note


async def test_what_is_not_committed_here_is_said(far: Far) -> None:
    """The agent does not see it."""
    (far.here / "draft").write_text("user's")
    assert await far.carry_in() == ["Only what is committed is carried; the agent does not see draft."]
    assert not (far.path / "draft").exists()


async def test_work_that_could_not_be_placed_outlives_its_place(far: Far) -> None:
    """A new place begins at the branch; the old work gets a name of its own before other work comes."""
    await far.carry_in()
    work = commit(far.path, "file", "agent's")
    commit(far.here, "mine", "user's")
    await far.bring_home()
    far.lose()
    *_, note = await far.carry_in()
    kept = f"refs/kandev/{SESSION}/kept/{work[:12]}"
    assert kept in note
    commit(far.path, "other", "second")
    assert await far.bring_home() == []
    assert git(far.here, "rev-parse", kept) == work


async def test_a_merge_under_way_comes_home_as_it_stands(far: Far) -> None:
    """Conflicts are in the files, and the agent's merge goes on."""
    await far.carry_in()
    git(far.path, "checkout", "-q", "-b", "side")
    commit(far.path, "file", "side")
    git(far.path, "checkout", "-q", far.workspace.branch)
    commit(far.path, "file", "main")
    with pytest.raises(subprocess.CalledProcessError):
        git(far.path, "merge", "-q", "side")
    await far.bring_home()
    assert "<<<<<<<" in (far.here / "file").read_text()
    assert git(far.path, "diff", "--name-only", "--diff-filter=U") == "file"


async def test_directories_in_place_and_without_a_repository(tmp_path: Path, far: Far, repository: Path) -> None:
    """One is refused, the other is made empty, and nothing comes home from there."""
    carrier = Carrier(far.made.carrying)
    with pytest.raises(Conflict, match="in place"):
        await carrier.carry_in(replace(far.journey, workspace=plan_in_place(str(repository))), far.client)
    journey = replace(far.journey, workspace=plan_empty(tmp_path / "worktrees", session_id=SESSION))
    assert await carrier.carry_in(journey, far.client) == []
    (far.path / "file").write_text("agent's")
    assert await carrier.carry_in(journey, far.client) == []
    assert await carrier.bring_home(journey, far.client) == []
    assert (far.path / "file").read_text() == "agent's"


async def test_something_else_at_that_place_is_left_alone(far: Far) -> None:
    """It is refused, and nothing is made."""
    far.path.parent.mkdir()
    far.path.write_text("a file")
    with pytest.raises(Conflict, match="left alone"):
        await far.carry_in()
    assert far.path.read_text() == "a file"


async def test_a_place_that_is_gone_is_an_error_and_no_loss(far: Far) -> None:
    """Nothing is taken for the agent's work where there is nothing."""
    await far.carry_in()
    began = far.branch()
    far.lose()
    with pytest.raises(AgentctlError) as raised:
        await far.bring_home()
    assert raised.value.reason == "workspace_missing"
    assert far.branch() == began


async def test_a_bundle_cannot_name_what_is_ours(tmp_path: Path, far: Far) -> None:
    """Where the branch was left is told by us alone: a made-up bundle cannot claim that it was elsewhere."""
    await far.carry_in()
    mine = commit(far.here, "mine", "user's")
    work = commit(far.path, "file", "agent's")
    for name, value in (("work", work), ("home", work), ("kept/x", work)):
        git(far.path, "update-ref", f"refs/kandev/{name}", value)
    bundle = tmp_path / "bundle"
    names = ("refs/kandev/work", "refs/kandev/home", "refs/kandev/kept/x")
    git(far.path, "bundle", "create", "-q", str(bundle), *names)
    placed = await far.made.carrying.place(far.workspace, SESSION, work=work, bundle=bundle)
    assert placed.verdict is Verdict.MOVED
    assert (far.branch(), far.ref("work")) == (mine, work)
    assert far.ref("home") != work
    assert "kept" not in git(far.here, "for-each-ref", f"refs/kandev/{SESSION}")


async def test_a_deleted_session_leaves_no_name(far: Far) -> None:
    """Its branch is the caller's business."""
    await far.carry_in()
    commit(far.path, "file", "two")
    await far.bring_home()
    await far.made.carrying.forget(far.workspace, SESSION)
    assert git(far.here, "for-each-ref", "refs/kandev") == ""
    assert far.branch()
