"""What must hold after each round, beside `invariants`: prompts, texts, memory, what clients saw, processes."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

import invariants
from chaos import script
from chaos.cast import Delivery, Part
from chaos.containers import left_over_containers
from chaos.faults import Faults
from chaos.fleeting import FleetingTasks
from chaos.mirror import Mirror, differences
from chaos.people import People
from chaos.stage import Stage
from chaos.tabs import Tab
from kandev.agentctl.platform import descendants

MIRROR_S: Final = 15.0
"""How long a client may take to get what is stored."""
PROCESSES_S: Final = 10.0

TURNS: Final = """SELECT turns.*, messages.content AS prompt, messages.client_message_id AS client_id FROM turns
    JOIN messages ON messages.id = turns.message_id WHERE turns.session_id = ? ORDER BY messages.seq"""
PROMPTS: Final = """SELECT messages.*, queued_prompts.position FROM messages
    LEFT JOIN queued_prompts ON queued_prompts.message_id = messages.id
    WHERE messages.session_id = ? AND author_type = 'user'"""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """An invariant that does not hold, of one session or of all ('')."""

    invariant: str
    what: str
    session_id: str = ""


class Checks:
    """All checks of an episode."""

    def __init__(
        self,
        stage: Stage,
        parts: Sequence[Part],
        tabs: Sequence[Tab],
        *,
        people: People,
        faults: Faults,
        fleeting: FleetingTasks,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._stage = stage
        self._parts = parts
        self._tabs = tabs
        self._people = people
        self._faults = faults
        self._fleeting = fleeting
        self._chunks: dict[str, int] = {}

    async def all(self) -> list[Violation]:
        """Look at everything."""
        found = [Violation(invariant="answers", what=text) for text in self._people.problems]
        found += [Violation(invariant="answers", what=text) for tab in self._tabs for text in tab.problems]
        found += [Violation(invariant="life", what=text) for text in (*self._faults.problems, *self._stage.own_ends)]
        found += await self._rows()
        for part in self._parts:
            deliveries = part.deliveries(self._stage.place)
            turns = self._stage.rows(TURNS, part.session_id)
            found += [Violation(invariant=name, what=what, session_id=part.session_id) for name, what in (
                *self._prompts(part, deliveries, turns),
                *self._certainty(turns),
                *self._texts(deliveries, turns),
                *self._memory(part, deliveries, turns),
                *self._one_process(part),
            )]  # fmt: skip
        found += self._put_back()
        found += [Violation(invariant="fleeting", what=what) for what in self._fleeting.problems()]
        found += [one async for one in self._mirrors()]
        self.counts["chunks checked"] = sum(self._chunks.values())
        return found

    async def _rows(self) -> list[Violation]:
        """What `invariants` looks at; processes that end are waited for."""
        stage, found = self._stage, list[Violation]()
        with invariants.reading(stage.home) as database:
            for check in (
                invariants.disagreeing_states,
                invariants.broken_turns,
                invariants.broken_transcripts,
                invariants.broken_queues,
                invariants.left_over_rows,
            ):
                found += [Violation(invariant=check.__name__, what=what) for what in check(database)]
            histories = invariants.broken_histories(stage.home, database)
            found += [Violation(invariant="broken_histories", what=what) for what in histories]
        found += [Violation(invariant="wrong_modes", what=what) for what in invariants.wrong_modes(stage.home)]
        stuck = await invariants.stuck_sessions(stage)
        found += [Violation(invariant="stuck_sessions", what=what) for what in stuck]
        left = await invariants.held(self.left_over, PROCESSES_S)
        return found + [Violation(invariant="orphans", what=what) for what in left]

    async def left_over(self) -> list[str]:
        """Processes of this home, those that do not name it too, containers, and directories of ended instances."""
        stage = self._stage
        stage.meet()
        containers = await left_over_containers(stage)
        with invariants.reading(stage.home) as database:
            query = "SELECT instance_id FROM executors_running WHERE status IN ('ready', 'unknown')"
            live = {row["instance_id"] for row in database.execute(query)}
            roots = [one.root for one in stage.place.sidecars() if one.instance_id in live]
            owned = {pid for root in (stage.pid, *roots) for pid in (root, *descendants(root))}
            found = [f"process {pid} of an earlier backend" for pid, _ in stage.living_family() if pid not in owned]
            found += invariants.orphans(stage, database, roots=roots)
            return [*found, *containers, *invariants.left_over_directories(stage.home, database)]

    # Prompts

    def _prompts(self, part: Part, deliveries: Sequence[Delivery], turns: Sequence[Any]) -> Iterator[tuple[str, str]]:
        """Acknowledged: stored once, delivered at most once, and once where its turn ended by itself (PROMPT-4)."""
        stored = defaultdict(list)
        for row in self._stage.rows(PROMPTS, part.session_id):
            stored[row["content"]].append(row)
        received = Counter(one.text for one in deliveries)
        ended = Counter(turn["prompt"] for turn in turns if turn["state"] in {"completed", "failed"})
        for text, sent in part.sent.items():
            rows = [row for row in stored[text] if not str(row["client_message_id"]).startswith("again-")]
            if len(rows) > 1 or (len(rows) == 0) != (sent.state == "refused" or sent.withdrawn == "done"):
                unknown = sent.withdrawn == "asked" or (sent.state == "refused" and sent.tries > 1)
                if not (unknown and len(rows) <= 1):
                    yield "prompt_stored_once", f"{sent} is stored {len(rows)} times"
            placed = sum(row["seq"] is not None for row in stored[text])
            if not ended[text] <= received[text] <= placed:
                rows = [{key: row[key] for key in ("id", "seq", "turn_id", "position")} for row in stored[text]]
                yield (
                    "prompt_delivered_once",
                    f"{sent} was delivered {received[text]} times; {ended[text]} turns ended, {placed} began: {rows}",
                )
        strange = received.keys() - stored.keys() - {sent.text for sent in part.sent.values() if sent.withdrawn}
        for text in strange:
            yield "prompt_known", f"the agent got {text!r}, which is not stored"
        for message_id, times in Counter(turn["message_id"] for turn in turns).items():
            if times > 1:
                yield "prompt_one_turn", f"message {message_id} has {times} turns"

    def _certainty(self, turns: Sequence[Any]) -> Iterator[tuple[str, str]]:
        """Where everything was killed the journal decides: a prompt that was not begun goes back, one begun never."""
        for turn in turns:
            if self._faults.certain.get(turn["id"]) is False:
                what = f"turn {turn['id']} of {turn['prompt']!r} reached nobody, and is {turn['state']}"
                yield "certain_undelivered", what

    def _put_back(self) -> Iterator[Violation]:
        for turn_id, begun in self._faults.certain.items():
            if begun and not self._stage.rows("SELECT 1 FROM turns WHERE id = ?", turn_id):
                yield Violation(invariant="certain_begun", what=f"turn {turn_id} was begun, and is taken back")

    # What agents said

    def _texts(self, deliveries: Sequence[Delivery], turns: Sequence[Any]) -> Iterator[tuple[str, str]]:
        """Chunks are complete, in order, once; of a turn that was cut, as far as the agent got."""
        received: dict[str, list[Delivery]] = defaultdict(list)
        for delivery in deliveries:
            received[delivery.text].append(delivery)
        begun = Counter(turn["prompt"] for turn in turns)
        for turn in turns:
            whole = turn["state"] == "failed" or turn["stop_reason"] == "end_turn"
            said = self._said(turn["id"])
            mine = received[turn["prompt"]] if begun[turn["prompt"]] == 1 else []  # sent again: whose are they?
            if len(mine) == 1 and mine[0].last:
                word = self._faults.last_words.get(mine[0].process, "")
                if word not in said:
                    yield "journalled", f"turn {turn['id']} ({turn['prompt']}): {word!r} was journalled, not stored"
            marks = mine[0].marks if len(mine) == 1 and mine[0].process not in self._faults.tainted else ()
            problem = script.text_problem(turn["prompt"], said, whole=whole, marks=marks)
            if problem:
                yield "chunks", f"turn {turn['id']} ({turn['prompt']}, {turn['state']}): {problem}"
            self._chunks[turn["id"]] = said.count(" ")

    def _said(self, turn_id: str) -> str:
        query = """SELECT content || coalesce((SELECT group_concat(content, '') FROM (SELECT content FROM message_parts
            WHERE message_id = messages.id ORDER BY position)), '') AS text FROM messages
            WHERE turn_id = ? AND author_type = 'agent' AND type = 'message' ORDER BY seq"""
        return "".join(row["text"] for row in self._stage.rows(query, turn_id))

    def _memory(self, part: Part, deliveries: Sequence[Delivery], turns: Sequence[Any]) -> Iterator[tuple[str, str]]:
        """Once a turn has ended in it, an agent session is kept until somebody asks for another one (TOK-1, TOK-2)."""
        if part.kind != "native":
            return
        proven = {turn["prompt"] for turn in turns if turn["stop_reason"] in {"end_turn", "cancelled"}}
        first = next((at for at, one in enumerate(deliveries) if one.text in proven), len(deliveries))
        sessions = {one.agent_session for one in deliveries[first:]}
        if len(sessions) > 1 + part.fresh_starts:
            yield "memory", f"{len(sessions)} agent sessions, and {part.fresh_starts} were asked for: {sessions}"

    def _one_process(self, part: Part) -> Iterator[tuple[str, str]]:
        refused = part.agent.events("in_use")
        if refused:
            yield "one_process", f"its agent session was in use by another process: {refused}"
        alive = self._stage.place.agents(part.agent)
        if len(alive) > 1:
            yield "one_process", f"{len(alive)} processes of its agent live: {alive}"

    # What clients saw

    async def _mirrors(self) -> Any:
        """Every client ends up with what is stored."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + MIRROR_S
        for tab in self._tabs:
            for part in self._parts:
                mirror = tab.mirrors[part.session_id]
                while (wrong := self._wrong(mirror)) and loop.time() < deadline and not mirror.problems:
                    await asyncio.sleep(0.05)
                for what in wrong:
                    yield Violation(invariant="clients", what=f"{tab.name}: {what}", session_id=part.session_id)
        known = Counter(self._faults.certain.values())
        self.counts["prompts under way as all was killed: begun"] = known[True]
        self.counts["prompts under way as all was killed: not begun"] = known[False]
        self.counts["events seen"] = sum(tab.events for tab in self._tabs)
        self.counts["snapshots after a gap"] = sum(m.gaps for tab in self._tabs for m in tab.mirrors.values())

    def _wrong(self, mirror: Mirror) -> list[str]:
        with invariants.reading(self._stage.home) as database:
            return [*mirror.problems, *differences(mirror, stored_session(database, mirror.session_id))]


def stored_session(database: Any, session_id: str) -> dict[str, Any]:
    """What the store has of a session, in the shape of a mirror."""
    session = database.execute("SELECT * FROM task_sessions WHERE id = ?", (session_id,)).fetchone()
    query = "SELECT message_id FROM queued_prompts WHERE session_id = ? ORDER BY position"
    queue = [row["message_id"] for row in database.execute(query, (session_id,))]
    query = "SELECT id FROM permission_requests WHERE session_id = ? AND state = 'pending'"
    permissions = {row["id"] for row in database.execute(query, (session_id,))}
    query = """SELECT *, content || coalesce((SELECT group_concat(content, '') FROM (SELECT content FROM message_parts
        WHERE message_id = messages.id ORDER BY position)), '') AS text FROM messages
        WHERE session_id = ? AND seq IS NOT NULL ORDER BY seq"""
    messages = [
        {
            **{name: row[name] for name in ("id", "seq", "turn_id", "type", "author_type")},
            "content": row["text"],
            "metadata": msgspec.json.decode(row["metadata"]),
        }
        for row in database.execute(query, (session_id,))
    ]
    return {
        "state": session["state"],
        "held": session["queue_held"],
        "queue": queue,
        "permissions": permissions,
        "messages": messages,
    }
