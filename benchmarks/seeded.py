"""A home with many sessions in it, as a backend that was killed leaves it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import kandev.app
from benchmarks.bare import COMMAND
from benchmarks.flood_agent import SESSION, chunk, tool
from kandev.agentctl import records
from kandev.agentctl.journal import Journal
from kandev.agentctl.segments import journal_in
from kandev.agents.base import AgentConfig, SessionConfig
from kandev.domain.models import new_id, now
from kandev.home import Home
from kandev.lifecycle.protocol_state import InFlight, ProtocolState
from kandev.store.database import Tx, load_statements
from kandev.store.sqlite import SqliteDatabase

SESSIONS = 10_000
RUNNING = 1_000
WITH_JOURNAL = 50
JOURNAL_BYTES = 1 << 20
LINES_A_TOOL = 50
PROMPT_ID = 3

TABLES = {
    "tasks": "id title description state created_at updated_at",
    "task_sessions": "id task_id agent agent_config runtime state workspace created_at updated_at",
    "executors_running": "session_id task_id runtime status resume_token agent_execution_id instance_id last_seen_at "
    "protocol_state metadata created_at updated_at",
    "turns": "id session_id agent_execution_id message_id state line stop_reason started_at",
    "messages": "id session_id turn_id seq author_type type content created_at updated_at",
}
AGENT = AgentConfig(
    name="flood", display_name="flood", command=tuple(COMMAND), session=SessionConfig(native_session_resume=True)
)


class Seeded(msgspec.Struct, frozen=True, kw_only=True):
    """What was put in: (task, session) of all sessions, and how many chunks and tool calls the journals hold."""

    sessions: list[tuple[str, str]]
    running: list[str]
    chunks: int
    tools: int


async def seed(path: Path) -> Seeded:
    """Make the home at `path`: 10,000 sessions, 1,000 of them RUNNING in an open turn, 50 with a journal of 1 MB."""
    home = Home(path)
    home.prepare()
    store = Path(kandev.app.__file__).parent / "store"
    rows: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
    sessions, instances = [], []
    for number in range(SESSIONS):
        ids = _session(rows, running=number < RUNNING)
        sessions.append((ids["task_id"], ids["session_id"]))
        instances.append(ids["instance_id"])
    statements = {**load_statements(store / "queries.sql"), **{f"seed_{name}": _insert(name) for name in TABLES}}
    async with SqliteDatabase.open(home.database, statements, store / "migrations") as database:
        await database.write(lambda tx: _write(tx, rows))
    counts = [_journal(home.run / instance) for instance in instances[:WITH_JOURNAL]]
    return Seeded(
        sessions=sessions,
        running=[session_id for _, session_id in sessions[:RUNNING]],
        chunks=sum(count[0] for count in counts),
        tools=sum(count[1] for count in counts),
    )


def _insert(table: str) -> str:
    columns = TABLES[table].split()
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES (:{', :'.join(columns)})"


def _write(tx: Tx, rows: dict[str, list[dict[str, Any]]]) -> None:
    for table, of_table in rows.items():
        tx.many(f"seed_{table}", of_table)


def _session(rows: dict[str, list[dict[str, Any]]], *, running: bool) -> dict[str, str]:
    """Add the rows of one session with one turn, and return its ids."""
    stamp = now()
    ids = {name: new_id() for name in ("task_id", "session_id", "instance_id", "turn_id", "agent_execution_id")}
    asked, said = new_id(), new_id()
    common = {**ids, "created_at": stamp, "updated_at": stamp, "runtime": "standalone"}
    rows["tasks"].append({
        **common, "id": ids["task_id"], "title": "Measure", "description": "Measure it",
        "state": "IN_PROGRESS" if running else "REVIEW",
    })  # fmt: skip
    rows["task_sessions"].append({
        **common, "id": ids["session_id"], "agent": AGENT.name, "agent_config": msgspec.json.encode(AGENT).decode(),
        "state": "RUNNING" if running else "WAITING_FOR_INPUT", "workspace": '{"kind":"empty"}',
    })  # fmt: skip
    rows["executors_running"].append({
        **common, "status": "ready" if running else "stopped", "resume_token": SESSION, "last_seen_at": stamp,
        "protocol_state": _state(ids["turn_id"]) if running else "", "metadata": '{"token_proven":true}',
    })  # fmt: skip
    rows["turns"].append({
        **common, "id": ids["turn_id"], "message_id": asked, "state": "open" if running else "completed",
        "line": PROMPT_ID, "stop_reason": "" if running else "end_turn", "started_at": stamp,
    })  # fmt: skip
    for seq, (message_id, author) in enumerate(((asked, "user"), (said, "agent")), start=1):
        content = f"This is what the {author} said. " * 10
        rows["messages"].append({
            **common, "id": message_id, "seq": seq, "author_type": author, "type": "message", "content": content,
        })  # fmt: skip
    return ids


def _state(turn_id: str) -> str:
    return ProtocolState(
        agent_session_id=SESSION,
        turn_id=turn_id,
        prompt_line=PROMPT_ID,
        turn_accepted=True,
        in_flight={PROMPT_ID: InFlight(method="session/prompt", turn_id=turn_id)},
        next_rpc=PROMPT_ID + 1,
        next_line=PROMPT_ID + 1,
        lines_begun=PROMPT_ID,
        lines_written=PROMPT_ID,
    ).encode()


def _lines() -> Iterator[bytes]:
    number = 0
    while True:
        yield tool(number) if number % LINES_A_TOOL == 0 else chunk(number)
        number += 1


def _journal(directory: Path) -> tuple[int, int]:
    """Write a journal of 1 MB that nobody has read, the agent killed in the middle; return (chunks, tool calls)."""
    os.makedirs(directory, mode=0o700)
    journal = Journal(journal_in(str(directory)), on_growth=lambda: None)
    journal.write_record(records.StdinWritten(n=PROMPT_ID))
    lines: list[bytes] = []
    size = 0
    for line in _lines():
        lines.append(line)
        size += len(line)
        if size >= JOURNAL_BYTES:
            break
    journal.write_output(b"".join(lines))
    journal.write_record(records.Exited(code=None, signal=9))
    journal.close()
    tools = -(-len(lines) // LINES_A_TOOL)
    return len(lines) - tools, tools
