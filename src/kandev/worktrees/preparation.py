"""What a fresh worktree gets besides git's files: copies such as .env, and the setup command of [worktrees]."""

import asyncio
import contextlib
import filecmp
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from kandev.errors import Conflict, Invalid
from kandev.worktrees.git import LOCAL_VARIABLES
from kandev.worktrees.program import run_program
from kandev.worktrees.workspace import Repository, Workspace


class Preparation:
    """Copies files from the repository and runs a command. Raises `Invalid` for a name that leads out of it."""

    def __init__(
        self, *, setup: str | Sequence[str], copy: Sequence[str], environ: Mapping[str, str], timeout_s: float
    ) -> None:
        """Take the command (a text is given to a shell) and the names of the files, relative to the repository."""
        for name in copy:
            _check_name(name)
        self._setup = setup
        self._copy = tuple(copy)
        self._timeout_s = timeout_s
        # It is the user's own command, so it gets the user's environment; the backend's own names stay here.
        self._environ = {
            name: value
            for name, value in environ.items()
            if name not in LOCAL_VARIABLES and not name.startswith("KANDEV_")
        }

    async def run(self, workspace: Workspace, repository: Repository) -> str:
        """Copy, then run the setup; the end of its output. Raises `Conflict` (setup_failed) and `TimedOut`."""
        for name in self._copy:
            await asyncio.to_thread(_copy_file, repository.top / name, Path(workspace.path), name)
        if not self._setup:
            return ""
        told = {"KANDEV_WORKTREE_PATH": workspace.path, "KANDEV_REPOSITORY_PATH": str(repository.top)}
        finished = await run_program(
            _shell_command(self._setup),
            cwd=workspace.path,
            environ={**self._environ, **told},
            timeout_s=self._timeout_s,
        )
        if finished.code != 0:
            raise Conflict(
                f"The setup command ended with {finished.code}: {finished.last_words}",
                reason="setup_failed",
                exit_code=finished.code,
                output=finished.stdout,
            )
        return finished.stdout

    def is_unchanged_copy(self, name: str, path: Path, repository: Repository) -> bool:
        """True when a file of the worktree was copied there by us and is still as it was."""
        if name not in self._copy:
            return False
        with contextlib.suppress(OSError):
            return filecmp.cmp(repository.top / name, path / name, shallow=False)
        return False


def _shell_command(setup: str | Sequence[str]) -> list[str]:
    """Both streams in one, in the order in which they were written."""
    if isinstance(setup, str):
        return ["/bin/sh", "-c", f"exec 2>&1\n{setup}"]
    return ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *setup]


def _check_name(name: str) -> None:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise Invalid(f"[worktrees] copy: {name!r} must be a file's name inside the repository", field="worktrees.copy")


def _copy_file(source: Path, worktree: Path, name: str) -> None:
    """Copy one file with its mode. One that is not there, or that git already put in its place, is left."""
    target = worktree / name
    # A committed link must not lead the copy out of the worktree.
    if not source.is_file() or target.exists() or not target.parent.resolve().is_relative_to(worktree.resolve()):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)
