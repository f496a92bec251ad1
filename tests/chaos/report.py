"""What is said of a violation, and of a whole run: enough to understand it without running it again."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from chaos.cast import Part
from chaos.checks import Violation
from chaos.schedule import Round
from chaos.stage import Stage
from kandev.agentctl.segments import journal_bounds

MOST: Final = 12
"""So many violations of a round are told; the rest only counted."""
ROW_COLUMNS: Final = (
    "status", "agent_execution_id", "instance_id", "agentctl_pid", "agent_pid", "last_event_seq", "metadata"
)  # fmt: skip


def render(
    seed: str,
    plan: Round | None,
    found: Sequence[Violation],
    parts: Mapping[str, Part],
    *,
    stage: Stage,
    told: Sequence[str],
    kept: Path,
) -> str:
    """Return the report of one round in which something does not hold."""
    base, _, episode = seed.partition("/")
    number = plan.number if plan else "the end"
    command = f"PYTHONPATH=tests .venv/bin/python -m chaos --seed {base} --episode {episode}"
    if stage.runtime != "standalone":
        command += f" --runtime {stage.runtime}"
    lines = [
        f"VIOLATION: seed {base}, episode {episode}, round {number}; {len(found)} found",
        f"  again: {command}" + (f" --rounds {plan.number}" if plan else ""),
        f"  kept:  {kept}",
    ]
    if plan:
        lines += [f"  act:   {act.at:.2f} s {act.kind} {act.detail} s{act.session} tab {act.tab}" for act in plan.acts]
    lines += [f"  fault: {fault}" for fault in told] or ["  fault: none"]
    for one in found[:MOST]:
        lines.append(f"  {one.invariant}: {one.what}")
        if one.session_id in parts:
            lines.append(f"    {parts[one.session_id]}")
    for session_id in {one.session_id for one in found if one.session_id}:
        lines += [
            "",
            f"  rows of {parts.get(session_id, session_id)}",
            *(f"    {row}" for row in _rows(stage, session_id)),
        ]
    return "\n".join(lines)


def _rows(stage: Stage, session_id: str) -> list[str]:
    lines = [f"session {row}" for row in stage.glance(
        """SELECT state, queue_held, interrupted, parked_reason, intent, error_message, updated_at
        FROM task_sessions WHERE id = ?""", session_id)]  # fmt: skip
    for row in stage.glance("SELECT * FROM executors_running WHERE session_id = ?", session_id):
        bounds = journal_bounds(stage.place.journal(session_id, row["instance_id"])) if row["instance_id"] else None
        lines.append(f"row {_chosen(row, ROW_COLUMNS)}")
        lines.append(f"journal {bounds}, read to {row['last_event_seq']}")
    query = "SELECT * FROM turns WHERE session_id = ? ORDER BY started_at DESC LIMIT 5"
    lines += [f"turn {row}" for row in stage.glance(query, session_id)]
    query = """SELECT seq, substr(id, 1, 12) AS id, author_type, type, substr(content, 1, 60) AS content,
        length(content) AS characters, substr(metadata, 1, 120) AS metadata, created_at FROM messages
        WHERE session_id = ? ORDER BY coalesce(seq, 1 << 60) DESC LIMIT 10"""
    return lines + [f"message {row}" for row in stage.glance(query, session_id)]


def _chosen(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    # The row holds the token, and a report may be published.
    return {name: row[name] for name in names if row[name] not in {"", 0}}


class Summary(msgspec.Struct, kw_only=True):
    """What a run gave, as it is printed at its end and written as JSON. `kills` are processes that SIGKILL reached."""

    seed: str
    rounds: int = 0
    seconds: float = 0.0
    violations: int = 0
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    kills: Counter[str] = msgspec.field(default_factory=Counter)
    counted: Counter[str] = msgspec.field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.rounds} rounds in {self.seconds:.0f} s, {self.violations} violations"]
        for title, table in (("faults", self.faults), ("kills", self.kills), ("counted", self.counted)):
            lines += ["", f"{title:<52} {sum(table.values()) if title != 'counted' else '':>10}"]
            lines += [f"  {name:<50} {times:>10,}" for name, times in sorted(table.items())]
        return "\n".join(lines)
