"""A session's branch, carried to a place that has no file system in common with us, and the work carried home.

Both ways are git bundles. What comes home lies first under refs/kandev/SESSION/, where it disturbs nobody: `work` is
what belongs on the session's branch, `elsewhere` where the agent stands when it is not on that, `heads/` are branches
that it made, `kept/` is work that could not be put on the branch before other work came. `home` is what we last put on
the branch. The branch follows only while it is still there, so that nothing of the user's is overwritten; his
directory follows only where nothing of his is in the way.
"""

import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.agentctl.sources import UNCOMMITTED
from kandev.errors import Conflict
from kandev.worktrees.git import Git
from kandev.worktrees.workspace import Repository, Workspace, find_repository

__all__ = ["Carrying", "Packed", "Placed", "Verdict", "judge"]

_MOST_KNOWN: Final = 256
_COMING: Final = ("refs/kandev/work", "refs/kandev/elsewhere")
_SHOWN: Final = 5
_READ_BYTES: Final = 64 * 1024


class Verdict(StrEnum):
    """What becomes of work that came home."""

    NOTHING = "nothing"  # there is none
    THERE = "there"  # the branch has it
    MOVE = "move"  # the branch is where we left it, and follows
    MOVED = "moved"  # somebody moved the branch meanwhile
    GONE = "gone"  # somebody removed it
    IN_THE_WAY = "in_the_way"  # files in the session's directory here would be overwritten


