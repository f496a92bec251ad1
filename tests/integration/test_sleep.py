"""A machine that slept: every process stood still, and nothing of that is a failure (STATE-10)."""

import asyncio
import os
import re
import signal
from pathlib import Path

import kandev
from backend import Backend
from conversation import Cast

SOURCES = Path(kandev.__file__).parent
STAMPS = {
    "domain/models.py": "times that are stored, and how long ago they were",
    "cli/client.py": "the time in a message",
    "store/migrator.py": "the name of a copy",
    "demo/agent.py": "the time in the demo agent's file",
    "lifecycle/minute.py": "the minute by which an agent names its files; the wait itself is by the loop's clock",
}
"""Where the clock on the wall is read, and for what; whatever waits has a clock that no one sets."""

SHORT = {f"KANDEV__TIMING__{name}": "1" for name in ("RPC_INACTIVITY_S", "STALL_NOTICE_S", "AGENTCTL_SILENT_S")}
NAP_S = 3.0  # longer than each of the limits above


def test_state_10_nothing_waits_by_the_clock_on_the_wall() -> None:
    """It jumps when a laptop wakes, and when somebody sets it."""
    wall = re.compile(r"time\.time\(|datetime\.now|utcnow")
    found = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if wall.search(path.read_text())}
    assert found == set(STAMPS)


async def test_state_10_a_machine_that_slept_goes_on_with_its_turn(tmp_path: Path) -> None:
    """Backend, agentctl and agent stand still for longer than every limit: the turn ends as if nothing had been."""
    cast = Cast(tmp_path / "cast", each=1)
    async with Backend(tmp_path, config=cast.config, environment=SHORT) as backend:
        await backend.start()
        async with backend.client() as client:
            steps = [{"chunks": 3, "text": "chunk {n} "}, {"gate": "morning"}, {"chunks": 3, "text": "late {n} "}]
            session = await cast.conversation(client, on={"session/prompt": {"match": "long", "steps": steps}})
            await session.begin()
            await session.send("long")
            await session.event("session.message.delta")
            asleep = {*backend.processes(), *session.agent.alive()}
            for pid in asleep:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(NAP_S)
            for pid in asleep:
                os.kill(pid, signal.SIGCONT)
            session.agent.open_gate("morning")
            turn = await session.turn_ended()
            assert (turn["state"], turn["stop_reason"]) == ("completed", "end_turn")
            (text,) = (await session.texts("agent"))[1:]
            assert text.split("late")[0].count("chunk") == text.count("late") == 3
            assert await session.notices() == []
            await session.say("awake?")
            assert len(session.agent.pids()) == 1
