"""What must hold of sessions whatever happens and whenever: written from the specification, not from the code.

`after_commit` looks at every committed state, because each may be the last one before a kill; `look` after each step
of a test; `look_settled` when nothing happens by itself any more. All of them note faults in the world.
"""

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import invariants
from model.database import Seen, rows
from model.world import World

SESSION_MOVES = {
    "CREATED": {"STARTING", "FAILED", "CANCELLED", "COMPLETED"},
    "STARTING": {"WAITING_FOR_INPUT", "FAILED", "CANCELLED", "COMPLETED"},
    "WAITING_FOR_INPUT": {"STARTING", "RUNNING", "FAILED", "CANCELLED", "COMPLETED"},
    "RUNNING": {"WAITING_FOR_INPUT", "CANCELLED", "COMPLETED"},
    "FAILED": {"WAITING_FOR_INPUT", "COMPLETED"},
    "CANCELLED": {"WAITING_FOR_INPUT", "COMPLETED"},
    "COMPLETED": set(),
}
FIRST = (
    ("RUNNING", {"IN_PROGRESS"}),
    ("STARTING", {"IN_PROGRESS", "REVIEW"}),
    ("WAITING_FOR_INPUT", {"REVIEW"}),
)
"""The states of a task by the first of these in which one of its sessions is."""
OTHERWISE = {
    "CREATED": {"CREATED"},
    "FAILED": {"FAILED"},
    "CANCELLED": {"REVIEW"},
    "COMPLETED": {"COMPLETED"},
}
LIVE_ROWS = {"creating", "starting", "ready"}
ENDED = {"COMPLETED", "FAILED", "CANCELLED"}

SESSIONS = """
SELECT s.id, s.task_id, s.state, s.queue_held, s.intent, s.parked_reason, t.state AS task, e.status,
    e.agent_execution_id AS execution, e.resume_token AS token, e.metadata,
    (SELECT count(*) FROM turns WHERE turns.session_id = s.id AND turns.state = 'open') AS open,
    (SELECT agent_execution_id FROM turns WHERE turns.session_id = s.id AND turns.state = 'open') AS turn_execution,
    (SELECT count(*) FROM queued_prompts AS q WHERE q.session_id = s.id) AS queued
FROM task_sessions AS s JOIN tasks AS t ON t.id = s.task_id JOIN executors_running AS e ON e.session_id = s.id
"""
PROMPTS = """
SELECT m.id, m.session_id, m.content, m.seq, m.turn_id, q.position, turns.state AS turn FROM messages AS m
LEFT JOIN queued_prompts AS q ON q.message_id = m.id LEFT JOIN turns ON turns.message_id = m.id
WHERE m.author_type = 'user' ORDER BY m.session_id, m.seq IS NULL, m.seq, q.position
"""


class Wishes:
    """What people asked for that changes a token: how often in each session, and which tokens it ever had."""

    def __init__(self) -> None:
        self.fresh_starts: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.tokens: defaultdict[str, set[str]] = defaultdict(set)


