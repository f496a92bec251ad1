"""One episode: a fresh home, sessions, and rounds of acts and faults; after each round everything is looked at."""

import asyncio
import contextlib
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import invariants
from chaos import script
from chaos.cast import Part, Sent, by_session, config_of, make_parts, make_repository
from chaos.checks import Checks, Violation
from chaos.container_faults import ContainerFaults
from chaos.faults import Faults
from chaos.fleeting import FleetingTasks
from chaos.people import People
from chaos.report import render
from chaos.schedule import LIFE_FAULTS, TABS, Act, Fault, Round, plan_round
from chaos.stage import AGENTS, DidNotStart, Stage
from chaos.tabs import Tab
from conversation import Cast
from runtimes.engine import DockerEngine

QUIET_S: Final = 60.0
"""How long it may take, once every fault is undone, until nothing is under way any more."""

UNSETTLED: Final = """SELECT task_sessions.id, task_sessions.state, queue_held, intent, parked_reason,
    (SELECT count(*) FROM queued_prompts WHERE session_id = task_sessions.id) AS queued,
    (SELECT group_concat(turns.state || ' ' || turns.id) FROM turns
        WHERE session_id = task_sessions.id AND turns.state IN ('open', 'unknown')) AS turn
    FROM task_sessions WHERE state IN ('STARTING', 'RUNNING') OR intent <> '' OR turn IS NOT NULL
    OR (queued > 0 AND queue_held = '' AND state NOT IN ('FAILED', 'CANCELLED', 'COMPLETED'))"""

NOT_ENDED: Final = "('creating', 'starting', 'ready', 'unknown')"
UNKNOWN: Final = """SELECT session_id AS id, session_id, executors_running.task_id FROM executors_running
    JOIN task_sessions ON task_sessions.id = session_id WHERE status = 'unknown' AND intent = '' AND parked_reason = ''
    AND state NOT IN ('FAILED', 'CANCELLED', 'COMPLETED')"""
CLEAR_S: Final = 3.0
LEFT: Final = """SELECT session_id AS id FROM executors_running JOIN task_sessions ON task_sessions.id = session_id
    WHERE status IN ('ready', 'unknown') AND intent = '' AND state IN ('FAILED', 'CANCELLED', 'COMPLETED')"""
"""Sessions that were ended while their agents could not be asked."""
PROMISED: Final = "SELECT id, state, intent FROM tasks WHERE intent <> ''"


class Outcome(msgspec.Struct, kw_only=True):
    """What an episode gave: rounds that were run, what was counted, and reports of what did not hold."""

    rounds: int = 0
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    kills: Counter[str] = msgspec.field(default_factory=Counter)
    reports: list[str] = msgspec.field(default_factory=list)
    seconds: float = 0.0


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Where episodes are played: the runtime of all agents, its engine, whether the home is a small file system.

    The files of a failing round are kept in `keep`.
    """

    runtime: str
    engine: DockerEngine | None
    mounted: bool
    keep: Path


async def play(seed: str, rounds: int, setting: Setting) -> Outcome:
    """Play an episode of so many rounds. It ends with the first round after which something does not hold."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    began = time.monotonic()
    try:
        async with _opened(directory, seed, setting) as episode:
            await episode.play(rounds, keep=setting.keep)
            outcome = episode.outcome
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    outcome.seconds = time.monotonic() - began
    return outcome


@contextlib.asynccontextmanager
async def _opened(directory: Path, seed: str, setting: Setting) -> AsyncIterator["Episode"]:
    cast = Cast(directory / AGENTS, each=4)
    stage = Stage(
        directory,
        config=config_of(cast, setting.runtime),
        mounted=setting.mounted,
        runtime=setting.runtime,
        engine=setting.engine,
    )
    try:
        parts = make_parts(cast)
        passing, _ = cast.take("plain", on={"session/prompt": script.rules()})
        episode = Episode(directory, seed, stage, parts, passing=passing)
        await episode.open()
        try:
            yield episode
        finally:
            await episode.close()
    finally:
        await stage.close()


