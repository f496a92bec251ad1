"""The running agent: its pipes and its end. Watched by pidfd, stopped with its whole tree."""

import asyncio
import contextlib
import os
import shutil
import signal
from dataclasses import dataclass
from typing import Final

from kandev.agentctl.failpoints import failpoint
from kandev.agentctl.journal import Journal
from kandev.agentctl.output import OutputPump
from kandev.agentctl.records import Exited, Started
from kandev.agentctl.spawn import Launch, Spawned
from kandev.agentctl.stderr import StderrDrain
from kandev.agentctl.stdin import StdinWriter
from kandev.agentctl.tree import ProcessTree

__all__ = ["AgentRun", "Surroundings"]

TERM_GRACE_S: Final = 2.0
"""How long a group that got SIGTERM has before its tree is killed."""
KILL_TIMEOUT_S: Final = 10.0
"""How long a killed tree may take to be gone; only a process that hangs in the kernel needs longer."""
_RECORD_TIMEOUT_S: Final = 2.0
"""How long a stop waits for the exit record after the tree is gone; a full disk may delay it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every run of an instance shares."""

    directory: str
    journal: Journal
    tree: ProcessTree
    cap_bytes: int


class AgentRun:
    """One run of the agent, from its start record to its exit record. `gen` counts the runs of the instance."""

    def __init__(self, spawned: Spawned, *, launch: Launch, gen: int, around: Surroundings) -> None:
        loop = asyncio.get_running_loop()
        self.pid = spawned.pid
        self.start_time = spawned.start_time
        self.exit: Exited | None = None
        self.recorded = False
        """True once the exit record is behind everything else in the journal."""
        self._launch = launch
        self._journal = around.journal
        self._tree = around.tree
        self._exited = asyncio.Event()
        self._finished = asyncio.Event()
        # An earlier run left no open line behind: its exit record ended it.
        start = Started(gen=gen, pid=spawned.pid, start_time=spawned.start_time, pgid=spawned.pid)
        self._journal.write_record(start)
        self.stdin = StdinWriter(spawned.stdin, journal=self._journal, loop=loop)
        self.output = OutputPump(spawned.stdout, journal=self._journal, cap_bytes=around.cap_bytes, loop=loop)
        self.stderr = StderrDrain(spawned.stderr, directory=around.directory, loop=loop)
        self._exit_code = around.tree.expect(spawned.pid)
        self._watch = loop.create_task(self._see_exit(), name=f"exit of agent {spawned.pid}")

    @property
    def finished(self) -> bool:
        """True once the exit is recorded and nothing of the agent is left."""
        return self._finished.is_set()

    async def stop(self, *, grace_s: float, term_grace_s: float = TERM_GRACE_S) -> bool:
        """End the agent and its tree: close stdin, wait, SIGTERM to the group, wait, kill (PROC-1, PROC-6).

        With a grace of 0 the tree is killed at once, also while another stop still waits. True when nothing of the
        agent is left.
        """
        self.stdin.close()
        if grace_s > 0 and not await _within(grace_s, self._exited) and term_grace_s > 0:
            self._signal_group(signal.SIGTERM)
            await _within(term_grace_s, self._exited)
        gone = await self._tree.kill(KILL_TIMEOUT_S)
        await _within(_RECORD_TIMEOUT_S, self._finished)
        return gone

    async def _see_exit(self) -> None:
        """Wait for the agent's exit (not for end-of-file, WIRE-8), record it, and end what it left running."""
        code = await self._exit_code
        self.exit = Exited(code=code, signal=None) if code >= 0 else Exited(code=None, signal=-code)
        self._exited.set()
        self.stdin.close()
        self.stderr.finish()
        await self.output.finish()
        self._journal.finish_line()
        failpoint("agentctl.before_exit")
        self.recorded = True  # before the record is seen: a reader that has it knows that nothing more comes
        self._journal.write_record(self.exit)
        failpoint("agentctl.after_exit")
        self.output.adjust()  # a disk without room for the exit record is tried again
        await self._tree.kill(KILL_TIMEOUT_S)
        await asyncio.to_thread(shutil.rmtree, self._launch.tmpdir, ignore_errors=True)
        self._finished.set()

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended meanwhile
            os.killpg(self.pid, number)


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
