"""Checks of what is stored: the database, rows that are stuck, folders that are gone, processes left behind."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import kandev.store
from kandev.agentctl.platform import is_alive
from kandev.cli.doctor_mending import Mending
from kandev.cli.finding import Finding
from kandev.domain.models import HoldReason
from kandev.errors import Conflict
from kandev.home import Home
from kandev.runtimes import kill_leftovers, read_identity
from kandev.runtimes.base import RUNTIME_DIRECTORIES
from kandev.store.migrator import check_owner, load_migrations

_BUSY_S = 5.0
_MIGRATIONS = Path(kandev.store.__file__).parent / "migrations"
_SESSIONS = """
SELECT s.id, s.task_id, s.agent, s.runtime, s.state, s.parked_reason, s.queue_held, s.error_message,
       e.worktree_path, e.worktree_branch,
       (SELECT count(*) FROM queued_prompts q WHERE q.session_id = s.id) AS queued
FROM task_sessions s LEFT JOIN executors_running e ON e.session_id = s.id
WHERE s.state <> 'COMPLETED' ORDER BY s.created_at
"""
_ACTIVE = ("STARTING", "RUNNING", "WAITING_FOR_INPUT")


def check_state(home: Home, mending: Mending, *, backend_runs: bool) -> Iterator[Finding]:
    """Look at the database and at what its rows name. Only reads; `mending` is what the findings' fixes do."""
    if not home.database.exists():
        yield Finding(check="database", level="note", text="is not there yet; `kandev serve` makes it.")
        return
    try:
        check_owner(home.database)
        with contextlib.closing(open_read_only(home.database)) as connection:
            yield from _database(connection, home)
            yield from _sessions(connection, mending)
            runtimes = _instances(connection)
    except Conflict as error:
        yield Finding(check="database", level="problem", text=error.message)
        return
    except sqlite3.Error as error:
        yield Finding(
            check="database",
            level="problem",
            text=f"{home.database} cannot be read: {error}.",
            mend=f"Copies from before each migration are in {home.backups}.",
        )
        return
    yield from _leftovers(home, runtimes, backend_runs=backend_runs)


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open the database so that nothing can be written; a running backend is not disturbed."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA query_only = 1")
    return connection


def _database(connection: sqlite3.Connection, home: Home) -> Iterator[Finding]:
    wrong = [str(row[0]) for row in connection.execute("PRAGMA quick_check(5)") if row[0] != "ok"]
    if wrong:
        mend = f"Stop the backend, keep the file, and put a copy from {home.backups} in its place."
        yield Finding(check="database", level="problem", text=f"is damaged: {'; '.join(wrong)}", mend=mend)
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    known = len(load_migrations(_MIGRATIONS))
    if version > known:
        text = f"was written by a newer kandev (version {version}; this one knows {known})."
        yield Finding(check="database", level="problem", text=text, mend="Install that version of kandev.")
    elif version < known:
        text = f"is of version {version} and will be brought to {known}, after a copy, when `kandev serve` starts."
        yield Finding(check="database", level="note", text=text)
    if not wrong:
        size = home.database.stat().st_size / 1024
        yield Finding(check="database", level="ok", text=f"{size:,.0f} KB, version {version}")


def _sessions(connection: sqlite3.Connection, mending: Mending) -> Iterator[Finding]:
    for row in connection.execute(_SESSIONS).fetchall():  # all, because a fix writes
        yield from _session(row, mending)


