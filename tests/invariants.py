"""What must hold of a backend and its home whatever was killed, and whenever: each check returns what it found wrong.

    prompts = [Prompt(session_id, "message-1", "remember apple", acknowledged=True)]
    assert await held(lambda: violations(backend, prompts, [agent])) == []

A check reads the database of the running backend in one transaction, the files of its home, /proc, and the logs of
the fake agents. Nothing is changed. States move while they are looked at, so `held` looks again for a while.
"""

import asyncio
import contextlib
import json
import os
import re
import sqlite3
import stat
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from backend import Backend
from fakes import FakeAgent, runs
from kandev.agentctl.platform import descendants, is_alive
from leftovers import processes_naming

Found = list[str]
"""What is wrong, in words; empty when all is well."""

PATIENCE_S = 20.0
"""How long something that is on its way may take to become right."""
PACE_S = 0.03

TASK_STATES = {
    "CREATED": {"CREATED"},
    "WAITING_FOR_INPUT": {"REVIEW"},
    "RUNNING": {"IN_PROGRESS"},
    "FAILED": {"FAILED"},
    "CANCELLED": {"REVIEW"},
    "COMPLETED": {"COMPLETED"},
}
"""The pairs of design, section 4, for a task with one session. STARTING goes with any state that is not final."""

FINAL = {"COMPLETED", "FAILED", "CANCELLED"}
LIVE_ROWS = {"creating", "starting", "ready", "unknown"}
PRIVATE_FILES = 0o600
PRIVATE_DIRECTORIES = 0o700


class Prompt(NamedTuple):
    """What a client sent. `acknowledged`: it got an answer, so the prompt is durable.

    `certain`: it had reached nobody when something was killed, so it goes out by itself, unless its queue is held.
    """

    session_id: str
    client_message_id: str
    content: str
    acknowledged: bool = True
    certain: bool = False


