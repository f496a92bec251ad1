"""A reader is killed at random moments while an agent floods: what it stored is whole, once, and in order.

The rule behind it: what the agent said and how far it was read are stored in one transaction. A control stores them
in two and must be found wrong, or this test could not see the fault.
"""

import asyncio
import contextlib
import random
import sqlite3
import sys
from pathlib import Path

from sidecars import Sidecar, sidecar

LINES = 400_000
KILLS = 15

# Reads the journal from the stored position on, and stores lines and position; argv: database, url, id, mode.
READER = r"""
import asyncio, sqlite3, sys
from kandev.runtimes import AgentctlClient

async def main(path, url, instance_id, mode):
    database = sqlite3.connect(path, isolation_level=None)
    position = database.execute("SELECT position FROM at").fetchone()[0]
    client = AgentctlClient(url, instance_id=instance_id)
    print("attached", flush=True)
    rest = b""
    async for piece in client.stream(position):
        *lines, rest = (rest + piece).split(b"\n")
        if not lines:
            continue
        position += sum(len(line) + 1 for line in lines)
        rows = [(int(line),) for line in lines if not line.startswith(b"\x1e")]
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO said (number) VALUES (?)", rows)
        if mode == "two":
            database.execute("COMMIT")
            database.execute("BEGIN IMMEDIATE")
        database.execute("UPDATE at SET position = ?", (position,))
        database.execute("COMMIT")
        await client.ack(position)

asyncio.run(main(*sys.argv[1:]))
"""


async def killed_readers(one: Sidecar, database: Path, mode: str) -> list[int]:
    """Run readers over the database, kill each but the last at a random moment; return the lines as stored."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.executescript(
            "PRAGMA journal_mode=WAL; CREATE TABLE said (number INTEGER) STRICT;"
            "CREATE TABLE at (position INTEGER) STRICT; INSERT INTO at VALUES (0);"
        )
    arguments = [str(database), one.instance.agentctl_url, one.instance.instance_id, mode]
    randomly = random.Random(7)
    for attempt in range(KILLS + 1):
        reader = await asyncio.create_subprocess_exec(
            sys.executable, "-c", READER, *arguments, stdout=asyncio.subprocess.PIPE
        )
        assert reader.stdout is not None
        try:
            assert await reader.stdout.readline() == b"attached\n"
            if attempt < KILLS:
                # The moment is what is varied here; nothing is asserted about it.
                await asyncio.sleep(randomly.uniform(0, 0.06))
            else:
                assert await reader.wait() == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                reader.kill()
            await reader.wait()
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM said ORDER BY rowid")]


FLOOD = f"""
import os
for start in range(0, {LINES}, 1000):
    os.write(1, b''.join(b'%d\\n' % n for n in range(start, start + 1000)))
"""


async def test_one_transaction_survives_every_kill(tmp_path: Path) -> None:
    """CRASH-8: after fifteen kills every line is there, once, in order."""
    async with sidecar(cap_bytes=200_000) as one:
        await one.run(FLOOD)
        assert await killed_readers(one, tmp_path / "kept.db", "one") == list(range(LINES))


async def test_two_transactions_do_not(tmp_path: Path) -> None:
    """The control: content and position apart store lines twice."""
    async with sidecar(cap_bytes=200_000) as one:
        await one.run(FLOOD)
        assert await killed_readers(one, tmp_path / "kept.db", "two") != list(range(LINES))
