"""Executions that outlived their backend: attached again where they were, mid-turn included (CONT-1).

What was read, and how far, is one commit; so the journal is read on from there, and each chunk is stored once. What
was to be sent is stored under its number, and agentctl takes each number once.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
import structlog

from kandev.agentctl.failpoints import failpoint
from kandev.agents.base import AgentConfig
from kandev.domain.models import (
    ACTIVE_STATES,
    Event,
    ExecutorRunning,
    ResumeOutcome,
    RowStatus,
    TaskSession,
    Turn,
    TurnState,
    new_id,
    now,
)
from kandev.domain.states import SessionEvent, TaskEvent
from kandev.errors import RuntimeUnreachable
from kandev.lifecycle.effects import ExecutionRef
from kandev.lifecycle.execution import AgentExecution, Wanted
from kandev.lifecycle.manager import LifecycleManager
from kandev.orchestrator.event_handlers import put_back
from kandev.orchestrator.instance_row import instance_columns
from kandev.orchestrator.outcomes import outcome_args
from kandev.orchestrator.transitions import move_session, move_task
from kandev.runtimes.base import Instance
from kandev.store.database import Tx
from kandev.store.rows import from_row
from kandev.store.store import Store

log = structlog.get_logger(__name__)

HOW = "attached"
REACHED_READY = frozenset({RowStatus.READY, RowStatus.UNKNOWN})


class Sorted(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that have not ended: those whose agents go on, those of which nothing is known, and those that are over.

    `why` is what is said of the unknown ones, where anything is.
    """

    going_on: Sequence[tuple[ExecutorRunning, Instance]]
    unknown: Sequence[ExecutorRunning]
    over: Sequence[ExecutorRunning]
    why: str = ""


class Adoption:
    """Attaches this backend to agents of an earlier one."""

    def __init__(
        self,
        store: Store,
        manager: LifecycleManager,
        *,
        complete_history: Callable[[str], Awaitable[None]],
        publish: Callable[[Sequence[Event]], None],
    ) -> None:
        self._store = store
        self._manager = manager
        self._complete_history = complete_history
        self._publish = publish

    async def sort(self, rows: Sequence[ExecutorRunning]) -> Sorted:
        """Ask the runtimes, and say of each row what becomes of it. Places elsewhere are not asked: see `ask`.

        Only an execution that reached `ready` goes on (CRASH-4), and only for a session that nobody has ended.
        """
        survivors = await self._manager.recover_instances()
        going_on, unknown, over = [], [], []
        for row in rows:
            instance = survivors.instances.get(row.instance_id)
            silent = row.runtime in survivors.silent or self._manager.elsewhere(row.runtime) is not None
            if silent and row.instance_id:
                unknown.append(row)
            elif instance is not None and instance.runtime == row.runtime and self._goes_on(row):
                going_on.append((row, instance))
            else:
                over.append(row)
        return Sorted(going_on=going_on, unknown=unknown, over=over)

    async def ask(self, row: ExecutorRunning) -> Sorted:
        """Say the same of one row whose session is wanted now, and ask its place wherever that is (CONT-5, CONT-6)."""
        elsewhere = self._manager.elsewhere(row.runtime)
        if elsewhere is None or not row.instance_id:
            return await self.sort([row])
        if not (self._goes_on(row) and row.instance):
            return Sorted(going_on=[], unknown=[], over=[row])
        try:
            instance = await elsewhere.reconnect(msgspec.convert(row.instance, Instance))
        except RuntimeUnreachable as error:
            log.warning("runtime.not_answering", runtime=row.runtime, error=error.message)
            return Sorted(going_on=[], unknown=[row], over=[], why=error.message)
        if instance is None:
            return Sorted(going_on=[], unknown=[], over=[row])
        return Sorted(going_on=[(row, instance)], unknown=[], over=[])

    def _goes_on(self, row: ExecutorRunning) -> bool:
        session = self._store.session(row.session_id)
        wanted = session.state in ACTIVE_STATES and not session.intent
        return wanted and row.status in REACHED_READY and bool(row.protocol_state)

    async def attach(self, row: ExecutorRunning, instance: Instance) -> AgentExecution:
        """Store the new address, undo a turn whose prompt was never on its way, and read on."""
        session = self._store.session(row.session_id)
        config = msgspec.json.decode(self._store.settings(session.id).agent_config, type=AgentConfig)
        outcome = _outcome(row)
        failpoint("attach.before_store")
        events = await self._store.write(lambda tx: _attach_job(tx, row, instance, outcome))
        failpoint("attach.after_store")
        if config.session.history_context_injection:
            # Behind a prompt that was put back, which is recorded once it is sent, and before the agent is heard again.
            await self._complete_history(session.id)
        unwritten = self._store.database.all("outbox_of", agent_execution_id=row.agent_execution_id)
        execution = self._manager.attach(
            row,
            instance,
            config,
            wanted=_wanted(session, config),
            unwritten=[(line["n"], line["line"]) for line in unwritten],
        )
        log.info("execution.attached", session_id=row.session_id, runtime=row.runtime, instance_id=row.instance_id)
        payload = {"how": HOW, "reason": "", "lost": "", "stages": {}}
        self._publish(
            [
                *events,
                _event(row, "session.agent_changed", {"is_agent_running": True}),
                _event(row, "session.resume.completed", payload),
            ]
        )
        return execution

    async def doubt(self, rows: Sequence[ExecutorRunning]) -> None:
        """Store of executions that nobody can ask now that they may live: nothing is deleted, a resume asks again.

        One that never was ready goes on in no case (CRASH-4): its session waits, and the next start ends it.
        """
        if not rows:
            return

        def job(tx: Tx) -> list[Event]:
            events: list[Event] = []
            for row in rows:
                if row.status in REACHED_READY:
                    _doubt(tx, row)
                else:
                    events += _start_is_lost(tx, row)
            return events

        self._publish(await self._store.write(job))
        log.warning("executions.unknown", sessions=[row.session_id for row in rows])