class Episode:
    """The sessions of one home and everybody around them."""

    def __init__(self, directory: Path, seed: str, stage: Stage, parts: list[Part], *, passing: str) -> None:
        self.outcome = Outcome()
        self.seed = seed
        self.stage = stage
        self.parts = parts
        self._directory = directory
        self._tabs = [Tab(f"tab {number}", stage) for number in range(TABS)]
        self._people = People(stage, parts, self._tabs, seed=seed)
        self._faults = (Faults if stage.engine is None else ContainerFaults)(stage, parts, self._tabs)
        self._repository = make_repository(directory / "repository")
        self._fleeting = FleetingTasks(stage, self._people, agent=passing, repository=self._repository, seed=seed)
        self._checks = Checks(
            stage, parts, self._tabs, people=self._people, faults=self._faults, fleeting=self._fleeting
        )
        self._background: list[asyncio.Task[Any]] = []

    async def open(self) -> None:
        """Starts the backend, makes the sessions, and lets the clients follow them."""
        await self.stage.ensure_up()
        async with self.stage.client() as client:
            for part in self.parts:
                await self._create(client, part)
        for tab in self._tabs:
            tab.follow([part.session_id for part in self.parts])
        work = [*(tab.run() for tab in self._tabs), self._people.answer_permissions()]
        self._background = [asyncio.create_task(one) for one in work]

    async def _create(self, client: Any, part: Part) -> None:
        """The last session is a second one of the first's task."""
        if part is self.parts[-1]:
            part.task_id = self.parts[0].task_id
            request = {"task_id": part.task_id, "agent": part.name}
            created = await client.call("task.session.create", request)
            part.session_id = created["session"]["id"]
            await client.call("task.session.start", part.ids)
            return
        text = self._people.next_text("short")
        where = {"repository_path": self._repository} if part.worktree else {}
        created = await client.call("task.create", {"agent": part.name, "description": text, **where})
        part.task_id, part.session_id = created["task"]["id"], created["session"]["id"]
        part.sent[text] = Sent(client_id="", text=text, state="acknowledged")

    async def close(self) -> None:
        """Lets the clients go."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def play(self, rounds: int, *, keep: Path) -> None:
        """Plays rounds until something does not hold, and the end, in which everything that waits is served."""
        found = await self._quiet()
        plan: Round | None = None
        for number in range(1, rounds + 1):
            if found:
                break
            plan = plan_round(self.seed, number, mounted=self.stage.mounted, runtime=self.stage.runtime)
            found = await self._round(plan)
            self.outcome.rounds = number
        if not found:
            plan = None
            found = await self._end()
        if found:
            self.outcome.reports.append(self._report(plan, found, keep))
        self.outcome.faults = self._faults.counts
        self.outcome.kills = self._faults.kills
        self.outcome.counts = self._people.counts + self._checks.counts
        self.outcome.counts["starts"] = self.stage.starts

    async def _round(self, plan: Round) -> list[Violation]:
        self._faults.told.clear()
        self._people.answering = 0.3
        async with asyncio.TaskGroup() as group:
            for number, mood in enumerate(plan.moods):
                group.create_task(self._people.bring_on(self.parts[number], self._tabs[number % TABS], mood))
            for act in plan.acts:
                group.create_task(_after(act.at, self._act, act))
            lives = [fault for fault in plan.faults if fault.kind in LIFE_FAULTS]
            others = [fault for fault in plan.faults if fault.kind not in LIFE_FAULTS]
            strikes = [group.create_task(_after(fault.at, self._faults.strike, fault)) for fault in others]
            await asyncio.gather(self._lives(lives), *strikes)
            down = await self._up()  # people go on asking until they are answered, and so must be
        return down or await self._quiet()

    async def _lives(self, faults: Sequence[Fault]) -> None:
        """What hits the backend itself, one after the other; the next one may come before it answers again."""
        began = asyncio.get_running_loop().time()
        for fault in faults:
            await asyncio.sleep(max(0, fault.at - (asyncio.get_running_loop().time() - began)))
            await self._faults.strike_life(fault)

    async def _act(self, act: Act) -> None:
        if act.kind == "fleeting":
            await self._fleeting.live(self._tabs[act.tab], self._tabs[(act.tab + 1) % TABS])
        else:
            await self._people.act(act)

    async def _up(self) -> list[Violation]:
        """No fault lasts any more, so the backend runs, or can be started."""
        try:
            await self.stage.ensure_up()
        except DidNotStart as error:
            before = [Violation(invariant="life", what=problem) for problem in self._faults.problems]
            return [*before, Violation(invariant="life", what=f"the backend does not start: {error}")]
        return []

    async def _quiet(self) -> list[Violation]:
        """Every fault is undone: the backend runs, and what is under way comes to its end; then look."""
        self._people.answering = 1.0
        for task in self._background:
            if task.done():
                task.result()  # somebody of ours gave up, and nothing that follows would mean anything
        if down := await self._up():
            return down
        if stuck := await self._stuck():
            return stuck
        if self._faults.outages and (self.stage.rows(LEFT) or await invariants.held(self._checks.left_over, CLEAR_S)):
            # What could not be ended or removed without the engine, the next start of the backend does.
            self._people.counts["starts that cleared up behind an engine"] += 1
            self._faults.outages = 0
            await self._faults.restart_backend()
            if stuck := await self._stuck():
                return stuck
        self._faults.outages = 0
        return await self._checks.all()

    async def _stuck(self) -> list[Violation]:
        """What does not come to its end, though a person looks at what nobody could be asked about (CONT-5)."""
        queries = (UNSETTLED, PROMISED) if self.stage.engine is None else (UNSETTLED, PROMISED, UNKNOWN)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + QUIET_S
        while unsettled := [row for query in queries for row in self.stage.rows(query)]:
            left = self.stage.rows(LEFT) if self._faults.outages else []
            if {row["id"] for row in unsettled} <= {row["id"] for row in left}:
                break
            if loop.time() > deadline:
                return [
                    Violation(invariant="nothing_stuck", what=f"after {QUIET_S:g} s: {row}", session_id=row["id"])
                    for row in unsettled
                ]
            for row in self.stage.rows(UNKNOWN) if self.stage.engine else ():
                await self._people.look_at(row, self._tabs[0])
            await asyncio.sleep(0.05)
        return []

    async def _end(self) -> list[Violation]:
        """Everybody is brought back, every queue opened; then all that waited has reached its agent once."""
        tab = self._tabs[0]
        for _ in range(20):
            waiting = self.stage.rows("SELECT DISTINCT session_id FROM queued_prompts")
            ended = self.stage.rows(
                "SELECT id FROM task_sessions WHERE state IN ('FAILED', 'CANCELLED') OR parked_reason <> ''"
            )
            ids = {row["session_id"] for row in waiting} | {row["id"] for row in ended}
            unserved = [part for part in self.parts if part.session_id in ids]
            for part in unserved:
                await self._people.recover(part, tab, "resume")
            if not unserved:
                break
            if found := await self._quiet():
                return found
        for part in self.parts:
            await self._people.prompt(part, tab, "short")
        if found := await self._quiet():
            return found
        found = [
            Violation(invariant="served_in_the_end", what=str(row), session_id=row["session_id"])
            for row in self.stage.rows("SELECT * FROM queued_prompts")
            if row["session_id"] in by_session(self.parts)
        ]
        if self.stage.lasting:
            await self._stop_all()  # a stop of the backend would leave them their agents
        if code := await self.stage.end(signal.SIGTERM):
            found.append(Violation(invariant="life", what=f"SIGTERM ended the backend with {code}"))
        left = await self.stage.end_leftovers()
        return found + [Violation(invariant="orphans", what=f"after the end: {what}") for what in left.items()]

    async def _stop_all(self) -> None:
        """Of passing tasks too: an end that was cut may not have been heard."""
        rows = self.stage.rows(f"SELECT session_id, task_id FROM executors_running WHERE status IN {NOT_ENDED}")
        async with self.stage.client() as client:
            for row in rows:
                await client.call("task.session.stop", row)

    def _report(self, plan: Round | None, found: list[Violation], keep: Path) -> str:
        target = keep / f"{self.seed.replace('/', '-')}-{self.outcome.rounds}"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self._directory, target, symlinks=True, ignore_dangling_symlinks=True)
        with contextlib.suppress(shutil.Error):  # sockets cannot be copied
            shutil.copytree(self.stage.home, target / "home", symlinks=True)
        parts = by_session(self.parts)
        return render(self.seed, plan, found, parts, stage=self.stage, told=self._faults.told, kept=target)


async def _after(seconds: float, what: Any, detail: Any) -> None:
    await asyncio.sleep(seconds)
    await what(detail)
