"""UI-4: what is wrong around the agent - its folder, its mode - is said with what was kept, and mended."""

import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser.play import Play

MODES = ["default", "plan"]


def git(directory: Path, *arguments: str) -> None:
    """Git has done this."""
    subprocess.run(["git", "-C", str(directory), *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with one commit."""
    path = tmp_path / "repository"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    git(path, "-c", "user.name=T", "-c", "user.email=t@example.com", "commit", "-q", "--allow-empty", "-m", "first")
    return path


def test_work_2_a_folder_that_is_gone_is_rebuilt(play: Play, repository: Path) -> None:
    """Something else stands in its place: nothing starts, it is said what is kept, and a button mends it."""
    play.begin("native", task={"repository_path": str(repository)})
    worktree = Path(play.session.status()["worktree_path"])
    worktree.rename(worktree.with_name("elsewhere"))
    worktree.write_text("somebody's\n")
    tab = play.come_back()
    tab.sees_moment(str(worktree))
    tab.sees_moment("Commits are kept, uncommitted changes are not.")
    tab.sees("heard: one")
    tab.shot("workspace-missing")
    worktree.unlink()
    tab.press("Rebuild the folder")
    tab.sees_moment("remembers this conversation")
    tab.answered("two", "heard: two | memory: 1")
    assert (worktree / ".git").exists()


def test_work_1_a_folder_that_was_made_again_is_told(play: Play, repository: Path) -> None:
    """What was lost stands above the field beside how the agent came back, and goes with the next message."""
    play.begin("native", task={"repository_path": str(repository)})
    worktree = Path(play.session.status()["worktree_path"])
    shutil.rmtree(worktree)
    tab = play.come_back()
    tab.sees_moment("directory was gone")
    tab.sees_moment("never committed are lost. The agent remembers this conversation.")
    tab.sees("was made again from branch")
    tab.shot("workspace-again")
    tab.answered("two", "heard: two | memory: 1")
    tab.sees_no_moment()


def test_wire_12_a_mode_that_was_not_restored(play: Play) -> None:
    """What was written waits until a person agrees, and is sent then."""
    play.begin("native", modes=MODES)
    play.session.call("session.set_mode", mode_id="plan")
    slow = {"steps": [{"gate": "restore"}, {"replay": True}]}
    tab = play.come_back(modes=["default"], on={"session/load": slow, "session/resume": slow})
    tab.send("two")  # while it is coming back; later it would say that the person agrees
    expect(tab.waiting).to_contain_text("Queued")
    play.agent.open_gate("restore")
    tab.sees_moment("did not take back the mode that was set. Nothing is sent until you agree.")
    expect(tab.waiting).to_contain_text("two")
    tab.shot("mode-not-restored")
    tab.press("Go on all the same")
    tab.sees("heard: two")
    expect(tab.waiting).to_have_count(0)