def _attach_job(tx: Tx, row: ExecutorRunning, instance: Instance, outcome: ResumeOutcome) -> list[Event]:
    tx.one(
        "executor_attach",
        session_id=row.session_id,
        agent_execution_id=row.agent_execution_id,
        **instance_columns(instance),
        now=now(),
    )
    tx.run("turn_doubt", session_id=row.session_id, state=TurnState.OPEN, observed=TurnState.UNKNOWN)
    tx.run("resume_insert", **outcome_args(outcome))
    return _undo_unsent(tx, row)


def _doubt(tx: Tx, row: ExecutorRunning) -> None:
    tx.run("executor_doubt", session_id=row.session_id, agent_execution_id=row.agent_execution_id, now=now())
    tx.run("turn_doubt", session_id=row.session_id, state=TurnState.UNKNOWN, observed=TurnState.OPEN)


def _start_is_lost(tx: Tx, row: ExecutorRunning) -> list[Event]:
    moved = move_session(tx, row.session_id, SessionEvent.AGENT_LOST)
    return moved + (move_task(tx, row.task_id, TaskEvent.SESSION_WAITING, session_id=row.session_id) if moved else [])


def _undo_unsent(tx: Tx, row: ExecutorRunning) -> list[Event]:
    """Put back a prompt that became a turn and was given no line to the agent: it certainly reached nobody."""
    stored = tx.one("turn_open", session_id=row.session_id)
    if stored is None or stored["line"] or stored["agent_execution_id"] != row.agent_execution_id:
        return []
    ref = ExecutionRef(session_id=row.session_id, task_id=row.task_id, execution_id=row.agent_execution_id, agent="")
    events = put_back(tx, ref, from_row(Turn, stored))
    events += move_session(tx, row.session_id, SessionEvent.AGENT_LOST)
    return events + move_task(tx, row.task_id, TaskEvent.SESSION_WAITING, session_id=row.session_id)


def _outcome(row: ExecutorRunning) -> ResumeOutcome:
    stamp = now()
    return ResumeOutcome(
        id=new_id(),
        session_id=row.session_id,
        agent_execution_id=row.agent_execution_id,
        started_at=stamp,
        ended_at=stamp,
        how=HOW,
    )


def _wanted(session: TaskSession, config: AgentConfig) -> Wanted:
    return Wanted(mode=session.mode or config.mode, model=session.model or config.model, options=session.config_options)


def _event(row: ExecutorRunning, action: str, payload: Mapping[str, object]) -> Event:
    return Event(action=action, session_id=row.session_id, task_id=row.task_id, payload=dict(payload))
