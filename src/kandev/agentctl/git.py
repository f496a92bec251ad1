"""Git where agentctl runs: without prompts and hooks."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kandev.agentctl.programs import Programs
from kandev.agentctl.refusal import Refusal

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

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
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
        environment = {**self._environment, **(env or {})}
        try:
            ended = await self._programs.run(command, env=environment, limit_s=GIT_S, kept_bytes=_KEPT_BYTES)
        except TimeoutError:
            raise Refusal(504, "git_late", f"git {arguments[0]} did not end within {GIT_S:g} s.") from None
        except OSError as error:
            raise Refusal(422, "git_missing", f"git cannot be started: {error.strerror}.") from error
        words = " ".join(ended.err.decode("utf-8", "replace").split()) or f"exit code {ended.code}"
        return Done(code=ended.code, out=ended.out.decode("utf-8", "surrogateescape"), words=words)
