"""A working directory without a file system in common with the backend: it comes as a git bundle, and so goes the work.

What the agent left uncommitted is carried as a commit of its own kind, with a trailer that says so. It is made beside
the agent's index and HEAD: the agent's own state is not touched. Files that git ignores, and what submodules hold, are
not carried.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kandev.agentctl.failpoints import failpoint
from kandev.agentctl.git import Git
from kandev.agentctl.refusal import Refusal

__all__ = ["UNCOMMITTED", "Sources"]

UNCOMMITTED: Final = "Kandev-Uncommitted"
"""The trailer of a commit that holds what the agent had not committed."""
_MESSAGE: Final = f"Work that the agent has not committed\n\nMade by Kandev when a turn ended.\n\n{UNCOMMITTED}: yes\n"
_WORK: Final = "refs/kandev/work"
_ELSEWHERE: Final = "refs/kandev/elsewhere"
_UNCOMMITTED: Final = "refs/kandev/uncommitted"
_SHA: Final = frozenset("0123456789abcdef")
_MOST_KNOWN: Final = 256
_MOST_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class _Head:
    """Where the agent stands: the branch ('' when detached), its commit ('' before the first), and all its files."""

    branch: str
    commit: str
    whole: str


class Sources:
    """The way in and out for one instance. Bundles lie in its directory. Errors are Refusals."""

    def __init__(self, directory: str, git: Git) -> None:
        self._directory = directory
        self._git = git
        self._turn = asyncio.Lock()
        self.incoming = os.path.join(directory, "sources.bundle")
        self.outgoing = os.path.join(directory, "work.bundle")

    async def take(self, pieces: AsyncIterator[bytes]) -> Mapping[str, Any]:
        """Keep a bundle as it comes, piece by piece; whole, or not at all."""
        draft, size = f"{self.incoming}.part", 0
        failpoint("agentctl.before_sources")
        try:
            with open(draft, "wb") as file:  # noqa: ASYNC230 - of our own disk
                async for piece in pieces:
                    size += len(piece)
                    await asyncio.to_thread(file.write, piece)
            os.replace(draft, self.incoming)
        except OSError as error:
            raise Refusal(507, "disk_full", f"The sources cannot be stored: {error.strerror}.") from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
        failpoint("agentctl.after_sources")
        return {"bytes": size}

    def state(self, path: str) -> Mapping[str, Any]:
        """Tell whether a directory is there: missing, ready, or foreign, which is whatever is no directory."""
        return {"state": _state(_path({"path": path}))}

    async def check_out(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make the directory from the bundle that came, on `branch` at `commit`; what is there stays as it is.

        Without a `branch` it is made empty. With `uncommitted` the commit is one that holds uncommitted work: it is
        uncommitted again. `name` and `email` are whose commits the agent makes.
        """
        path, branch = _path(payload), payload.get("branch", "")
        async with self._turn:
            state = _state(path)
            if state == "foreign":
                raise Refusal(409, "workspace_foreign", f"{path} holds something else, and was left alone.")
            if state == "ready":
                return {"made": False}
            # Beside its place, then renamed: a directory that is there is whole.
            draft = f"{path}.making"
            await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
            os.makedirs(draft, mode=0o700)
            failpoint("agentctl.before_checkout")
            if branch:
                await self._fill(draft, str(branch), payload)
            os.replace(draft, path)
            failpoint("agentctl.after_checkout")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.incoming)
        return {"made": True}

    async def _fill(self, draft: str, branch: str, payload: Mapping[str, Any]) -> None:
        commit = _commit(payload.get("commit"))
        await self._git.run(draft, "init", "-q")
        for key in ("name", "email"):
            if value := payload.get(key):
                await self._git.run(draft, "config", f"user.{key}", str(value))
        fetched = ("+refs/*:refs/kandev/came/*",)
        await self._git.run(draft, "fetch", "-q", "--no-tags", "--no-write-fetch-head", self.incoming, *fetched)
        await self._git.run(draft, "checkout", "-q", "--no-track", "-B", branch, commit)
        if payload.get("uncommitted"):
            await self._git.run(draft, "reset", "-q", "--mixed", f"{commit}^")
            await self._git.run(draft, "update-ref", _UNCOMMITTED, commit)

    async def collect(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put what the backend does not have into a bundle, to be fetched; 0 bytes when it has everything.

        `known` are commits that it has. `tip` is what belongs on the session's branch; when the agent is not on it,
        `elsewhere` is where the agent is. `gitlinks` are directories of which only a number is carried, and
        `incomplete` says which files could not be read.
        """
        path, branch = _path(payload), str(payload.get("branch", ""))
        if _state(path) != "ready":
            raise Refusal(409, "workspace_missing", f"{path} is not there.")
        if not os.path.isdir(os.path.join(path, ".git")):
            return {"tip": "", "elsewhere": "", "uncommitted": False, "bytes": 0}
        async with self._turn:
            failpoint("agentctl.before_work")
            head, incomplete = await self._head(path)
            on_branch = head.branch == branch
            tip = head.whole if on_branch else await self._commit_of(path, f"refs/heads/{branch}")
            elsewhere = "" if on_branch else head.whole
            await self._name(path, _WORK, tip)
            await self._name(path, _ELSEWHERE, elsewhere)
            size = await self._bundle(path, branch, await self._known(path, payload.get("known", [])))
            failpoint("agentctl.after_work")
        return {
            "tip": tip,
            "elsewhere": elsewhere,
            "branch": head.branch,
            "uncommitted": head.whole != head.commit,
            "bytes": size,
            "gitlinks": await self._gitlinks(path, head.whole),
            "incomplete": incomplete,
        }

    async def _head(self, path: str) -> tuple[_Head, str]:
        """Read where the agent stands; everything that is not committed is put into a commit beside it."""
        ref = (await self._git.ask(path, "symbolic-ref", "-q", "HEAD")).out.strip()
        commit = await self._commit_of(path, "HEAD")
        tree, incomplete = await self._tree(path)
        branch = ref.removeprefix("refs/heads/")
        clean = await self._git.ask(path, "rev-parse", "-q", "--verify", f"{commit or 'HEAD'}^{{tree}}")
        nothing = not commit and not (await self._git.run(path, "ls-tree", tree)).strip()
        if nothing or clean.out.strip() == tree:
            return _Head(branch, commit, commit), incomplete
        return _Head(branch, commit, await self._uncommitted(path, commit, tree)), incomplete

    async def _tree(self, path: str) -> tuple[str, str]:
        """Write all files into a tree, by an index of our own; and say what could not be read."""
        index = os.path.join(path, ".git", f"kandev-index.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):  # it knows which files are unchanged
            shutil.copyfile(os.path.join(path, ".git", "index"), index)
        env = {"GIT_INDEX_FILE": index}
        try:
            added = await self._git.ask(path, "add", "-A", "--ignore-errors", env=env)
            tree = (await self._git.run(path, "write-tree", env=env)).strip()
        finally:
            for name in (index, f"{index}.lock"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
        return tree, added.words if added.code else ""

    async def _uncommitted(self, path: str, commit: str, tree: str) -> str:
        """Return a commit of these files; the last one, where nothing changed since."""
        parents = ("-p", commit) if commit else ()
        last = await self._git.ask(path, "log", "-1", "--format=%P %T", _UNCOMMITTED)
        if last.code == 0 and last.out.split() == [*parents[1:], tree]:
            return await self._commit_of(path, _UNCOMMITTED)
        made = (await self._git.run(path, "commit-tree", tree, *parents, "-m", _MESSAGE)).strip()
        await self._name(path, _UNCOMMITTED, made)
        return made

    async def _bundle(self, path: str, branch: str, known: Sequence[str]) -> int:
        refs = [
            ref
            for ref in (await self._git.run(path, "for-each-ref", "--format=%(refname)", "refs/heads")).split()
            if ref != f"refs/heads/{branch}"
        ]
        refs += [ref for ref in (_WORK, _ELSEWHERE) if await self._commit_of(path, ref)]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.outgoing)
        new = await self._git.run(path, "rev-list", "--count", *refs, "--not", *known) if refs else "0"
        if int(new) == 0:
            return 0
        await self._git.run(path, "bundle", "create", "-q", self.outgoing, *refs, "--not", *known)
        return os.stat(self.outgoing).st_size

    async def _known(self, path: str, known: object) -> list[str]:
        """Return the commits that are here, too, of those that the backend has."""
        if not isinstance(known, list) or len(known) > _MOST_KNOWN:
            raise Refusal(400, "bad_request", f"known is a list of at most {_MOST_KNOWN} commits.")
        return [commit for one in known if (commit := await self._commit_of(path, _commit(one)))]

    async def _gitlinks(self, path: str, commit: str) -> list[str]:
        if not commit:
            return []
        listed = await self._git.run(path, "ls-tree", "-r", commit)
        found = [line.partition("\t")[2] for line in listed.splitlines() if line.startswith("160000 ")]
        return found[:_MOST_SHOWN]

    async def _commit_of(self, path: str, name: str) -> str:
        return (await self._git.ask(path, "rev-parse", "-q", "--verify", f"{name}^{{commit}}")).out.strip()

    async def _name(self, path: str, ref: str, commit: str) -> None:
        """Let a reference name a commit; '' removes it."""
        words = (ref, commit) if commit else ("-d", ref)
        await self._git.run(path, "update-ref", *words)


def _state(path: str) -> str:
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
        return "foreign"
    return "ready" if os.path.isdir(path) else "missing"


def _path(payload: Mapping[str, Any]) -> str:
    path = payload.get("path")
    if not isinstance(path, str) or not os.path.isabs(path) or os.path.normpath(path) != path or path == "/":
        raise Refusal(400, "bad_request", "path is an absolute path.")
    return path


def _commit(value: object) -> str:
    if not isinstance(value, str) or len(value) not in {40, 64} or not set(value) <= _SHA:
        raise Refusal(400, "bad_request", "A commit is named by its whole number.")
    return value
