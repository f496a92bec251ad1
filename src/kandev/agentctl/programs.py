"""Short programs beside the agent: within a time, their output kept in bounds, waited for by the tree of processes."""

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kandev.agentctl.tree import ProcessTree

__all__ = ["Ended", "Programs"]

_WORDS_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended (a signal is its negative number), the begin of its output, the end of its complaints."""

    code: int
    out: bytes
    err: bytes


class Programs:
    """Runs programs, none of which outlives agentctl."""

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree

    async def run(
        self, command: Sequence[str], *, env: Mapping[str, str], limit_s: float, kept_bytes: int, cwd: str | None = None
    ) -> Ended:
        """Run a program without input. Raises TimeoutError, other OSErrors and ValueError where it cannot be started.

        One that takes too long, or that nobody waits for any more, is killed with its session.
        """
        # Files, not pipes: nobody has to read along, and a child that is left behind holds up nothing.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once, and the tree waits
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, cwd=cwd, start_new_session=True
            )
            process.returncode = 0  # ProcessTree waits for it; Popen must not
            code = await self._end(process.pid, limit_s)
            out.seek(0)
            err.seek(max(0, err.seek(0, os.SEEK_END) - _WORDS_BYTES))
            return Ended(code=code, out=out.read(kept_bytes), err=err.read())

    async def _end(self, pid: int, limit_s: float) -> int:
        ended = self._tree.expect(pid)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(ended)
        finally:
            if not ended.done():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
