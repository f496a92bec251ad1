"""A session's directory: which one it is, and what is there now. Nothing here changes anything."""

import os
import re
import unicodedata
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

from kandev.errors import Invalid

_SLUG_CHARS = 32
_SHORT_ID = 10
_POINTER = "gitdir: "
# Written by git while it makes a worktree (in the C locale), and removed when all files are there.
_INITIALIZING = "initializing"


class Workspace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a session works. Store it before `Worktrees.create`, and again what that returns (WORK-6).

    `path` is sent to the agent as it stands (WIRE-11). `prepared` is true once git has finished: from then on an
    agent may have written here, and nothing is ever remade over what is there.
    """

    kind: Literal["worktree", "in_place", "empty"]
    id: str
    path: str
    branch: str = ""
    base_branch: str = ""
    repository_path: str = ""
    prepared: bool = False


class State(StrEnum):
    """What is found at a workspace's path."""

    READY = "ready"
    MISSING = "missing"  # nothing there, or an empty directory without git's data
    HALF_MADE = "half_made"  # git was killed while it made the worktree
    DAMAGED = "damaged"  # files, and a pointer to git's data that leads nowhere
    FOREIGN = "foreign"  # a file, a link, or a directory of somebody else


class Repository(msgspec.Struct, frozen=True):
    """A git repository: the directory of its files, and the directory that all its worktrees share."""

    top: Path
    common: Path


def plan_worktree(
    directory: Path, repository_path: str, *, session_id: str, title: str, base_branch: str = ""
) -> Workspace:
    """Name a new worktree and its branch. An empty `base_branch` is the commit that the repository is on."""
    if not session_id.isalnum():
        raise Invalid("a session's id has letters and digits only", field="session_id")
    name = f"{_slug(title)}-{session_id[:_SHORT_ID]}"
    return Workspace(
        kind="worktree",
        id=name,
        path=str(directory / name),
        branch=f"kandev/{name}",
        base_branch=base_branch,
        repository_path=os.path.abspath(repository_path),
    )


def plan_in_place(path: str) -> Workspace:
    """The session works in that directory itself, whatever it is."""
    absolute = os.path.abspath(path)
    return Workspace(kind="in_place", id="", path=absolute, repository_path=absolute)


def plan_empty(directory: Path, *, session_id: str) -> Workspace:
    """Name an empty directory of the session's own (WORK-7)."""
    if not session_id.isalnum():
        raise Invalid("a session's id has letters and digits only", field="session_id")
    return Workspace(kind="empty", id=session_id, path=str(directory / session_id))


def find_repository(path: str) -> Repository | None:
    """The repository that `path` is in, or None. Reads a few small files, and starts no git."""
    start = Path(path)
    if not start.is_dir():
        return None  # and not what stands around the place where it was
    for directory in (start, *start.parents):
        pointer = directory / ".git"
        if pointer.is_dir():
            return Repository(directory, pointer.resolve())
        if pointer.is_file():
            administration = _pointed_to(pointer)
            return Repository(directory, _common_of(administration)) if administration else None
        if (directory / "HEAD").is_file() and (directory / "objects").is_dir():
            return Repository(directory, directory.resolve())
    return None


def inspect(workspace: Workspace) -> State:
    """Tell what is at the workspace's path. No git is started: this is on the way of each resume."""
    path = Path(workspace.path)
    if workspace.kind == "in_place":
        return State.READY if path.is_dir() else State.FOREIGN if path.exists() else State.MISSING
    if not os.path.lexists(path):
        return State.MISSING
    if path.is_symlink() or not path.is_dir():
        return State.FOREIGN
    if workspace.kind == "empty":
        return State.READY
    return _inspect_worktree(path, workspace.repository_path)


def is_locked(workspace: Workspace) -> bool:
    """True when somebody ran `git worktree lock` on it."""
    administration = _pointed_to(Path(workspace.path) / ".git")
    return administration is not None and (administration / "locked").exists()


def _inspect_worktree(path: Path, repository_path: str) -> State:
    pointer = path / ".git"
    if not os.path.lexists(pointer):
        return State.FOREIGN if any(path.iterdir()) else State.MISSING
    if pointer.is_symlink() or not pointer.is_file():
        return State.FOREIGN
    administration = _pointed_to(pointer)
    if administration is None or not administration.is_dir():
        return State.DAMAGED
    if not _belongs(administration, pointer, repository_path):
        return State.FOREIGN
    return _progress(administration)


def _belongs(administration: Path, pointer: Path, repository_path: str) -> bool:
    """True when this is git's data of our repository, and points back: a copied worktree shares its pointer."""
    repository = find_repository(repository_path)
    if repository is None or _common_of(administration) != repository.common:
        return False
    back = _text(administration / "gitdir")
    return os.path.realpath(administration / back) == os.path.realpath(pointer)


def _progress(administration: Path) -> State:
    if _text(administration / "locked") == _INITIALIZING:
        return State.HALF_MADE
    return State.READY if (administration / "HEAD").is_file() else State.DAMAGED


def _pointed_to(pointer: Path) -> Path | None:
    text = _text(pointer)
    if not text.startswith(_POINTER):
        return None
    return (pointer.parent / text[len(_POINTER) :]).resolve()


def _common_of(administration: Path) -> Path:
    """`.git` of the repository, from `.git/worktrees/NAME`. A submodule's or moved `.git` is its own."""
    named = _text(administration / "commondir")
    if named:
        return (administration / named).resolve()
    # Git writes this file late: without it a worktree is known by its place.
    return administration.parent.parent if administration.parent.name == "worktrees" else administration


def _text(file: Path) -> str:
    """The text of one of git's one-line files; empty when it is not there."""
    try:
        return os.fsdecode(file.read_bytes()).strip()
    except OSError:
        return ""


def _slug(title: str) -> str:
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain)[:_SLUG_CHARS].strip("-") or "task"
