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

LINES = 3_000_000
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
        said = b"".join(line + b"\n" for line in lines if not line.startswith(b"\x1e"))
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO said (lines) VALUES (?)", (said,))
        if mode == "two":
            database.execute("COMMIT")
            database.execute("BEGIN IMMEDIATE")
        database.execute("UPDATE at SET position = ?", (position,))
        database.execute("COMMIT")
        await client.ack(position)

asyncio.run(main(*sys.argv[1:]))
"""


def new_database(path: Path) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "PRAGMA journal_mode=WAL; CREATE TABLE said (lines BLOB) STRICT;"
            "CREATE TABLE at (position INTEGER) STRICT; INSERT INTO at VALUES (0);"
        )
    return path


def stored(database: Path) -> bytes:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return b"".join(lines for (lines,) in connection.execute("SELECT lines FROM said ORDER BY rowid"))


async def read_on(one: Sidecar, database: Path, mode: str, *, killed_after_s: float | None) -> None:
    """Run a reader until it is killed, or to the end."""
    arguments = [str(database), one.instance.agentctl_url, one.instance.instance_id, mode]
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert reader.stdout is not None
    try:
        assert await reader.stdout.readline() == b"attached\n"
        if killed_after_s is None:
            assert await reader.wait() == 0
        else:
            await asyncio.sleep(killed_after_s)  # the moment is what is varied; nothing is asserted about it
    finally:
        with contextlib.suppress(ProcessLookupError):
            reader.kill()
        await reader.wait()


EVERYTHING = b"".join(b"%d\n" % n for n in range(LINES))
FLOOD = f"""
import os
for start in range(0, {LINES}, 1000):
    os.write(1, b''.join(b'%d\\n' % n for n in range(start, start + 1000)))
"""


async def test_one_transaction_survives_every_kill(tmp_path: Path) -> None:
    """CRASH-8: after fifteen kills every line is there, once, in order."""
    database, randomly = new_database(tmp_path / "kept.db"), random.Random()
    async with sidecar(cap_bytes=200_000) as one:
        await one.run(FLOOD)
        for _ in range(KILLS):
            await read_on(one, database, "one", killed_after_s=randomly.uniform(0, 0.06))
            kept = stored(database)
            assert kept == EVERYTHING[: len(kept)]
        await read_on(one, database, "one", killed_after_s=None)
    assert stored(database) == EVERYTHING


async def test_two_transactions_do_not(tmp_path: Path) -> None:
    """The control: content and position apart store lines twice before long."""
    database, randomly = new_database(tmp_path / "kept.db"), random.Random()
    async with sidecar(cap_bytes=200_000) as one:
        await one.run(FLOOD)
        kept = b""
        for _ in range(20 * KILLS):
            await read_on(one, database, "two", killed_after_s=randomly.uniform(0, 0.06))
            kept = stored(database)
            if kept != EVERYTHING[: len(kept)]:
                return
        raise AssertionError
