"""The minute of the clock in which an agent last opened a session.

An agent that names its files by the minute writes over the file when it restores the session within that minute
(seen: Gemini 0.61.0, which lost the session by it). So it is asked in the next one.
"""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime

from kandev.lifecycle.execution import AgentExecution

MARGIN_S = 1.0


def seconds_to_wait(opened_at: str, at: datetime) -> float:
    """Return how long it is from `at` to the next minute if the session was opened in this one, else 0.

    `opened_at` is a stored time, '' where there is none. Zones do not matter: minutes begin together everywhere.
    """
    if not opened_at:
        return 0.0
    opened = datetime.fromisoformat(opened_at).astimezone(UTC)
    minute = at.astimezone(UTC).replace(second=0, microsecond=0)
    if opened.replace(second=0, microsecond=0) != minute:
        return 0.0
    return 60 - (at.astimezone(UTC) - minute).total_seconds() + MARGIN_S


async def wait_for_next_minute(execution: AgentExecution, stage: Callable[[str], None]) -> None:
    """Wait as long as this agent's session must not be restored, shown as a stage; not beyond the agent's end."""
    request = execution.request
    if not (execution.config.session.load_next_minute and request.token_proven):
        return
    left = seconds_to_wait(request.opened_at, datetime.now(UTC))
    if left:
        stage("next_minute")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await execution.ended.wait()
