"""The version of an agent's program, asked of the program itself."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping, Sequence
from pathlib import Path

from kandev.agents.base import AgentConfig, launch_environment

ANSWER_S = 20.0  # node programs of 100 MB take seconds at their first start
ANSWER_BYTES = 8192

_VERSION = re.compile(r"(?<![\d.])\d+\.\d+(?:[\w.+-]*\w)?")


async def installed_version(agent: AgentConfig, environ: Mapping[str, str]) -> str:
    """Return what the agent's `version_command` answers, '' without one, or where it says nothing in time.

    It runs with the agent's environment, a temporary directory of its own (some leave megabytes there), no stdin and
    a process group that is killed with all that it started.
    """
    allowed = launch_environment(agent, environ)
    program = shutil.which(agent.version_command[0], path=allowed.get("PATH", "")) if agent.version_command else None
    if program is None:
        return ""
    with tempfile.TemporaryDirectory(prefix="kandev-version-", ignore_cleanup_errors=True) as directory:
        words = [program, *agent.version_command[1:]]
        said = await _words(words, {**allowed, "TMPDIR": directory}, Path(directory))
    found = _VERSION.search(said)
    return found[0] if found else ""


async def _words(command: Sequence[str], env: Mapping[str, str], directory: Path) -> str:
    """Return what the command writes. Into a file: a child that outlives it would hold a pipe open."""
    with (directory / "stdout").open("w+b") as out:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=dict(env),
                cwd=directory,
                stdin=DEVNULL,
                stdout=out,
                stderr=DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return ""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        out.seek(0)
        return out.read(ANSWER_BYTES).decode(errors="replace")
