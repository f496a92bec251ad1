"""A disk without room: what is typed is kept, and sent once there is room."""

import contextlib
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser.desk import Desk
from browser.stage import Stage
from conversation import Cast


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
def stage(tmp_path: Path, cast: Cast) -> Iterator[Stage]:
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


def test_hist_12_a_full_disk_keeps_what_is_typed(desk: Desk, stage: Stage) -> None:
    """The message is refused in words and stays; once there is room, one button sends it."""
    session = stage.create("remember oak")
    tab = desk.tab(session.path)
    tab.sees("I will remember the word oak")
    expect(tab.page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    fill(stage.backend.home)
    tab.send("what is the word?")
    expect(tab.waiting).to_contain_text("Not sent")
    expect(tab.waiting).to_contain_text("No room")
    tab.shot("disk-full")
    (stage.backend.home / "ballast").unlink()
    tab.press("Try again")
    tab.sees("The word is oak")
    expect(tab.waiting).to_have_count(0)
    assert session.prompts() == ["remember oak", "what is the word?"]