async def held(look: Callable[[], Awaitable[Found]], seconds: float = PATIENCE_S) -> Found:
    """Looks until nothing is wrong, or for so long; what the last look found."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while (found := await look()) and loop.time() < deadline:
        await asyncio.sleep(PACE_S)
    return found


async def violations(
    backend: Backend, prompts: Sequence[Prompt] = (), agents: Sequence[FakeAgent] = (), *, marked: str = ""
) -> Found:
    """Every check below, of a backend that runs. `marked`: see `orphans`."""
    found = await stuck_sessions(backend)
    with reading(backend.home) as database:
        found += disagreeing_states(database)
        found += broken_turns(database)
        found += broken_transcripts(database)
        found += broken_queues(database)
        found += left_over_rows(database)
        found += lost_prompts(database, prompts)
        found += delivered_twice(database, prompts, agents)
        found += broken_histories(backend.home, database)
        found += left_over_directories(backend.home, database)
        found += orphans(backend, database, marked=marked)
    return found + wrong_modes(backend.home)


@contextlib.contextmanager
def reading(home: Path) -> Iterator[sqlite3.Connection]:
    """One transaction that only reads the database of a running backend."""
    connection = sqlite3.connect(f"file:{home / 'kandev.db'}?mode=ro", uri=True, isolation_level=None, timeout=5)
    connection.row_factory = sqlite3.Row
    with contextlib.closing(connection):
        connection.execute("BEGIN")
        yield connection


# ---- states


async def stuck_sessions(backend: Backend) -> Found:
    """No session is STARTING without a start under way, or RUNNING without a turn and the agent that has it."""
    with reading(backend.home) as database:
        busy = database.execute("SELECT id, task_id FROM task_sessions WHERE state IN ('STARTING', 'RUNNING')")
        sessions = busy.fetchall()
    found = []
    async with backend.client() as client:
        for session_id, task_id in map(tuple, sessions):
            status = await client.call("task.session.status", {"task_id": task_id, "session_id": session_id})
            if status["state"] == "STARTING" and not status["stage"]:
                found.append(f"session {session_id} is STARTING and nobody starts it")
            if status["state"] == "RUNNING" and not (status["is_agent_running"] and status["turn"]):
                found.append(f"session {session_id} is RUNNING without a turn or an agent: {status}")
    return found


def disagreeing_states(database: sqlite3.Connection) -> Found:
    """No task is in a state that its sessions contradict (design, section 4)."""
    found = []
    for task in database.execute("SELECT id, state FROM tasks"):
        query = "SELECT id, state, queue_held FROM task_sessions WHERE task_id = ?"
        sessions = database.execute(query, (task["id"],)).fetchall()
        if sessions and task["state"] not in _states_of_task(database, sessions):
            found.append(f"task {task['id']} is {task['state']}, its sessions {[one['state'] for one in sessions]}")
    return found


def _states_of_task(database: sqlite3.Connection, sessions: Sequence[sqlite3.Row]) -> set[str]:
    states = {session["state"] for session in sessions}
    if "RUNNING" in states:
        return {"IN_PROGRESS"}
    if "STARTING" in states:
        return {"CREATED", "IN_PROGRESS", "REVIEW"}
    if "WAITING_FOR_INPUT" in states:
        # Launched, and the first prompt is about to go out: the task stays in progress.
        return {"REVIEW", "IN_PROGRESS"} if any(_sends(database, one) for one in sessions) else {"REVIEW"}
    return set().union(*(TASK_STATES[state] for state in states))


def _sends(database: sqlite3.Connection, session: sqlite3.Row) -> bool:
    queued = database.execute("SELECT 1 FROM queued_prompts WHERE session_id = ? LIMIT 1", (session["id"],)).fetchone()
    return queued is not None and not session["queue_held"]


def broken_turns(database: sqlite3.Connection) -> Found:
    """A turn that is open belongs to a session that runs, and to the execution of its row; an ended one has an end."""
    found = []
    query = """SELECT turns.*, task_sessions.state AS session_state, executors_running.agent_execution_id AS current,
        executors_running.status AS row_status FROM turns JOIN task_sessions ON task_sessions.id = turns.session_id
        JOIN executors_running ON executors_running.session_id = turns.session_id"""
    for turn in database.execute(query):
        what = f"turn {turn['id']} of session {turn['session_id']}"
        if turn["state"] == "open" and turn["session_state"] != "RUNNING":
            found.append(f"{what} is open, its session {turn['session_state']}")
        if turn["state"] == "open" and (turn["agent_execution_id"] != turn["current"] or turn["row_status"] != "ready"):
            found.append(f"{what} is open, its execution is not running ({turn['row_status']})")
        if turn["state"] not in {"open", "unknown"} and not turn["ended_at"]:
            found.append(f"{what} is {turn['state']} and has no end")
    return found


# ---- prompts


def lost_prompts(database: sqlite3.Connection, prompts: Iterable[Prompt]) -> Found:
    """Every acknowledged prompt is stored once, in the transcript or in the queue; an unanswered one at most once.

    Those of a session that was deleted are gone with it.
    """
    found = []
    there = {session_id for (session_id,) in database.execute("SELECT id FROM task_sessions")}
    for prompt in (one for one in prompts if one.session_id in there):
        query = """SELECT messages.seq, queued_prompts.position FROM messages
            LEFT JOIN queued_prompts ON queued_prompts.message_id = messages.id
            WHERE messages.session_id = ? AND messages.content = ? AND author_type = 'user'
            AND coalesce(client_message_id, '') = ?"""
        key = (prompt.session_id, prompt.content, prompt.client_message_id)
        stored = database.execute(query, key).fetchall()
        if len(stored) > 1 or (prompt.acknowledged and not stored):
            found.append(f"{prompt} is stored {len(stored)} times")
        if any((one["seq"] is None) == (one["position"] is None) for one in stored):
            found.append(f"{prompt} is in the transcript and the queue, or in neither")
    return found


def delivered_twice(database: sqlite3.Connection, prompts: Iterable[Prompt], agents: Iterable[FakeAgent]) -> Found:
    """Every prompt reached its agent at most once; one that was certain to have reached nobody, once (PROMPT-4).

    It may still wait, where its queue is held or an earlier turn runs. The contents of all prompts must differ.
    """
    found = []
    received = deliveries(agents)
    for prompt in prompts:
        times = received[prompt.content]
        if times > 1:
            found.append(f"{prompt} was delivered {times} times")
        if prompt.certain and not times and not _waits(database, prompt):
            found.append(f"{prompt} was not delivered and does not wait")
    return found


def _waits(database: sqlite3.Connection, prompt: Prompt) -> bool:
    query = """SELECT 1 FROM queued_prompts JOIN messages ON messages.id = queued_prompts.message_id
        WHERE messages.session_id = ? AND messages.content = ?"""
    return database.execute(query, (prompt.session_id, prompt.content)).fetchone() is not None


def deliveries(agents: Iterable[FakeAgent]) -> Counter[str]:
    """How often each prompt reached the agents, as a person wrote it: without the resume context around it."""
    return Counter(request_in(text) for agent in agents for text in agent.prompts())


def request_in(text: str) -> str:
    """What a person asked for in a prompt as it was sent."""
    if not text.startswith("RESUME CONTEXT FOR CONTINUING TASK"):
        return text
    return text.partition("\n=== CURRENT REQUEST ===\n")[2].rpartition("\n=== INSTRUCTIONS ===\n")[0]


def broken_queues(database: sqlite3.Connection) -> Found:
    """A prompt is in the queue, or has a place and a turn; never both, never neither (PROMPT-8)."""
    query = """SELECT messages.id, messages.seq, messages.turn_id, queued_prompts.position FROM messages
        LEFT JOIN queued_prompts ON queued_prompts.message_id = messages.id WHERE messages.author_type = 'user'"""
    found = []
    for message in database.execute(query):
        queued, placed = message["position"] is not None, message["seq"] is not None
        if queued == placed or placed != (message["turn_id"] is not None):
            found.append(f"prompt {message['id']}: {dict(message)}")
    return found


# ---- transcripts


def broken_transcripts(database: sqlite3.Connection) -> Found:
    """Streamed pieces follow each other without a gap, and only the open message of a running turn has any."""
    found = []
    query = "SELECT message_id, position, content FROM message_parts ORDER BY message_id, position"
    expected: dict[str, int] = {}
    for part in database.execute(query):
        at = expected.setdefault(part["message_id"], 0)
        if part["position"] != at:
            found.append(f"message {part['message_id']} has a piece at {part['position']}, expected at {at}")
        expected[part["message_id"]] = part["position"] + len(part["content"])
    query = """SELECT messages.id, task_sessions.state FROM messages
        JOIN task_sessions ON task_sessions.id = messages.session_id
        WHERE json_extract(messages.metadata, '$.streaming') OR messages.id IN (SELECT message_id FROM message_parts)"""
    # A late tail of a turn streams while its session waits already (STATE-7).
    left = [row for row in database.execute(query) if row["state"] not in {"RUNNING", "WAITING_FOR_INPUT"}]
    return found + [f"message {row['id']} is open, its session {row['state']}" for row in left]


def chunks(text: str) -> list[int]:
    """The numbers in a text of numbered chunks ("chunk 7 "), in order."""
    return [int(number) for number in re.findall(r"chunk (\d+) ", text)]


def broken_chunks(text: str, *, expected: int | None = None) -> Found:
    """Numbered chunks are there from 1 on, in order, once; all of them where `expected` says how many."""
    numbers = chunks(text)
    whole = list(range(1, len(numbers) + 1))
    if numbers != whole or (expected is not None and len(numbers) != expected):
        return [f"chunks {numbers} instead of 1 to {expected or 'any number'}"]
    return []


def agent_text(database: sqlite3.Connection, turn_id: str) -> str:
    """All that the agent said in a turn, streamed pieces among it."""
    query = """SELECT messages.content || coalesce((SELECT group_concat(content, '') FROM
        (SELECT content FROM message_parts WHERE message_id = messages.id ORDER BY position)), '') AS text
        FROM messages WHERE turn_id = ? AND author_type = 'agent' AND type = 'message' ORDER BY seq"""
    return "".join(row["text"] for row in database.execute(query, (turn_id,)))


def broken_histories(home: Path, database: sqlite3.Connection) -> Found:
    """Each text stands once in its history file; a line that was torn is left behind, and readers skip it (HIST-5)."""
    found = []
    for (session_id,) in database.execute("SELECT id FROM task_sessions"):
        path = home / "sessions" / f"{session_id}.jsonl"
        records = [line for line in path.read_bytes().split(b"\n")[:-1] if line] if path.exists() else []
        seen: Counter[tuple[str, str]] = Counter()
        for line in records:
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                seen[record["type"], record.get("message_id", "")] += 1
        found += [
            f"{path.name}: {kind} of {message_id} stands there {times} times"
            for (kind, message_id), times in seen.items()
            if times > 1 and kind in {"user_message", "agent_message"}
        ]
    return found


# ---- what is left over


def left_over_rows(database: sqlite3.Connection) -> Found:
    """No promise, question or line on its way is kept for an agent that does not run."""
    query = """SELECT task_sessions.id, task_sessions.state, intent, status,
        (SELECT count(*) FROM outbox WHERE outbox.session_id = task_sessions.id) AS lines,
        (SELECT count(*) FROM permission_requests AS asked
            WHERE asked.session_id = task_sessions.id AND asked.state = 'pending') AS questions
        FROM task_sessions JOIN executors_running ON executors_running.session_id = task_sessions.id"""
    found = []
    for session in database.execute(query):
        gone = session["status"] not in LIVE_ROWS
        if session["intent"] or (gone and (session["lines"] or session["questions"])):
            found.append(f"left over: {dict(session)}")
    return found


RUNTIMES = ("detached", "docker")
"""Directories under run/ that hold a runtime's instances; those of standalone stand there themselves."""
ARCHIVE = re.compile(r"agentctl(-[0-9a-f]+\.pyz|\.new)")
"""What containers get agentctl from: whoever is the user in there may read it, and it holds nothing secret. A draft of
it that a kill left is written over by the next."""
AGENTS_HOME = "home"
"""What the directory of a session in a container holds besides its instances."""


