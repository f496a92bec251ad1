"""What goes on for an agent that runs: its loops, and its end, which is closed once (RACE-9)."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from kandev.agentctl.failpoints import failpoint
from kandev.agentctl.segments import journal_in, read_journal
from kandev.domain.constants import Timing
from kandev.domain.models import Event
from kandev.errors import AgentctlError, AgentDied, RuntimeUnreachable
from kandev.lifecycle.agent_logs import AgentLogs
from kandev.lifecycle.batch import Superseded
from kandev.lifecycle.execution import AgentExecution
from kandev.lifecycle.silence import watch_agentctl, watch_silence
from kandev.runtimes.base import Elsewhere

log = structlog.get_logger(__name__)


class Running:
    """Goes along with each agent until it ended; `forget` is called last, `broken` after an error of our own."""

    def __init__(
        self,
        *,
        timing: Timing,
        publish: Callable[[Sequence[Event]], None],
        agent_logs: AgentLogs,
        forget: Callable[[AgentExecution], None],
        broken: Callable[[str], None],
    ) -> None:
        self._timing = timing
        self._publish = publish
        self._agent_logs = agent_logs
        self._forget = forget
        self._broken = broken

    async def run(self, execution: AgentExecution) -> None:
        """Read until the agent ended, then close what it left, once (RACE-9)."""
        ingest = execution.ingest
        workers = [
            asyncio.create_task(ingest.commit_loop(), name="commit"),
            asyncio.create_task(ingest.send_loop(execution.client), name="send"),
            asyncio.create_task(ingest.ack_loop(execution.client), name="ack"),
            asyncio.create_task(self._watch_silence(execution), name="silence"),
            asyncio.create_task(self._watch_agentctl(execution), name="agentctl"),
        ]
        reading = asyncio.create_task(ingest.read(execution.client), name="read")
        leaving = asyncio.create_task(execution.leaving.wait(), name="leaving")
        unsettled = False
        try:
            await asyncio.wait([reading, leaving, *workers], return_when=asyncio.FIRST_COMPLETED)
            for worker in workers:
                if worker.done():
                    await worker  # raises what ended it
            if leaving.done():
                await self._leave(execution, reading)
            elif reading.exception() is not None and await _is_out_of_reach(execution):
                await self._lose_sight(execution, reading)
                unsettled = True
            else:
                await self._agent_ended(execution, reading)
        except Superseded:
            reading.cancel()
            await _abandon(execution)
        except Exception:
            log.exception("execution.broken", session_id=execution.ref.session_id)
            reading.cancel()
            await _abandon(execution)
            unsettled = True
        finally:
            for task in (*workers, reading, leaving):
                task.cancel()
            await asyncio.gather(*workers, reading, leaving, return_exceptions=True)
            self._forget(execution)
        if unsettled:  # not before: nothing of this execution may be written behind what is read now
            self._broken(execution.ref.session_id)

    async def _lose_sight(self, execution: AgentExecution, reading: "asyncio.Task[None]") -> None:
        """Let go of an agent that cannot be reached now and may live: who settles it attaches, or leaves it unknown."""
        log.warning("execution.out_of_reach", session_id=execution.ref.session_id, error=str(reading.exception()))
        await self._leave(execution, reading)
        await execution.client.aclose()
        ref, payload = execution.ref, {"is_agent_running": False, "exit_code": None, "signal": None}
        changed = Event(action="session.agent_changed", session_id=ref.session_id, task_id=ref.task_id, payload=payload)
        self._publish([changed])

    async def _leave(self, execution: AgentExecution, reading: "asyncio.Task[None]") -> None:
        """Let go of an agent that goes on: what was read is stored, and the next backend reads on behind it."""
        reading.cancel()
        await asyncio.wait([reading])
        await execution.ingest.leave()
        # At once: whoever waits for a line of his to be written must find an execution that is over, and not end it.
        self._forget(execution)

    async def _watch_silence(self, execution: AgentExecution) -> None:
        await watch_silence(execution, notice_s=self._timing.stall_notice_s, publish=self._publish)

    async def _watch_agentctl(self, execution: AgentExecution) -> None:
        await watch_agentctl(execution, silent_s=self._timing.agentctl_silent_s, publish=self._publish)

    async def _agent_ended(self, execution: AgentExecution, reading: "asyncio.Task[None]") -> None:
        ingest = execution.ingest
        lost = reading.exception()
        if lost is not None or ingest.reader.state.exited is None:
            log.warning("execution.agentctl_lost", session_id=execution.ref.session_id, error=str(lost))
            await execution.runtime.clear_leftovers([execution.instance])
            journal = journal_in(execution.instance.directory)
            await ingest.absorb_all(read_journal(journal, ingest.reader.position))
        stderr = await _stderr(execution)
        self._agent_logs.keep(execution.ref.session_id, execution.instance.directory)
        exited = ingest.reader.state.exited
        code = exited.code if exited else None
        why = execution.ending or ("" if execution.ready else "start_failed")
        # From here on nobody takes it for a live agent: whoever is told of the end may resume at once.
        execution.ready = False
        ingest.reader.agent_ended(stderr=stderr, why=why)
        failpoint("agent.before_exit")
        await ingest.finish(_death(code, stderr))
        failpoint("agent.after_exit")
        try:
            await execution.runtime.stop_instance(execution.instance, grace_s=0)
            await execution.runtime.discard(execution.instance)
        except RuntimeUnreachable as error:  # the session's next start, or that of the backend, ends what is left
            log.warning("instance.left", session_id=execution.ref.session_id, error=error.message)
        failpoint("agent.after_discard")


async def _is_out_of_reach(execution: AgentExecution) -> bool:
    """Tell, where the connection to agentctl was lost, whether its agent lives or nobody can say (CONT-4, CONT-5)."""
    if not execution.stays:
        return False
    try:
        if isinstance(execution.runtime, Elsewhere):
            return await execution.runtime.reconnect(execution.instance) is not None
        living = await execution.runtime.recover_instances()
    except RuntimeUnreachable:
        return True
    return any(instance.instance_id == execution.instance.instance_id for instance in living)


async def _stderr(execution: AgentExecution) -> str:
    try:
        return await execution.client.stderr_tail()
    except AgentctlError:
        return ""


async def _abandon(execution: AgentExecution) -> None:
    """The ingest cannot go on: another execution owns the session, or the program is wrong. Nothing is written."""
    execution.ingest.end(AgentDied("This run of the agent was replaced."))
    try:
        await execution.runtime.stop_instance(execution.instance, grace_s=0)
    except RuntimeUnreachable as error:
        log.warning("instance.left", session_id=execution.ref.session_id, error=error.message)


def _death(code: int | None, stderr: str) -> AgentDied:
    text = f"The agent ended with exit code {code}." if code is not None else "The agent was killed."
    said = stderr[-400:].strip()
    return AgentDied(f"{text} It said: {said.rstrip('.')}." if said else text, exit_code=code, stderr=stderr)
