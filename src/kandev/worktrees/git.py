"""Git, asked and told: without prompts, without a shell, within a time, and one change at a time per repository."""

import asyncio
import contextlib
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from kandev.domain.constants import Timing
from kandev.errors import Conflict, Invalid, Unavailable
from kandev.worktrees.program import Finished, run_program
from kandev.worktrees.workspace import Repository

# They point git at a repository, and would beat -C; the backend may have been started from a git hook.
LOCAL_VARIABLES: Final = frozenset(
    (
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"),
        *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_PREFIX", "GIT_GRAFT_FILE", "GIT_SHALLOW_FILE"),
        *("GIT_IMPLICIT_WORK_TREE", "GIT_CONFIG", "GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT"),
        *("GIT_REPLACE_REF_BASE", "GIT_INTERNAL_SUPER_PREFIX"),
    )
)
# Nobody can answer a question here; and the texts that are read, such as `initializing`, are those of the C locale.
_NO_PROMPT: Final = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "SSH_ASKPASS_REQUIRE": "never",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}
# Nothing that stays in the background is started on the way.
_OPTIONS: Final = ("-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false")
_LOCK_POLL_S: Final = 0.05


class Git:
    """Runs git. `locks` is the directory of one lock file per repository."""

    def __init__(self, locks: Path, *, environ: Mapping[str, str], timing: Timing) -> None:
        """Take the environment of git, without the variables that would point it elsewhere."""
        self._locks = locks
        self._timing = timing
        self._environ = {**{k: v for k, v in environ.items() if k not in LOCAL_VARIABLES}, **_NO_PROMPT}
        self._turns: dict[Path, asyncio.Lock] = {}

    async def ask(self, where: Path, *arguments: str) -> Finished:
        """Ask something that takes no long time. The exit code is the caller's to judge."""
        return await self._run(where, arguments, self._timing.git_s, ())

    async def write(self, where: Path, *arguments: str, lock: int) -> Finished:
        """Change something; may write a whole tree. `lock` is what `exclusive` gave."""
        return await self._run(where, arguments, self._timing.git_checkout_s, (lock,))

    async def start_commit(self, repository: Repository, base_branch: str) -> str:
        """The commit of a branch (here, else at origin), tag or other name; of HEAD when it is empty.

        Raises `Invalid` when there is none.
        """
        if base_branch.startswith("-"):
            raise Invalid(f"{base_branch!r} is no name of a branch", field="base_branch")
        names = (f"refs/heads/{base_branch}", f"refs/remotes/origin/{base_branch}", base_branch)
        for name in names if base_branch else ("HEAD",):
            found = await self.ask(repository.top, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
            if found.code == 0:
                return found.stdout.strip()
            if found.stderr.strip():
                # Quiet about a name that is not there; anything else, such as an owner it does not trust, is said.
                raise Conflict(f"git refuses {repository.top}: {found.last_words}", reason="git_failed")
        if base_branch:
            raise Invalid(f"{repository.top} has no branch {base_branch!r}", field="base_branch")
        raise Invalid(
            f"{repository.top} has no commit yet. Commit something (git add, git commit), or use it in place.",
            field="repository_path",
        )

    async def has_branch(self, repository: Repository, branch: str) -> bool:
        """True when the branch exists in the repository itself."""
        found = await self.ask(repository.top, "show-ref", "--verify", "--quiet", f"refs/heads/{branch}")
        if found.code not in {0, 1}:
            # Not known is not "gone": git may refuse the whole repository.
            raise Conflict(f"git refuses {repository.top}: {found.last_words}", reason="git_failed")
        return found.code == 0

    async def changes(self, path: Path) -> list[tuple[str, str]]:
        """Uncommitted changes as (status of two letters, path), untracked files among them and ignored ones not."""
        asked = await self.ask(path, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames")
        if asked.code != 0:
            raise Conflict(f"git cannot tell what changed in {path}: {asked.last_words}", reason="git_failed")
        return [(entry[:2], entry[3:]) for entry in asked.stdout.split("\0") if entry]

    async def lost_without(self, where: Path, name: str, *, branch: str = "") -> int:
        """How many commits of `name` no branch (but `branch`), tag or remote would still hold."""
        exclude = (f"--exclude={branch}",) if branch else ()
        others = (*exclude, "--branches", "--tags", "--remotes")
        asked = await self.ask(where, "rev-list", "--count", name, "--not", *others)
        if asked.code != 0:
            raise Conflict(f"git cannot compare {name}: {asked.last_words}", reason="git_failed")
        return int(asked.stdout)

    @contextlib.asynccontextmanager
    async def exclusive(self, repository: Repository) -> AsyncIterator[int]:
        """Be the only one that changes this repository's worktrees; gives a descriptor for `write`.

        git inherits the descriptor. So a git that an earlier backend, killed in the middle, left behind still holds
        the lock, and is waited for. Raises `Unavailable` when that takes too long.
        """
        async with self._turns.setdefault(repository.common, asyncio.Lock()):
            self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = hashlib.sha256(os.fsencode(repository.common)).hexdigest()[:20]
            descriptor = os.open(self._locks / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                await self._take(descriptor, repository)
                yield descriptor
            finally:
                # Released for every copy of the descriptor: a hook that went on in the background has one too.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    async def _take(self, descriptor: int, repository: Repository) -> None:
        try:
            async with asyncio.timeout(self._timing.git_lock_s):
                while not _locked(descriptor):  # noqa: ASYNC110 - the kernel gives no event for this kind of lock
                    await asyncio.sleep(_LOCK_POLL_S)
        except TimeoutError as error:
            raise Unavailable(
                f"A git that was started earlier still works on {repository.top}. Wait until it ends, or end it."
            ) from error

    async def _run(self, where: Path, arguments: Sequence[str], timeout_s: float, inherit: Sequence[int]) -> Finished:
        command = ["git", *_OPTIONS, "-C", str(where), *arguments]
        return await run_program(command, cwd="/", environ=self._environ, timeout_s=timeout_s, inherit=inherit)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