def judge(branch: str, *, home: str, work: str, contained: bool) -> Verdict:
    """Tell what becomes of `work`. `branch` is where the branch is, `home` where we last put it, '' for neither.

    `contained`: the branch has the work among its ancestors.
    """
    if not work:
        return Verdict.NOTHING
    if not branch:
        return Verdict.GONE
    if branch == work:
        return Verdict.THERE
    if branch == home:
        return Verdict.MOVE
    return Verdict.THERE if contained else Verdict.MOVED


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """A session's branch, ready to be sent; the caller deletes `bundle`.

    `uncommitted`: its last commit is of that kind. `name` and `email` are whose commits are made here. `notes` say what
    is not carried.
    """

    bundle: Path
    branch: str
    commit: str
    uncommitted: bool
    name: str
    email: str
    notes: tuple[str, ...] = ()


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of work that came home. `note` is a line for the transcript; '' when all is as expected."""

    verdict: Verdict
    work: str = ""
    note: str = ""


class Carrying:
    """Packs and unpacks. `directory` holds bundles on their way."""

    def __init__(self, git: Git, directory: Path) -> None:
        self._git = git
        self._directory = directory

    def bundle_in(self, session_id: str) -> Path:
        """Return where a bundle that comes home is to be written."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._directory / f"{session_id}.in"

    async def pack(self, workspace: Workspace, session_id: str) -> Packed:
        """Put the session's branch with its history into a bundle.

        Raises `Conflict` for a repository of which not all is here (shallow), and where git fails.
        """
        repository = _repository(workspace)
        if (await self._git.ask(repository.top, "rev-parse", "--is-shallow-repository")).stdout.strip() == "true":
            raise Conflict(
                f"{repository.top} has only a part of its history (a shallow clone), which cannot be carried. "
                "Run `git fetch --unshallow` there.",
                reason="shallow_repository",
            )
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        bundle = self._directory / f"{session_id}.out"
        ref = f"refs/heads/{workspace.branch}"
        async with self._git.exclusive(repository) as lock:
            commit = await self._commit(repository.top, ref)
            if not commit:
                raise Conflict(
                    f"{repository.top} has no branch {workspace.branch} with a commit to send.", reason="branch_missing"
                )
            notes = [await self._keep_unplaced(repository, session_id, commit, lock)]
            await self._write_bundle(repository, bundle, ref, lock)
            await self._note_home(repository, session_id, commit, lock)
        notes += [await self._submodules(repository, commit), await self._not_carried(workspace)]
        return Packed(
            bundle=bundle,
            branch=workspace.branch,
            commit=commit,
            uncommitted=await self._is_uncommitted(repository, commit),
            name=(await self._git.ask(repository.top, "config", "user.name")).stdout.strip(),
            email=(await self._git.ask(repository.top, "config", "user.email")).stdout.strip(),
            notes=tuple(note for note in notes if note),
        )

    async def known(self, workspace: Workspace, session_id: str) -> list[str]:
        """Return commits that are here, so that they need not come: whatever came or went before, 256 at most."""
        repository = _repository(workspace)
        refs = (f"refs/kandev/{session_id}", f"refs/heads/{workspace.branch}")
        listed = await self._git.ask(
            repository.top, "for-each-ref", f"--count={_MOST_KNOWN}", "--format=%(objectname)", *refs
        )
        return sorted(set(listed.stdout.split()))

    async def place(self, workspace: Workspace, session_id: str, *, work: str, bundle: Path | None) -> Placed:
        """Take in what came, and let branch and directory follow. `work` is what belongs on the branch, '' for nothing.

        Without a `bundle` the commit is here already. The bundle is deleted. Raises `Conflict` where git fails.
        """
        repository = _repository(workspace)
        async with self._git.exclusive(repository) as lock:
            if bundle is not None:
                await self._fetch(repository, session_id, bundle, lock)
                bundle.unlink(missing_ok=True)
            elif work:
                await self._name(repository, f"refs/kandev/{session_id}/work", work, lock)
            return await self._follow(workspace, repository, session_id, lock)

    async def settle(self, workspace: Workspace, session_id: str) -> Placed:
        """Finish what a crash cut short: work that came home, and was not put on the branch yet."""
        repository = _repository(workspace)
        for path in (self._directory / f"{session_id}.in", self._directory / f"{session_id}.out"):
            path.unlink(missing_ok=True)
        async with self._git.exclusive(repository) as lock:
            return await self._follow(workspace, repository, session_id, lock)

    async def forget(self, workspace: Workspace, session_id: str) -> None:
        """Remove what is kept of a session that is deleted, but for its branch."""
        repository = find_repository(workspace.repository_path)
        if repository is None:
            return
        async with self._git.exclusive(repository) as lock:
            listed = await self._git.ask(
                repository.top, "for-each-ref", "--format=%(refname)", f"refs/kandev/{session_id}"
            )
            for ref in listed.stdout.split():
                await self._name(repository, ref, "", lock)

    async def _follow(self, workspace: Workspace, repository: Repository, session_id: str, lock: int) -> Placed:
        work = await self._commit(repository.top, f"refs/kandev/{session_id}/work")
        home = await self._commit(repository.top, f"refs/kandev/{session_id}/home")
        ref = f"refs/heads/{workspace.branch}"
        branch = await self._commit(repository.top, ref)
        contained = bool(work and branch) and await self._contains(repository, branch, work)
        verdict = judge(branch, home=home, work=work, contained=contained)
        if verdict is Verdict.NOTHING or work == home:
            return Placed(verdict=Verdict.NOTHING if not work else Verdict.THERE, work=work)
        if verdict in {Verdict.MOVED, Verdict.GONE}:
            return Placed(verdict=verdict, work=work, note=_refusal(verdict, workspace, session_id))
        where = await self._behind(repository, ref, work) if branch in {home, work} else None
        if where is not None:
            taken = await self._in_the_way(where, home, work, session_id)
            if taken:
                note = _in_the_way_note(taken, where, session_id)
                return Placed(verdict=Verdict.IN_THE_WAY, work=work, note=note)
        if verdict is Verdict.MOVE:
            await self._move_branch(repository, ref, work, home, lock)
        note = await self._move_files(where, home, work, lock) if where is not None else ""
        await self._note_home(repository, session_id, work, lock)
        return Placed(verdict=verdict, work=work, note=note)

    async def _in_the_way(self, where: Path, home: str, work: str, session_id: str) -> str:
        """Say what of the user's would be overwritten in a directory; '' for nothing.

        Git itself refuses for files that it knows; files that it ignores it would overwrite.
        """
        listed = self._directory / f"{session_id}.added"
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        diff = ("diff", "--name-only", "-z", "--no-renames", "--diff-filter=A", f"--output={listed}", home, work)
        try:
            asked = await self._git.ask(where, *diff)
            if asked.code:
                return asked.last_words
            found = [name for name in _names(listed) if _is_taken(where, name)]
        finally:
            listed.unlink(missing_ok=True)
        if found:
            return ", ".join(found[:_SHOWN])
        # Only a cache: files that were touched and not changed must not look changed.
        await self._git.ask(where, "update-index", "-q", "--refresh")
        tried = await self._git.ask(where, "read-tree", "-m", "-u", "-n", home, work)
        return tried.last_words if tried.code else ""

    async def _write_bundle(self, repository: Repository, bundle: Path, ref: str, lock: int) -> None:
        failpoint("sources.before_pack")
        packed = await self._git.write(repository.top, "bundle", "create", "-q", str(bundle), ref, lock=lock)
        failpoint("sources.after_pack")
        if packed.code:
            raise Conflict(f"git cannot pack {ref}: {packed.last_words}", reason="git_failed")

    async def _fetch(self, repository: Repository, session_id: str, bundle: Path, lock: int) -> None:
        """Take in what a bundle has under the names that work may have; whoever made it could put in others."""
        under = f"refs/kandev/{session_id}"
        listed = await self._git.ask(repository.top, "bundle", "list-heads", str(bundle), *_COMING)
        coming = [ref for ref in _COMING if f" {ref}\n" in f"{listed.stdout}\n"]
        failpoint("work.before_fetch")
        fetched = await self._git.write(
            repository.top,
            *("-c", "fetch.fsckObjects=true", "-c", "core.hooksPath=/dev/null"),
            *("fetch", "-q", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", str(bundle)),
            *(f"+{ref}:{under}/{ref.rpartition('/')[2]}" for ref in coming),
            f"+refs/heads/*:{under}/heads/*",
            lock=lock,
        )
        failpoint("work.after_fetch")
        if fetched.code:
            raise Conflict(f"git cannot take in the agent's work: {fetched.last_words}", reason="git_failed")

    async def _move_branch(self, repository: Repository, ref: str, work: str, home: str, lock: int) -> None:
        """Move the branch from where we left it. Git looks once more whether it is there, as one step with the move."""
        failpoint("work.before_branch")
        moved = await self._git.write(
            repository.top, "update-ref", "-m", "kandev: work of the agent", ref, work, home, lock=lock
        )
        failpoint("work.after_branch")
        if moved.code:
            raise Conflict(f"{ref} cannot be moved: {moved.last_words}", reason="branch_moved")

    async def _move_files(self, where: Path, home: str, work: str, lock: int) -> str:
        """Let a directory follow its branch; files that differ from both are left, and said."""
        failpoint("work.before_files")
        moved = await self._git.write(where, "read-tree", "-m", "-u", home, work, lock=lock)
        failpoint("work.after_files")
        return f"The branch has the agent's work; the files in {where} do not: {moved.last_words}" if moved.code else ""

    async def _note_home(self, repository: Repository, session_id: str, commit: str, lock: int) -> None:
        await self._name(repository, f"refs/kandev/{session_id}/home", commit, lock)

    async def _name(self, repository: Repository, ref: str, commit: str, lock: int) -> None:
        """Let a reference of ours name a commit; '' removes it."""
        words = (ref, commit) if commit else ("-d", ref)
        failpoint("work.before_note")
        named = await self._git.write(repository.top, "update-ref", *words, lock=lock)
        failpoint("work.after_note")
        if named.code:
            raise Conflict(f"git cannot write {ref}: {named.last_words}", reason="git_failed")

    async def _keep_unplaced(self, repository: Repository, session_id: str, commit: str, lock: int) -> str:
        """Keep work that never came onto the branch, before the work of a new beginning takes its name."""
        work = await self._commit(repository.top, f"refs/kandev/{session_id}/work")
        if not work or work == commit or await self._contains(repository, commit, work):
            return ""
        kept = f"refs/kandev/{session_id}/kept/{work[:12]}"
        await self._name(repository, kept, work, lock)
        await self._name(repository, f"refs/kandev/{session_id}/work", commit, lock)
        return f"Work that is not on the branch was kept as {kept}."

    async def _submodules(self, repository: Repository, commit: str) -> str:
        asked = await self._git.ask(
            repository.top, "config", "--blob", f"{commit}:.gitmodules", "--get-regexp", r"\.path$"
        )
        names = [line.partition(" ")[2] for line in asked.stdout.splitlines()]
        if asked.code or not names:
            return ""
        return f"Submodules are not carried, and are empty there: {', '.join(names[:_SHOWN])}."

    async def _not_carried(self, workspace: Workspace) -> str:
        path = Path(workspace.path)
        if not path.is_dir():
            return ""
        names = [name for _, name in await self._git.changes(path)]
        if not names:
            return ""
        return f"Only what is committed is carried; the agent does not see {', '.join(names[:_SHOWN])}."

    async def _is_uncommitted(self, repository: Repository, commit: str) -> bool:
        trailer = f"--format=%(trailers:key={UNCOMMITTED},valueonly)%P"
        told = await self._git.ask(repository.top, "log", "-1", trailer, commit)
        return told.stdout.startswith("yes\n") and bool(told.stdout.split()[1:])

    async def _contains(self, repository: Repository, branch: str, work: str) -> bool:
        asked = await self._git.ask(repository.top, "merge-base", "--is-ancestor", work, branch)
        return asked.code == 0

    async def _behind(self, repository: Repository, ref: str, work: str) -> Path | None:
        """Return the directory that has the branch checked out, unless its index is at `work` already."""
        asked = await self._git.ask(repository.top, "for-each-ref", "--format=%(worktreepath)", ref)
        path = asked.stdout.strip()
        if not path or not Path(path).is_dir():
            return None
        compared = await self._git.ask(Path(path), "diff-index", "--cached", "--quiet", work, "--")
        return Path(path) if compared.code else None

    async def _commit(self, where: Path, name: str) -> str:
        return (await self._git.ask(where, "rev-parse", "-q", "--verify", f"{name}^{{commit}}")).stdout.strip()


def _repository(workspace: Workspace) -> Repository:
    repository = find_repository(workspace.repository_path) if workspace.kind == "worktree" else None
    if repository is None:
        raise Conflict(f"{workspace.repository_path} is no repository here.", reason="no_repository")
    return repository


def _names(listed: Path) -> Iterator[str]:
    """Yield the names in a file, each ended by a zero byte."""
    rest = b""
    with listed.open("rb") as file:
        while data := file.read(_READ_BYTES):
            *names, rest = (rest + data).split(b"\0")
            yield from map(os.fsdecode, names)


def _is_taken(where: Path, name: str) -> bool:
    """True when something lies at the place of a file that is to come, or a link that leads out on its way."""
    path = where / name
    if os.path.lexists(path):
        return True
    return any(parent.is_symlink() for parent in path.parents if parent != where and parent.is_relative_to(where))


def _refusal(verdict: Verdict, workspace: Workspace, session_id: str) -> str:
    what = "was moved here" if verdict is Verdict.MOVED else "is gone here"
    return (
        f"Branch {workspace.branch} {what} since the agent began on it, so it was left alone. The agent's work is "
        f"kept as refs/kandev/{session_id}/work: `git merge refs/kandev/{session_id}/work` takes it in."
    )


def _in_the_way_note(taken: str, where: Path, session_id: str) -> str:
    return (
        f"The agent's work was not put on the branch, because something of yours in {where} would be overwritten: "
        f"{taken}. It is kept as refs/kandev/{session_id}/work, and follows once that is out of the way."
    )
