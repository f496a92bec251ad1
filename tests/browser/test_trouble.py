"""UI-4: what is wrong around the agent - its folder, its mode, the disk - is said with what was kept, and mended."""

import contextlib
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser.desk import Desk
from browser.play import Play
from browser.stage import Stage
from conversation import Cast

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


def test_wire_12_a_mode_that_was_not_restored(play: Play) -> None:
    """What was written waits until a person agrees, and is sent then."""
    play.begin("native", modes=MODES)
    play.session.call("session.set_mode", mode_id="plan")
    tab = play.come_back(modes=["default"])
    tab.send("two")
    tab.sees_moment("did not take back the mode that was set. Nothing is sent until you agree.")
    expect(tab.waiting).to_contain_text("two")
    tab.shot("mode-not-restored")
    tab.press("Go on all the same")
    tab.sees("heard: two")
    expect(tab.waiting).to_have_count(0)


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A file system of 16 MB at `path`, which is empty."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", path], check=False).returncode:
        pytest.skip("no file system may be mounted here, so there is no small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
        path.rmdir()


@pytest.fixture
def cramped(tmp_path: Path, cast: Cast) -> Iterator[Stage]:
    """A backend whose home is a small disk."""
    stage = Stage(tmp_path, config=cast.config)
    with small_disk(stage.backend.home), stage:
        yield stage


def fill(home: Path) -> None:
    """Leaves no byte of room, neither on the disk nor in the log of the database."""
    with contextlib.closing(sqlite3.connect(home / "kandev.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (home / "ballast").open("wb", 0) as ballast:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while ballast.write(bytes(size)) == size:
                    pass


def test_hist_12_a_full_disk_keeps_what_is_typed(desk: Desk, cramped: Stage) -> None:
    """The message is refused in words and stays; once there is room, one button sends it."""
    session = cramped.create("remember oak")
    tab = desk.tab(session.path)
    tab.sees("I will remember the word oak")
    expect(tab.page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    fill(cramped.backend.home)
    tab.send("what is the word?")
    expect(tab.waiting).to_contain_text("Not sent")
    expect(tab.waiting).to_contain_text("No room")
    tab.shot("disk-full")
    (cramped.backend.home / "ballast").unlink()
    tab.press("Try again")
    tab.sees("The word is oak")
    expect(tab.waiting).to_have_count(0)
    assert session.prompts() == ["remember oak", "what is the word?"]
