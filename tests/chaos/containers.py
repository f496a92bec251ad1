"""What must hold of an episode's containers: each belongs to a session that is there, and a session has one."""

import asyncio
from collections import Counter

from chaos.container_faults import MANAGED
from chaos.stage import Stage

SESSION = '{{.Label "kandev.session_id"}}'


async def left_over_containers(stage: Stage) -> list[str]:
    """What is wrong with the containers, in words; nothing where there is no engine."""
    if stage.engine is None:
        return []
    told = await asyncio.to_thread(stage.engine.docker, "ps", "-a", *MANAGED, "--format", SESSION)
    sessions = {row["id"] for row in stage.rows("SELECT id FROM task_sessions")}
    containers = Counter(told.split())
    found = [f"the container of session {name} belongs to nobody" for name in containers if name not in sessions]
    return found + [f"session {name} has {times} containers" for name, times in containers.items() if times > 1]
