"""One start of an agent under way: who waits for it, how far it is, and whether somebody gave it up."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from kandev.domain.failures import FailureCause, LoadFailure
from kandev.domain.models import Event, ResumeOutcome, SessionState, new_id, now
from kandev.errors import (
    AgentctlError,
    AgentDied,
    AgentSilent,
    ExecutionNotFoundError,
    KandevError,
    RequestFailed,
    RuntimeUnreachable,
)
from kandev.lifecycle.execution import AgentExecution
from kandev.lifecycle.session import RestoreFailed
from kandev.orchestrator.views import ResumeAnswer

T = TypeVar("T")


class GivenUp(KandevError):
    """Raised inside a start that a cancel, a stop or the backend's end gave up."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The start was given up: {why}.", reason=why)
        self.why = why


class Start:
    """A start that callers join (RACE-1). `accepted` has the answer, `ready` ends when the agent takes prompts."""

    def __init__(
        self, session_id: str, task_id: str, publish: Callable[[Sequence[Event]], None], *, after_seq: int = 0
    ) -> None:
        loop = asyncio.get_running_loop()
        self.session_id = session_id
        self.task_id = task_id
        self.accepted: asyncio.Future[ResumeAnswer] = loop.create_future()
        self.ready: asyncio.Future[ResumeOutcome] = loop.create_future()
        self.execution_id = ""  # once STARTING is stored with it
        self.execution: AgentExecution | None = None
        self.previous_state = SessionState.CREATED
        self.launch = False
        self.given_up = ""
        self.stage = ""
        self.stages: dict[str, float] = {}
        self.started_at = now()
        self.after_seq = after_seq
        self._unwanted = asyncio.Event()
        self._publish = publish
        self._loop = loop
        self._began = self._stage_began = loop.time()
        self.accepted.add_done_callback(_retrieve)
        self.ready.add_done_callback(_retrieve)

    def enter(self, stage: str) -> None:
        """Go to the next stage: its length is measured, subscribers are told, and a start given up ends here."""
        at = self._loop.time()
        if self.stage:
            self.stages[self.stage] = round((at - self._stage_began) * 1000, 1)
        self.stage, self._stage_began = stage, at
        payload = {"stage": stage, "elapsed_ms": round((at - self._began) * 1000, 1)}
        self._publish([self.event("session.resume.progress", payload)])
        self.require_wanted()

    def give_up(self, why: str) -> None:
        """Say that nobody wants this start any more; it ends at whatever it waits for."""
        self.given_up = why
        self._unwanted.set()

    def require_wanted(self) -> None:
        """Raise GivenUp when nobody wants this start any more."""
        if self.given_up:
            raise GivenUp(self.given_up)

    async def unless_given_up(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`; a start that is given up cancels it and raises GivenUp (RACE-6)."""
        task = asyncio.ensure_future(work)
        unwanted = asyncio.ensure_future(self._unwanted.wait())
        try:
            await asyncio.wait({task, unwanted}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                self.require_wanted()
            return task.result()
        finally:
            unwanted.cancel()

    def event(self, action: str, payload: Mapping[str, Any]) -> Event:
        """Return a notification about this start's session."""
        return Event(action=action, session_id=self.session_id, task_id=self.task_id, payload=dict(payload))

    def outcome(self, *, how: str = "", reason: str = "", lost: str = "", error: str = "") -> ResumeOutcome:
        """Return what is stored of this start."""
        execution = self.execution
        return ResumeOutcome(
            id=new_id(),
            session_id=self.session_id,  # type: ignore[arg-type]  # a SessionId by where it came from
            agent_execution_id=self.execution_id,
            started_at=self.started_at,
            ended_at=now(),
            how=how,
            reason=reason,
            lost=lost,
            error=error,
            stages=dict(self.stages),
            replayed=dict(execution.state.replayed) if execution else {},
            after_seq=self.after_seq,
        )

    def attached(self, answer: ResumeAnswer) -> None:
        """End the start well for everybody: an agent of an earlier backend lives, and this one is attached to it."""
        if not self.accepted.done():
            self.accepted.set_result(answer)
        if not self.ready.done():
            self.ready.set_result(self.outcome(how="attached"))

    def fail(self, error: KandevError) -> None:
        """End the start for everybody who waits."""
        for future in (self.accepted, self.ready):
            if not future.done():
                future.set_exception(error)


RESTORE_CAUSES = {
    LoadFailure.UNKNOWN_SESSION: FailureCause.UNKNOWN_SESSION,
    LoadFailure.CANNOT_RESTORE: FailureCause.CANNOT_RESTORE,
    LoadFailure.UNSUPPORTED: FailureCause.CANNOT_RESTORE,
    LoadFailure.LOGIN: FailureCause.LOGIN_NEEDED,
    LoadFailure.IN_USE: FailureCause.IN_USE,
}
GIVEN_UP_CAUSES = {
    "stopping": FailureCause.BACKEND_STOPPING,
    "cancelled": FailureCause.USER_CANCELLED,
    "stopped": FailureCause.USER_CANCELLED,
}
AT_ANY_TIME = ((RuntimeUnreachable, FailureCause.UNREACHABLE), (AgentSilent, FailureCause.INACTIVE))
AFTER_INITIALIZE = (
    (AgentDied, FailureCause.AGENT_DIED),
    (ExecutionNotFoundError, FailureCause.AGENT_DIED),  # it died before the next request could be written
    (RequestFailed, FailureCause.INACTIVE),
    (AgentctlError, FailureCause.UNREACHABLE),
)


def cause_of(error: KandevError, start: Start, *, login: bool) -> FailureCause:
    """Return the row of the table in design, section 4, for an error of a start. `login`: its text asks for one."""
    if start.given_up or isinstance(error, GivenUp):
        return GIVEN_UP_CAUSES.get(start.given_up, FailureCause.USER_CANCELLED)
    if isinstance(error, RestoreFailed):
        return RESTORE_CAUSES[error.kind]
    if login:
        return FailureCause.LOGIN_NEEDED
    at_any_time = next((cause for kind, cause in AT_ANY_TIME if isinstance(error, kind)), None)
    if at_any_time is not None:
        return at_any_time
    initialized = start.execution is not None and start.execution.initialized
    if not initialized or start.launch:
        return FailureCause.START_FAILED
    return next((cause for kind, cause in AFTER_INITIALIZE if isinstance(error, kind)), FailureCause.START_FAILED)


def _retrieve(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled():
        future.exception()
