"""Silence in a turn: an agent that says nothing for a minute may be stuck, so whoever looks on is told (STATE-11).

Its agentctl may be what is stuck, so that is asked sooner (CRASH-16).
"""

import asyncio
from collections.abc import Callable, Sequence

from kandev.domain.models import Event
from kandev.errors import AgentctlError
from kandev.lifecycle.execution import AgentExecution


async def watch_silence(
    execution: AgentExecution, *, notice_s: float, publish: Callable[[Sequence[Event]], None]
) -> None:
    """Publish `session.turn.stalled` once for each silence of `notice_s` in a turn, for as long as the agent lives.

    The next line of the agent ends a silence. It is no silence while the agent waits for a person's permission.
    """
    loop, ingest = asyncio.get_running_loop(), execution.ingest
    while True:
        left = ingest.last_heard + notice_s - loop.time()
        if left > 0:
            await asyncio.sleep(left)
            continue
        ingest.heard.clear()
        if execution.silent_s > 0:
            publish([_stalled(execution)])
        await ingest.heard.wait()  # a turn's begin is heard too: agentctl records each line that it writes


async def watch_agentctl(
    execution: AgentExecution, *, silent_s: float, publish: Callable[[Sequence[Event]], None]
) -> None:
    """Ask agentctl in a silent turn whether it is there; without an answer in `silent_s` it is not responding.

    That is published, and a resume then kills by identity. An answer, or a line of the agent, takes it back.
    """
    loop, ingest = asyncio.get_running_loop(), execution.ingest
    while True:
        left = ingest.last_heard + silent_s - loop.time()
        if execution.silent_s <= 0 or left > 0:
            await asyncio.sleep(max(left, silent_s / 2))
            continue
        answered = await _answers(execution, silent_s)
        was, execution.responding = execution.responding, answered
        if was and not answered:
            publish([_stalled(execution)])
        await asyncio.sleep(silent_s)


async def _answers(execution: AgentExecution, silent_s: float) -> bool:
    began = execution.ingest.last_heard
    try:
        async with asyncio.timeout(silent_s):
            await execution.client.status()
    except (TimeoutError, AgentctlError):
        return execution.ingest.last_heard > began
    return True


def _stalled(execution: AgentExecution) -> Event:
    return Event(
        action="session.turn.stalled",
        session_id=execution.ref.session_id,
        task_id=execution.ref.task_id,
        payload={
            "turn_id": execution.state.turn_id,
            "silent_s": round(execution.silent_s, 1),
            "responding": execution.responding,
        },
    )