def _session(row: Mapping[str, Any], mending: Mending) -> Iterator[Finding]:
    short, agent = str(row["id"])[:8], row["agent"]
    if row["state"] in {"STARTING", "RUNNING"} and (why := mending.why_stuck(row)):
        text = f"{short} ({agent}) is {row['state']}, but {why}. Its turn may be cut off; what was said is kept."
        fix = partial(mending.settle, row["task_id"], row["id"])
        yield Finding(check="session", level="warning", text=text, mend=mending.settles.format(short), fix=fix)
    if row["parked_reason"]:
        text = f"{short} ({agent}) is parked: {row['parked_reason']}"
        mend = f"kandev logs {short}; then: kandev recover {short} --action resume"
        fix = partial(mending.unpark, row["task_id"], row["id"])
        yield Finding(check="session", level="warning", text=text, mend=mend, fix=fix)
    elif row["queue_held"] and row["queued"]:
        text = f"{short} ({agent}) has {row['queued']} messages that wait for you ({row['queue_held']})."
        resume = f"kandev resume {short}, once the login is there"
        to_go_on = f"kandev queue {short} --resume" if row["queue_held"] != HoldReason.LOGIN else resume
        mend = f"kandev queue {short}; then: {to_go_on}"
        yield Finding(check="session", level="note", text=text, mend=mend)
    if row["state"] == "FAILED":
        text = f"{short} ({agent}) failed: {row['error_message'] or 'no reason was stored'}"
        mend = f"kandev logs {short}; then: kandev recover {short} --action resume"
        yield Finding(check="session", level="note", text=text, mend=mend)
    folder, branch = row["worktree_path"], row["worktree_branch"]
    if row["state"] in _ACTIVE and folder and not Path(folder).exists():
        mend = f"kandev resume {short} makes it again from branch {branch}." if branch else f"kandev rm {short}"
        yield Finding(check="session", level="warning", text=f"{short}: the folder {folder} is gone.", mend=mend)


def _instances(connection: sqlite3.Connection) -> Mapping[str, str]:
    """Return the runtime of each instance that a row names."""
    rows = connection.execute("SELECT instance_id, runtime FROM executors_running WHERE instance_id <> ''")
    return {row["instance_id"]: row["runtime"] for row in rows}


def _leftovers(home: Home, runtimes: Mapping[str, str], *, backend_runs: bool) -> Iterator[Finding]:
    """Processes of instances on this machine. Those of a detached session go on on purpose and are attached to."""
    silent = 0
    for directory in _instance_directories(home):
        pids = _living(directory)
        runtime = runtimes.get(directory.name, "")
        if not pids:
            silent += directory.name not in runtimes
        elif runtime == "detached":
            text = f"{directory.name[:8]}: a detached agent runs (processes {pids})."
            mend = "" if backend_runs else "kandev serve attaches to it."
            yield Finding(check="process", level="ok" if backend_runs else "note", text=text, mend=mend)
        elif not backend_runs:
            yield _leftover(directory, pids)
        elif not runtime:
            text = f"{directory.name[:8]}: processes {pids} run, and no session names them."
            yield Finding(check="process", level="warning", text=text, mend="The next start of the backend ends them.")
    if silent:
        text = f"{silent} journals of ended agents that no session names are in {home.run}."
        yield Finding(check="process", level="note", text=text, mend="The next start of the backend removes them.")


def _instance_directories(home: Home) -> list[Path]:
    """Return those of standalone and detached; what runs in a container has no process of ours."""
    standalone = (path for path in home.run.glob("*") if path.name not in RUNTIME_DIRECTORIES)
    detached = (home.run / "detached").glob("*")
    return sorted(path for path in (*standalone, *detached) if path.is_dir())


def _living(directory: Path) -> list[int]:
    identity = read_identity(str(directory))
    if identity is None:
        return []
    processes = [(identity.pid, identity.start_time)]
    if identity.agent:
        processes.append((identity.agent.pid, identity.agent.start_time))
    return [pid for pid, start_time in processes if is_alive(pid, start_time)]


def _leftover(directory: Path, pids: list[int]) -> Finding:
    return Finding(
        check="process",
        level="warning",
        text=f"{directory.name[:8]}: processes {pids} outlived their backend.",
        mend="kandev serve ends them first and keeps what they said.",
        fix=lambda: _end(directory),
    )


def _end(directory: Path) -> None:
    asyncio.run(kill_leftovers([str(directory)]))
