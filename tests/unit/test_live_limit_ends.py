"""The watch for idle agents ends when it is cancelled, at whatever moment: the stop of the backend waits for it."""

import asyncio
from typing import Any

import pytest

from kandev.lifecycle.live_limit import LiveLimit


class NoAgents:
    """A manager without executions."""

    def all(self) -> list[Any]:
        return []


@pytest.mark.parametrize("steps", range(8))
async def test_state_1_the_watch_ends_also_when_an_agent_ended_just_now(steps: int) -> None:
    """It is cancelled some steps of the loop after it was told of a change; it once went on for an hour then."""
    manager: Any = NoAgents()
    limit = LiveLimit(manager, most=1, idle_minutes=30, busy=lambda _session_id: False)
    watch = asyncio.create_task(limit.run())
    await asyncio.sleep(0.01)
    limit.changed()
    for _ in range(steps):
        await asyncio.sleep(0)
    watch.cancel()
    await asyncio.wait([watch], timeout=2)
    ended = watch.cancelled()
    watch.cancel()
    assert ended
