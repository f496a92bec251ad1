"""What happens in a round, drawn from a seed: what clients do, and what goes wrong. Pure, so a report can name it."""

import random
from collections.abc import Mapping
from typing import Final

import msgspec

SPAN_S: Final = 1.0
"""Acts and faults of a round begin within so many seconds."""

TABS: Final = 3
SESSIONS: Final = 6

PROMPT_KINDS: Final = {
    "short": 5,
    "slow": 6,
    "flood": 2,
    "tools": 3,
    "ask": 2,
    "spawn": 1,
    "fail": 1,
    "die": 1,
    "big": 1,
}
ACTS: Final = {
    "prompt": 24,
    "twice": 3,
    "cancel": 3,
    "stop": 1,
    "resume": 2,
    "recover": 1,
    "withdraw": 2,
    "again": 1,
    "fleeting": 3,
}

LIFE_FAULTS: Final = {
    "kill_backend": 6,
    "kill_backend_in_start": 3,
    "kill_frozen_backend": 4,
    "ambush_backend": 5,
    "kill_all": 3,
    "kill_all_stalled": 6,
    "term_backend": 2,
    "term_backend_in_start": 2,
    "kill_backend_in_stop": 2,
    "stop_backend": 1,
}
"""What hits the backend's own process: one after the other."""

OTHER_FAULTS: Final = {
    "kill_agent": 6,
    "kill_agentctl": 5,
    "kill_agentctl_unread": 3,
    "ambush_agent": 3,
    "ambush_agentctl": 3,
    "stop_agent": 3,
    "stop_agentctl": 3,
    "kill_fork_server": 1,
    "lock_database": 3,
    "cut_sockets": 4,
    "deaf_clients": 2,
}
DISK_FAULTS: Final = {"fill_disk": 3}
CONTAINER_FAULTS: Final = {
    "kill_container": 4,
    "stop_container": 4,
    "remove_container": 4,
    "pause_container": 3,
    "kill_engine": 3,
    "stop_engine": 2,
    "freeze_engine": 1,
}
RUNTIME_FAULTS: Final[Mapping[str, Mapping[str, int]]] = {"docker": CONTAINER_FAULTS}
"""What else goes wrong where agents run in a runtime, by its name."""
LONGEST_S: Final = {
    "lock_database": 1.5,
    "fill_disk": 1.2,
    "stop_backend": 0.7,
    "kill_frozen_backend": 0.6,
    "kill_agentctl_unread": 0.3,
}
"""How long a fault lasts at most, in seconds; others 1.0."""

AMBUSHES: Final = (
    ("session.resume.progress", "checking"),
    ("session.resume.progress", "launching"),
    ("session.resume.progress", "starting_agent"),
    ("session.resume.progress", "restoring"),
    ("session.resume.progress", "ready"),
    ("session.resume.completed", ""),
    ("session.turn.started", ""),
    ("session.message.delta", ""),
    ("session.turn.completed", ""),
    ("permission.requested", ""),
    ("message.queue.changed", ""),
)
"""Events, and stages of a start, behind which somebody waits for a session to kill."""

RECOVERIES: Final = ("resume", "resume", "resume", "recap", "fresh_start", "retry_token")


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a client does: `at` seconds into the round, in one tab, to one session."""

    at: float
    kind: str
    tab: int
    session: int
    detail: str = ""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that goes wrong: `at` seconds into the round, for `lasts` seconds. `target` chooses whom it hits."""

    at: float
    kind: str
    target: int = 0
    lasts: float = 0.0


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round. `moods` say, for each session that waits for a person, whether and how somebody brings it on."""

    number: int
    acts: tuple[Act, ...]
    faults: tuple[Fault, ...]
    moods: tuple[str, ...]


def plan_round(seed: str, number: int, *, mounted: bool, runtime: str = "standalone") -> Round:
    """Return round `number` of the episode with this seed. Without a small file system no disk is filled.

    The runtime adds faults of its own; all else is the same for each.
    """
    chance = random.Random(f"{seed}/{number}")
    acts = [_act(chance) for _ in range(chance.randint(5, 12))]
    others = OTHER_FAULTS | DISK_FAULTS
    faults = [_fault(chance, others) for _ in range(chance.choice((0, 1, 2, 2, 3, 4)))]
    faults += [_fault(chance, LIFE_FAULTS) for _ in range(chance.choice((0, 0, 0, 1, 1, 1, 1, 2, 2, 3)))]
    if not mounted:
        faults = [fault for fault in faults if fault.kind not in DISK_FAULTS]
    faults += _faults_of(runtime, random.Random(f"{seed}/{number}/{runtime}"))
    return Round(
        number=number,
        acts=tuple(sorted(acts, key=lambda act: act.at)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        moods=tuple(_mood(chance) for _ in range(SESSIONS)),
    )


def _act(chance: random.Random) -> Act:
    kind = _draw(chance, ACTS)
    detail = ""
    if kind in {"prompt", "twice"}:
        detail = _draw(chance, PROMPT_KINDS)
    if kind == "recover":
        detail = chance.choice(RECOVERIES)
    return Act(at=_moment(chance), kind=kind, tab=chance.randrange(TABS), session=_session(chance), detail=detail)


def _session(chance: random.Random) -> int:
    """Half of all goes to two sessions, so that queues grow."""
    return chance.randrange(2) if chance.random() < 0.5 else chance.randrange(SESSIONS)


def _fault(chance: random.Random, kinds: Mapping[str, int]) -> Fault:
    kind = _draw(chance, kinds)
    lasts = round(chance.uniform(0.05, LONGEST_S.get(kind, 1.0)), 2)
    return Fault(at=_moment(chance), kind=kind, target=chance.randrange(1 << 16), lasts=lasts)


def _faults_of(runtime: str, chance: random.Random) -> list[Fault]:
    kinds = RUNTIME_FAULTS.get(runtime, {})
    return [_fault(chance, kinds) for _ in range(chance.choice((0, 1, 1, 2, 2, 3)))] if kinds else []


def _mood(chance: random.Random) -> str:
    return chance.choice(("open", "open", "recover", "prompt", "leave"))


def _moment(chance: random.Random) -> float:
    return round(chance.uniform(0, SPAN_S), 2)


def _draw(chance: random.Random, weights: Mapping[str, int]) -> str:
    return chance.choices(list(weights), list(weights.values()))[0]
