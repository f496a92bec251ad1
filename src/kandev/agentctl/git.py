"""Git where agentctl runs: without prompts and hooks, within a time, and waited for by the tree of processes."""

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kandev.agentctl.refusal import Refusal
from kandev.agentctl.tree import ProcessTree

__all__ = ["Done", "Git"]

GIT_S: Final = 300.0
"""How long one git may take: it may read or write every file of a large repository."""
_KEPT_BYTES: Final = 8 << 20
_ENVIRONMENT: Final = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
    **{f"GIT_{who}_NAME": "Kandev" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "kandev@localhost" for who in ("AUTHOR", "COMMITTER")},
}
_OPTIONS: Final = (
    *(
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "gc.auto=0",
        "-c",
        "maintenance.auto=false",
    ),
    *("-c", "advice.addEmbeddedRepo=false", "-c", "core.quotePath=false", "-c", "commit.gpgSign=false"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a git ended, the begin of what it wrote (8 MiB at most), and the end of its complaints."""

    code: int
    out: str
    words: str


class Git:
    """Runs git. Of our own environment it gets everything but what would point it elsewhere."""

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self._environment = {**inherited, **_ENVIRONMENT}

    async def run(self, where: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """Run git in a directory and return what it wrote. Raises Refusal git_failed with its words."""
        done = await self.ask(where, *arguments, env=env)
        if done.code:
            raise Refusal(409, "git_failed", f"git {arguments[0]} failed: {done.words}")
        return done.out

    async def ask(self, where: str, *arguments: str, env: Mapping[str, str] | None = None) -> Done:
        """The same, and the exit code is the caller's to judge. Raises Refusal git_missing and git_late."""
        command = ["git", *_OPTIONS, "-C", where, *arguments]
        # Files, not pipes: nobody has to read along, and a child that git leaves behind holds up nothing.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once, and the tree waits
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env={**self._environment, **(env or {})},
                    start_new_session=True,
                )
            except OSError as error:
                raise Refusal(422, "git_missing", f"git cannot be started: {error.strerror}.") from error
            process.returncode = 0  # ProcessTree waits for it; Popen must not
            code = await self._end(process.pid, arguments[0])
            out.seek(0)
            err.seek(max(0, err.seek(0, os.SEEK_END) - 1024))
            words = " ".join(err.read().decode("utf-8", "replace").split()) or f"exit code {code}"
            return Done(code=code, out=out.read(_KEPT_BYTES).decode("utf-8", "surrogateescape"), words=words)

    async def _end(self, pid: int, name: str) -> int:
        """Wait for the exit code; a git that takes too long, or that nobody waits for any more, is killed."""
        ended = self._tree.expect(pid)
        try:
            async with asyncio.timeout(GIT_S):
                return await asyncio.shield(ended)
        except TimeoutError:
            raise Refusal(504, "git_late", f"git {name} did not end within {GIT_S:g} s.") from None
        finally:
            if not ended.done():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
