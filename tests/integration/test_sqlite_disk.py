"""What the database does on a disk that fails, and after a kill: each test runs a small program of its own."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import sqlite_items as items

OPEN = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import sqlite_items as items
from kandev.errors import KandevError, StorageFull
from kandev.store.sqlite import SqliteDatabase
home = Path(sys.argv[1])
database = SqliteDatabase.open(home / "kandev.db", items.STATEMENTS, items.write_migrations(home))
"""

FULL_DISK = (
    OPEN
    + """
async def main():
    ballast = home / "ballast"
    ballast.write_bytes(bytes(400_000))
    done = 0
    for number in range(1000):
        try:
            await asyncio.wait_for(database.write(lambda tx: tx.run("put", id=number, name="x" * 5000)), 60)
        except StorageFull:
            break
        done += 1
    assert 0 < done < 1000, done
    failed = await asyncio.gather(*(
        database.write(lambda tx, n=n: tx.run("put", id=n, name="x" * 50_000)) for n in range(2000, 2005)
    ), return_exceptions=True)
    assert all(isinstance(error, StorageFull) for error in failed), failed
    assert [row["id"] for row in database.all("everything")] == list(range(done))
    ballast.unlink()
    await database.write(lambda tx: tx.run("put", id=5000, name="room again"))
    assert [row["id"] for row in await database.scan("everything")] == [*range(done), 5000]
    await database.aclose()
    print("good", done)

asyncio.run(main())
"""
)


def test_hist_12_a_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    """On a real file system without room commits fail with StorageFull, earlier rows are there, and room mends it."""
    mount = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], check=False, capture_output=True).returncode:
        pytest.skip("no private mount is allowed here, so no small file system can be made")
    script = tmp_path.parent / f"{tmp_path.name}.py"
    script.write_text(FULL_DISK)
    command = [sys.executable, "-B", str(script), str(tmp_path), *sources()]
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount + ' && exec "$@"', "sh", *command],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.stdout.startswith("good"), ran.stderr


LIMITED = (
    OPEN
    + """
import resource
async def main():
    await database.write(lambda tx: tx.run("put", id=1, name="before"))
    size = Path(f"{home}/kandev.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, resource.RLIM_INFINITY))
    try:
        await asyncio.wait_for(database.write(lambda tx: tx.run("put", id=2, name="x" * 100_000)), 60)
    except KandevError as exc:
        print(exc.reason)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await database.write(lambda tx: tx.run("put", id=3, name="after"))
    print([row["id"] for row in database.all("everything")])
    await database.aclose()

asyncio.run(main())
"""
)


def test_hist_12_a_commit_that_cannot_be_written_is_undone(tmp_path: Path) -> None:
    """An I/O error inside COMMIT is a typed error; the job left nothing, and the writer goes on."""
    ran = run_script(tmp_path, LIMITED)
    assert ran.stdout == "storage_failed\n[1, 3]\n", ran.stderr


KILLED = (
    OPEN
    + """
async def main():
    async def task(start):
        for number in range(start, 10**9, 8):
            await database.write(lambda tx: tx.run("put", id=number, name="x"))
            print(number, flush=True)
    await asyncio.gather(*(task(start) for start in range(8)))

asyncio.run(main())
"""
)


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    """After SIGKILL every write whose return was seen is in the database."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(tmp_path), *sources()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(200)]
        process.send_signal(signal.SIGKILL)
        seen += process.stdout.readlines()
    answered = {int(line) for line in seen if line.endswith("\n")}
    assert len(answered) >= 200
    with contextlib.closing(sqlite3.connect(tmp_path / "kandev.db")) as connection:
        assert answered <= {row[0] for row in connection.execute("SELECT id FROM items")}


def run_script(home: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = home / "script.py"
    script.write_text(text)
    command = [sys.executable, str(script), str(home), *sources()]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def sources() -> list[str]:
    """Where the program and the tests are found by a script of ours."""
    tests = Path(items.__file__).parent
    return [str(tests), str(tests.parent / "src")]