def left_over_directories(home: Path, database: sqlite3.Connection) -> Found:
    """The directory of every ended instance is gone, with its journal and its socket; that of a deleted session too."""
    query = f"SELECT instance_id FROM executors_running WHERE status IN ({','.join('?' * len(LIVE_ROWS))})"
    named = {row["instance_id"] for row in database.execute(query, sorted(LIVE_ROWS))}
    instances = [path for path in (home / "run").iterdir() if path.name not in RUNTIMES]
    instances += (home / "run/detached").glob("*")
    sessions = [path for path in (home / "run/docker").glob("*") if not ARCHIVE.fullmatch(path.name)]
    instances += [path for session in sessions for path in session.glob("*/")]
    named |= {AGENTS_HOME, *(row["id"] for row in database.execute("SELECT id FROM task_sessions"))}
    return [f"{path.relative_to(home)} belongs to nobody" for path in (*instances, *sessions) if path.name not in named]


def orphans(backend: Backend, database: sqlite3.Connection, *, marked: str = "", roots: Sequence[int] = ()) -> Found:
    """Every process that names the home, or `marked`, is below the backend, or below an agentctl that a row names.

    `marked` is a text that all processes of this home got in their environment: fork servers do not name the home.
    `roots` are processes that may be there as well: those of containers, of which rows name no process.
    """
    named = processes_naming(str(backend.home)) | (processes_naming(marked) if marked else {})
    query = "SELECT agentctl_pid, agentctl_start_time FROM executors_running WHERE status IN ('ready', 'unknown')"
    known = [
        backend.pid,
        *roots,
        *(pid for pid, began in map(tuple, database.execute(query)) if pid and is_alive(pid, began)),
    ]
    owned = {pid for root in known for pid in (root, *descendants(root))}
    # A process that ended between the two looks is nobody's orphan.
    return [f"process {pid} is an orphan: {what}" for pid, what in named.items() if pid not in owned and runs(pid)]


def wrong_modes(home: Path) -> Found:
    """Files of the home are 0600 and directories 0700; what agents and git write in worktrees is theirs (TOK-9)."""
    found = []
    for directory, names, files in os.walk(home):
        path = Path(directory)
        if path in {home / "worktrees", home / "run"}:
            names[:] = [] if path.name == "worktrees" else names
        if path.parent.parent == home / "run" and path.name == "tmp":
            names[:], files[:] = [], []  # the agent's own temporary directory
        found += _wrong_mode(path, PRIVATE_DIRECTORIES)
        for name in files:
            if not (path == home and name == "config.toml") and not ARCHIVE.fullmatch(name):
                found += _wrong_mode(path / name, PRIVATE_FILES)
    return found


def _wrong_mode(path: Path, allowed: int) -> Found:
    with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & ~allowed:
            return [f"{path} has mode {mode:o}"]
    return []
