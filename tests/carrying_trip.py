"""One trip of a session's branch to a place elsewhere and home again, as a program that a failpoint may kill.

`python -m carrying_trip SOCKET WORKTREES REPOSITORY FAR`: sends the sources, does an agent's work there once, brings
it home, and prints the lines for the transcript as JSON.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from kandev.lifecycle.carrier import Carrier, Journey
from kandev.runtimes import AgentctlClient
from kandev.worktrees import Worktrees, plan_worktree

SESSION = "0123456789abcdef0123"
BINARY = bytes(range(256)) * 300


def work(far: Path) -> None:
    """What an agent does there: a commit, with a deletion and a binary file, and something that it does not commit."""
    if (far / "left").exists():
        return
    (far / "gone").unlink()
    (far / "binary").write_bytes(BINARY)
    subprocess.run(["git", "-C", str(far), "add", "-A"], check=True)
    identity = ("-c", "user.name=agent", "-c", "user.email=agent@example.invalid")
    subprocess.run(["git", "-C", str(far), *identity, "commit", "-q", "-m", "agent"], check=True)
    (far / "left").write_text("not committed")


async def main(socket: str, worktrees: str, repository: str, far: str) -> None:
    made = Worktrees(Path(worktrees), environ=os.environ)
    plan = plan_worktree(Path(worktrees), repository, session_id=SESSION, title="trip")
    journey = Journey(session_id=SESSION, workspace=(await made.validate(plan)).workspace, path=far)
    carrier, client = Carrier(made.carrying), AgentctlClient(f"unix:{socket}", instance_id="trip")
    try:
        notes = await carrier.carry_in(journey, client)
        await asyncio.to_thread(work, Path(far))
        notes += await carrier.bring_home(journey, client)
    finally:
        await client.aclose()
    sys.stdout.write(json.dumps(notes))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
