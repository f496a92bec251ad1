"""Directories of sessions: made, validated, rebuilt, removed (WORK-1 to WORK-7).

Nothing that an agent or a person may have written is removed unless a person said `force`; what belongs to somebody
else is not removed even then.
"""

import asyncio
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from kandev.agentctl.failpoints import failpoint
from kandev.domain.constants import Timing
from kandev.errors import Conflict, Invalid, WorkspaceMissing
from kandev.worktrees.carrying import Carrying
from kandev.worktrees.git import Git
from kandev.worktrees.preparation import Preparation
from kandev.worktrees.workspace import Repository, State, Workspace, find_repository, inspect, is_locked

_SHOWN_CHANGES = 5


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A directory that a session can work in. `note` is a line for the transcript; empty when all is as expected."""

    workspace: Workspace
    how: Literal["found", "made", "rebuilt"]
    note: str = ""
    setup_output: str = ""


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What a removal did. `note` says why something was left; empty when nothing was."""

    directory: bool
    branch: bool
    note: str = ""


class Worktrees:
    """Makes and removes workspaces; one change at a time in each repository."""

    def __init__(
        self,
        directory: Path,
        *,
        environ: Mapping[str, str],
        setup: str | Sequence[str] = (),
        copy: Sequence[str] = (),
        timing: Timing | None = None,
    ) -> None:
        """Take the home's `worktrees` directory, the backend's environment, and [worktrees] of the configuration."""
        timing = timing or Timing()
        self._git = Git(directory / ".locks", environ=environ, timing=timing)
        self.carrying = Carrying(self._git, directory / ".carried")
        self._preparation = Preparation(setup=setup, copy=copy, environ=environ, timeout_s=timing.setup_s)

    async def check_repository(self, repository_path: str, base_branch: str = "") -> str:
        """Return the commit that a worktree would begin at. Raises `Invalid`, which says what to do (WORK-7)."""
        return await self._git.start_commit(_repository(repository_path), base_branch)

    async def create(self, workspace: Workspace) -> Prepared:
        """Make the directory of a session; store the workspace that this returns. After a crash, call it again.

        Raises `Invalid` for what is no repository or has no commit, `WorkspaceMissing` when the path is taken,
        `Conflict` with reason git_failed or setup_failed, `TimedOut` when git, a hook of the repository or the setup
        hangs, and `Unavailable` without git.
        """
        if workspace.kind == "worktree":
            await self._make_worktree(workspace)
            return await self._prepared(workspace, "made")
        if workspace.kind == "in_place" and inspect(workspace) is not State.READY:
            raise Invalid(f"{workspace.path} is no directory", field="repository_path")
        if workspace.kind == "empty":
            _make_empty(workspace)
        return Prepared(workspace=replace(workspace, prepared=True), how="made")

    async def validate(self, workspace: Workspace) -> Prepared:
        """Make sure that the session's directory is there, rebuilding it if need be (WORK-1, WORK-2, WORK-3).

        A workspace that was never prepared is created. Raises `WorkspaceMissing` when it cannot be rebuilt or is
        something else now, else as `create`. An agent is started only in the path that this returns (WORK-5).
        """
        if not workspace.prepared:
            return await self.create(workspace)
        if inspect(workspace) is State.READY:
            return Prepared(workspace=workspace, how="found")
        return await self.rebuild(workspace)

    async def rebuild(self, workspace: Workspace) -> Prepared:
        """Make a lost directory again at the same path, from its branch; then copy files and run the setup.

        What is there and whole stays as it is, and only the setup runs. Raises as `validate` does.
        """
        if workspace.kind == "in_place":
            if inspect(workspace) is not State.READY:
                raise WorkspaceMissing(f"{workspace.path} is gone. Put it back, then resume.", path=workspace.path)
            return Prepared(workspace=workspace, how="found")
        if workspace.kind == "empty":
            made = _make_empty(workspace)
            note = f"The session's directory was gone, with its files. {workspace.path} is there again, empty."
            return _told(workspace, note) if made else Prepared(workspace=workspace, how="found")
        if not await self._make_worktree(replace(workspace, prepared=True)):
            return await self._prepared(workspace, "found")
        note = (
            f"The session's directory was gone. {workspace.path} was made again from branch {workspace.branch}; "
            "changes that were never committed are lost."
        )
        return replace(await self._prepared(workspace, "rebuilt"), note=note)

    async def remove(self, workspace: Workspace, *, force: bool = False, delete_branch: bool = False) -> Removed:
        """Remove the session's directory, and its branch when told so. What is gone already is no error (STATE-9).

        Without `force` (a person's word) raises `Conflict`: reason uncommitted_changes (WORK-4); unmerged_commits,
        when commits would be lost with the branch or with a detached HEAD; worktree_locked; git_failed. A directory
        in place, and one that is somebody else's now, are left alone always.
        """
        if workspace.kind == "in_place":
            return Removed(directory=False, branch=False)
        state = inspect(workspace)
        if state is State.FOREIGN:
            note = f"{workspace.path} is something else now, and was left alone."
            return Removed(directory=False, branch=False, note=note)
        if workspace.kind == "empty":
            return await _remove_plain(workspace, force=force)
        repository = find_repository(workspace.repository_path)
        if repository is None:
            return await _remove_plain(workspace, force=force)
        async with self._git.exclusive(repository) as lock:
            if not force:
                await self._refuse_losses(workspace, repository, delete_branch=delete_branch)
            directory = await self._remove_worktree(workspace, repository, lock)
            branch = delete_branch and await self._delete_branch(workspace, repository, lock)
        return Removed(directory=directory, branch=branch)

    async def check_removable(self, workspace: Workspace, *, delete_branch: bool = False) -> None:
        """Raise what `remove` without force would raise; remove nothing."""
        if workspace.kind == "in_place" or inspect(workspace) is State.FOREIGN:
            return
        repository = find_repository(workspace.repository_path) if workspace.kind != "empty" else None
        if repository is None:
            _refuse_files(workspace)
            return
        async with self._git.exclusive(repository):
            await self._refuse_losses(workspace, repository, delete_branch=delete_branch)

    async def _make_worktree(self, workspace: Workspace) -> bool:
        """Have git make what is not there. True when it did. A branch is made only for what was never prepared."""
        repository = _repository_of(workspace)
        async with self._git.exclusive(repository) as lock:
            # Looked at under the lock: a git of an earlier backend may have finished meanwhile.
            state = inspect(workspace)
            if state is State.READY:
                return False
            if state is State.FOREIGN:
                raise WorkspaceMissing(
                    f"{workspace.path} is something else now, and was left alone. Move it away, then rebuild.",
                    path=workspace.path,
                )
            if state is State.DAMAGED or (state is State.HALF_MADE and workspace.prepared):
                raise WorkspaceMissing(
                    f"Git does not know {workspace.path} any more, but it holds files, which were left alone. "
                    "Save what you need, move it away, then rebuild.",
                    path=workspace.path,
                )
            begin = await self._beginning(workspace, repository)
            if state is State.HALF_MADE:
                # No agent ever ran here, and git itself was killed: all files are copies of what is committed.
                await _discard(Path(workspace.path))
            await self._add(workspace, repository, begin, lock)
        return True

    async def _beginning(self, workspace: Workspace, repository: Repository) -> tuple[str, ...]:
        """The arguments of `worktree add` that say which branch, before and behind the path."""
        if await self._git.has_branch(repository, workspace.branch):
            return (workspace.path, workspace.branch)
        if workspace.prepared:
            raise WorkspaceMissing(
                f"{workspace.path} is gone, and so is branch {workspace.branch}. The transcript is kept; restore the "
                "branch to go on, or start a new session.",
                path=workspace.path,
                branch=workspace.branch,
            )
        commit = await self._git.start_commit(repository, workspace.base_branch)
        return ("--no-track", "-b", workspace.branch, workspace.path, commit)

    async def _add(self, workspace: Workspace, repository: Repository, begin: Sequence[str], lock: int) -> None:
        Path(workspace.path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Forced twice: git still lists a lost worktree, maybe as locked, and that one entry is to be taken over.
        # Never pruned: others' worktrees may be on a disk that is away.
        failpoint("worktree.before_add")
        added = await self._git.write(repository.top, "worktree", "add", "-q", "-f", "-f", *begin, lock=lock)
        failpoint("worktree.after_add")
        if added.code != 0 and inspect(workspace) is not State.READY:
            raise Conflict(f"git cannot make {workspace.path}: {added.last_words}", reason="git_failed")

    async def _prepared(self, workspace: Workspace, how: Literal["found", "made", "rebuilt"]) -> Prepared:
        failpoint("worktree.before_setup")
        output = await self._preparation.run(workspace, _repository_of(workspace))
        failpoint("worktree.after_setup")
        return Prepared(workspace=replace(workspace, prepared=True), how=how, setup_output=output)

    async def _refuse_losses(self, workspace: Workspace, repository: Repository, *, delete_branch: bool) -> None:
        path, state = Path(workspace.path), inspect(workspace)
        if state is State.DAMAGED or (state is State.HALF_MADE and workspace.prepared):
            raise _uncommitted(workspace, "git cannot tell what was changed in it")
        if state is State.READY:
            if is_locked(workspace):
                raise Conflict(f"{workspace.path} is locked. Unlock it with git, or force.", reason="worktree_locked")
            changes = await self._git.changes(path)
            names = [name for status, name in changes if not self._is_copy(status, name, path, repository)]
            if names:
                raise _uncommitted(workspace, ", ".join(names[:_SHOWN_CHANGES]))
            _refuse_unmerged(workspace, await self._git.lost_without(path, "HEAD"), "its HEAD")
        if delete_branch and await self._git.has_branch(repository, workspace.branch):
            ref = f"refs/heads/{workspace.branch}"
            lost = await self._git.lost_without(repository.top, ref, branch=workspace.branch)
            _refuse_unmerged(workspace, lost, f"branch {workspace.branch}")

    def _is_copy(self, status: str, name: str, path: Path, repository: Repository) -> bool:
        return status == "??" and self._preparation.is_unchanged_copy(name, path, repository)

    async def _remove_worktree(self, workspace: Workspace, repository: Repository, lock: int) -> bool:
        """Files first, by one rename: a removal that is killed in the middle is finished by the next."""
        found = await _discard(Path(workspace.path))
        # Forced: all that could be lost was looked at before. It fails when git does not know the path any more.
        failpoint("worktree.before_forget")
        await self._git.write(repository.top, "worktree", "remove", "--force", "--force", workspace.path, lock=lock)
        failpoint("worktree.after_forget")
        return found

    async def _delete_branch(self, workspace: Workspace, repository: Repository, lock: int) -> bool:
        if not await self._git.has_branch(repository, workspace.branch):
            return False
        failpoint("worktree.before_branch")
        deleted = await self._git.write(repository.top, "branch", "-q", "-D", workspace.branch, lock=lock)
        failpoint("worktree.after_branch")
        if deleted.code != 0:
            raise Conflict(f"git cannot delete {workspace.branch}: {deleted.last_words}", reason="git_failed")
        return True


def _repository(path: str) -> Repository:
    repository = find_repository(path)
    if repository is None:
        what = "is no git repository" if Path(path).is_dir() else "is no directory"
        raise Invalid(f"{path} {what}. Run `git init` there and commit, or use it in place.", field="repository_path")
    return repository


def _repository_of(workspace: Workspace) -> Repository:
    """The repository of a workspace; once that was prepared its loss is the loss of the workspace."""
    try:
        return _repository(workspace.repository_path)
    except Invalid as error:
        if not workspace.prepared:
            raise
        raise WorkspaceMissing(
            f"The repository {workspace.repository_path} is gone. Put it back, then resume.", path=workspace.path
        ) from error


def _make_empty(workspace: Workspace) -> bool:
    state = inspect(workspace)
    if state is State.FOREIGN:
        raise WorkspaceMissing(f"{workspace.path} is something else now. Move it away.", path=workspace.path)
    Path(workspace.path).mkdir(mode=0o700, parents=True, exist_ok=True)
    return state is State.MISSING


def _told(workspace: Workspace, note: str) -> Prepared:
    return Prepared(workspace=replace(workspace, prepared=True), how="rebuilt", note=note)


async def _remove_plain(workspace: Workspace, *, force: bool) -> Removed:
    """Remove a directory that no git watches over: only an empty one without force."""
    if not force:
        _refuse_files(workspace)
    return Removed(directory=await _discard(Path(workspace.path)), branch=False)


def _refuse_files(workspace: Workspace) -> None:
    path = Path(workspace.path)
    if path.exists() and any(path.iterdir()):
        raise _uncommitted(workspace, "no git keeps the files in it")


async def _discard(path: Path) -> bool:
    """Move a directory out of the way at once, then remove it, and what an earlier removal left. True if it was there.

    The path is free even when the removal is cancelled or the backend is killed in the middle of it.
    """
    removed = path.parent / ".removed"
    if not path.exists():
        return False
    removed.mkdir(mode=0o700, exist_ok=True)
    failpoint("worktree.before_move")
    path.rename(removed / secrets.token_hex(8))
    failpoint("worktree.after_move")
    await asyncio.to_thread(_empty, removed)
    return True


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        # Another removal may be at the same entry; what cannot be removed is tried again by the next.
        shutil.rmtree(entry, ignore_errors=True)


def _uncommitted(workspace: Workspace, what: str) -> Conflict:
    return Conflict(
        f"{workspace.path} has uncommitted changes: {what}. Commit them, or force.",
        reason="uncommitted_changes",
        path=workspace.path,
    )


def _refuse_unmerged(workspace: Workspace, lost: int, where: str) -> None:
    if lost:
        raise Conflict(
            f"{lost} commits are only on {where} of {workspace.path}. Merge or push them, or force.",
            reason="unmerged_commits",
            path=workspace.path,
            commits=lost,
        )