class Laws:
    """The laws of one world. `stored` are each session's prompts, in the order in which they were stored."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.wishes = Wishes()
        self.acknowledged: dict[str, tuple[str, str]] = {}
        self.deleted: set[str] = set()
        self.lost_one: set[str] = set()
        self.stored: defaultdict[str, list[str]] = defaultdict(list)
        self._read = 0
        world.after_commit = self.after_commit

    # ---- every commit

    def after_commit(self) -> None:
        """Look at what was just committed."""
        world = self.world
        for seen in world.seen[self._read :]:
            world.faults += self._of_change(seen)
        self._read = len(world.seen)
        tasks: defaultdict[str, list[sqlite3.Row]] = defaultdict(list)
        for session in rows(world.database.connection, SESSIONS):
            world.faults += _of_state(session)
            tasks[session["task_id"]].append(session)
        for task_id, sessions in tasks.items():
            world.faults += _of_task(sessions, lost_one=task_id in self.lost_one)

    def _of_change(self, seen: Seen) -> Iterator[str]:
        match seen.kind:
            case "session" if seen.new not in SESSION_MOVES[seen.old]:
                yield f"a session went from {seen.old} to {seen.new}"
            case "task" if seen.old == "COMPLETED":
                yield f"a task went from {seen.old} to {seen.new}"
            case "token":
                yield from self._of_token(seen)
            case "prompt":
                self.stored[seen.id].append(seen.new)
            case "withdrawn" if seen.old in self.stored[seen.id]:
                self.stored[seen.id].remove(seen.old)
            case "turn":
                yield from self._of_turn(seen)
            case "deleted":
                self.deleted.add(seen.id)
                self.lost_one.add(seen.more)

    def _of_token(self, seen: Seen) -> Iterator[str]:
        """TOK-1, TOK-3, TOK-10: who may change a token, and into what."""
        more = json.loads(seen.more)
        tokens = self.wishes.tokens[seen.id]
        if seen.new:
            made_here = self.world.machine.made.get(seen.new) == more["execution"]
            if not made_here and not (self.wishes.retries[seen.id] and seen.new in tokens):
                yield f"token {seen.new} is not of execution {more['execution']}"
            tokens.add(seen.new)
        else:
            if more["metadata"].get("previous_token") != seen.old:
                yield f"token {seen.old} was destroyed"
            if not self._given_up(seen.id, seen.old):
                yield f"token {seen.old} was given up, and nobody had said that it is unknown"

    def _given_up(self, session_id: str, token: str) -> bool:
        refusals = [kind for whose, what, kind in self.world.machine.refused if (whose, what) == (session_id, token)]
        return "forgotten" in refusals or refusals.count("refused") >= 2 or self.wishes.fresh_starts[session_id] > 0

    def _of_turn(self, seen: Seen) -> Iterator[str]:
        """PROMPT-4: what was certain not to have been delivered is no interrupted turn."""
        if seen.old != "open":
            yield f"a turn went from {seen.old} to {seen.new}"
        if seen.new == "interrupted" and not self._begun(seen.id):
            yield f"turn {seen.id} is interrupted, and its prompt reached nobody"

    def _begun(self, turn_id: str) -> bool:
        query = """SELECT turns.session_id, content FROM messages JOIN turns ON turns.message_id = messages.id
            WHERE turns.id = ?"""
        found = rows(self.world.database.connection, query, turn_id)  # none, where its session is deleted by now
        return not found or tuple(found[0]) in self.world.machine.begun_prompts

    # ---- every step

    def look(self) -> None:
        """Look at deliveries, orders and answers."""
        world = self.world
        found = [*world.machine.faults]
        world.machine.faults.clear()
        begun = Counter(world.machine.begun_prompts)
        found += [f"prompt {text!r} was begun {times} times" for (_, text), times in begun.items() if times > 1]
        for session_id, stored in self.stored.items():
            if session_id in self.deleted:
                continue
            received = [one.text for one in world.machine.received if one.session_id == session_id]
            if not _in_order(received, stored):
                found.append(f"prompts {received} were delivered, stored as {stored}")
        found += self._of_prompts()
        for question, answers in world.machine.answers.items():
            if len(answers) > 1:
                found.append(f"question {question} was answered {len(answers)} times")
        world.faults += found

    def _of_prompts(self) -> Iterator[str]:
        prompts = rows(self.world.database.connection, PROMPTS)
        contents: defaultdict[str, list[str]] = defaultdict(list)
        for prompt in prompts:
            contents[prompt["session_id"]].append(prompt["content"])
            queued = prompt["position"] is not None
            if queued == (prompt["seq"] is not None) or queued == (prompt["turn"] is not None):
                yield f"a prompt is in the transcript and the queue, or in neither: {dict(prompt)}"
        for session_id, told in contents.items():
            if told != self.stored[session_id]:
                yield f"transcript and queue have {told}, stored were {self.stored[session_id]}"
        ids = {prompt["id"] for prompt in prompts}
        for message_id, (session_id, text) in self.acknowledged.items():
            if message_id not in ids and session_id not in self.deleted:
                yield f"prompt {text!r} was acknowledged and is gone"

    # ---- at rest

    def look_settled(self) -> None:
        """Look at what must have come to an end when nothing happens by itself any more."""
        connection, world = self.world.database.connection, self.world
        for session in rows(connection, SESSIONS):
            world.faults += self._of_rest(session)
            world.faults += self._of_proof(session)
        world.faults += self._of_texts()
        world.faults += self._of_notices()
        laws = [invariants.broken_turns, invariants.broken_transcripts]
        if all(call.done for call in world.calls):  # a stop that waits for a stuck agentctl has promised it meanwhile
            laws.append(invariants.left_over_rows)
        for law in laws:
            world.faults += law(connection)
        world.faults += invariants.broken_histories(world.home, connection)
        world.faults += self._of_deleted()

    def _of_deleted(self) -> Iterator[str]:
        """Nothing is left of a session that was deleted: no process, no file."""
        for session_id in self.deleted:
            if self.world.machine.live(session_id) is not None:
                yield f"an agent of session {session_id} lives, which was deleted"
            for path in (f"sessions/{session_id}.jsonl", f"worktrees/{session_id}"):
                if (self.world.home / path).exists():
                    yield f"{path} is there, and its session was deleted"

    def _of_rest(self, session: sqlite3.Row) -> Iterator[str]:
        """Nothing is stuck: what is not over has somebody who works on it, or waits for it."""
        backend, session_id, state = self.world.backend, session["id"], session["state"]
        starting = backend.executor.starting(session_id) is not None
        execution = backend.manager.get(session_id)
        if state == "STARTING" and not starting:
            yield f"session {session_id} is STARTING and nobody starts it"
        if state == "RUNNING" and (execution is None or not (execution.in_turn or execution.ending)):
            yield f"session {session_id} is RUNNING without a turn"
        if state == "RUNNING" and not self.world.machine.works_on(session_id):
            yield f"session {session_id} is RUNNING, and no agent works for it"
        live = session["status"] in LIVE_ROWS
        if live and not starting and execution is None:
            yield f"session {session_id} has a row that is {session['status']}, and no agent"
        if execution is not None and execution.ref.execution_id != session["execution"]:
            yield f"the live execution of session {session_id} is not the one of its row"
        if state in ENDED and not session["intent"] and (execution is not None or starting):
            yield f"session {session_id} is {state} and has an agent"
        if self.world.machine.live(session_id) is not None and execution is None and not starting:
            yield f"an agent of session {session_id} lives, and the backend does not know it"

    def _of_proof(self, session: sqlite3.Row) -> Iterator[str]:
        """TOK-5: a token is proven once a turn has ended in it, and not before."""
        metadata = json.loads(session["metadata"])
        token = session["token"]
        if metadata.get("token_proven") and token not in self.world.machine.ended:
            yield f"token {token} is taken for proven"
        query = "SELECT 1 FROM turns WHERE agent_execution_id = ? AND state = 'completed'"
        ended = rows(self.world.database.connection, query, session["execution"])
        if token and ended and not metadata.get("token_proven"):
            yield f"a turn ended in token {token}, and it is not proven"

    def _of_texts(self) -> Iterator[str]:
        """What an agent said in a turn that ended is in the transcript, once, in order; what it replayed never is."""
        connection, said = self.world.database.connection, self.world.machine.said
        query = """SELECT turns.id, turns.session_id, turns.state, messages.content FROM turns
            JOIN messages ON messages.id = turns.message_id"""
        for turn in rows(connection, query):
            text = invariants.agent_text(connection, turn["id"])
            expected = "".join(said.get((turn["session_id"], turn["content"]), []))
            whole = turn["state"] in {"completed", "cancelled", "failed"}
            if text != expected and (whole or not expected.startswith(text)):
                yield f"turn {dict(turn)} has {text!r}, said was {expected!r}"
        if rows(connection, "SELECT 1 FROM messages WHERE content LIKE '%replayed %'"):
            yield "what an agent replayed is in the transcript"

    def _of_notices(self) -> Iterator[str]:
        """TOK-5: nobody is told of a loss where nothing was lost."""
        query = """SELECT session_id, count(*) AS times FROM messages
            WHERE json_extract(metadata, '$.kind') = 'rejected' GROUP BY session_id"""
        for session_id, times in rows(self.world.database.connection, query):
            taken = {one.token for one in self.world.machine.received}
            refusals = sum(whose == session_id and token in taken for whose, token, _ in self.world.machine.refused)
            if times > refusals:
                yield f"session {session_id} was told {times} times that its memory is lost"


def _of_task(sessions: Sequence[sqlite3.Row], *, lost_one: bool) -> Iterator[str]:
    """The pairs of design, section 4: of several sessions, the one that is furthest from its end decides.

    `lost_one`: a session of the task was deleted. What that one had come to stays, where no other goes on.
    """
    states = {session["state"] for session in sessions}
    allowed = next((found for state, found in FIRST if state in states), None)
    if allowed is None:
        allowed = set().union(*(OTHERWISE[state] for state in states), {"REVIEW", "FAILED"} if lost_one else set())
    if any(one["state"] == "WAITING_FOR_INPUT" and one["queued"] and not one["queue_held"] for one in sessions):
        allowed = allowed | {"IN_PROGRESS"}  # launched, and its first prompt is about to go out
    if (task := sessions[0]["task"]) not in allowed:
        yield f"task {sessions[0]['task_id']} is {task}, its sessions {[(one['id'], one['state']) for one in sessions]}"


def _of_state(session: sqlite3.Row) -> Iterator[str]:
    """A session runs exactly while it has a turn, of the execution that is ready."""
    state = session["state"]
    if (state == "RUNNING") != bool(session["open"]):
        yield f"session {session['id']} is {state} with {session['open']} open turns"
    if session["open"] and (session["turn_execution"] != session["execution"] or session["status"] != "ready"):
        yield f"session {session['id']} has an open turn of an execution that is {session['status']}"


def _in_order(some: Sequence[str], whole: Sequence[str]) -> bool:
    """Tell whether `some` are among `whole`, each once, in the same order."""
    left = iter(whole)
    return all(any(one == other for other in left) for one in some)
