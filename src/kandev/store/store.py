"""What is read by key, and the places of messages. Changes are jobs: functions of a `Tx`, run by `write`."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import structlog

from kandev.domain.known_agents import KnownLogin, KnownVersion
from kandev.domain.models import (
    ExecutorRunning,
    Message,
    PermissionRequest,
    QueuedPrompt,
    ResumeOutcome,
    Task,
    TaskSession,
    Turn,
)
from kandev.errors import NotFound, StorageFull, StorageLocked
from kandev.store.database import Database, Tx
from kandev.store.rows import from_row, message_from_row

T = TypeVar("T")

STORAGE_RETRY_S = 1.0

log = structlog.get_logger(__name__)


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a session was created with, as JSON text: its agent, its workspace; and what the agent last told."""

    agent_config: str
    workspace: str
    agent_state: dict[str, Any]


class Store:
    """Typed reads over a `Database`, and the counter that gives each message its place.

    Places are given out in memory, in the order of what happens, and one process owns the database; a place whose
    transaction failed stays empty, which harms nobody.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._places: dict[str, int] = {}

    async def write(self, job: Callable[[Tx], T]) -> T:
        """Run a job in one transaction; see `Database.write`."""
        return await self._db.write(job)

    async def write_patiently(self, job: Callable[[Tx], T]) -> T:
        """Write what must not be given up: again and again while the disk is full or the database locked."""
        while True:
            try:
                return await self._db.write(job)
            except (StorageFull, StorageLocked) as error:
                log.warning("store.waits", error=error.message)
                await asyncio.sleep(STORAGE_RETRY_S)

    def next_seq(self, session_id: str) -> int:
        """Return the next place in a session's transcript."""
        self._places[session_id] = place = self.last_seq(session_id) + 1
        return place

    def last_seq(self, session_id: str) -> int:
        """Return the last place that was given out in a session's transcript; 0 before the first."""
        last = self._places.get(session_id)
        if last is None:
            row = self._db.one("messages_max_seq", session_id=session_id)
            last = self._places[session_id] = row["seq"] if row else 0
        return last

    def task(self, task_id: str) -> Task:
        """Return a task. Raises NotFound."""
        row = self._db.one("task_get", id=task_id)
        if row is None:
            raise NotFound(f"There is no task {task_id}.", id=task_id)
        return from_row(Task, row)

    def task_by_client(self, client_task_id: str) -> Task | None:
        """Return the task that a client created under its own id, if any (CRASH-1)."""
        row = self._db.one("task_by_client", client_task_id=client_task_id)
        return from_row(Task, row) if row else None

    def tasks(self, *, state: str, before: tuple[str, str], limit: int) -> list[Task]:
        """Return tasks, newest first, created before (time, id); two empty texts mean from the newest."""
        rows = self._db.all("task_page", state=state, before_time=before[0], before_id=before[1], limit=limit)
        return [from_row(Task, row) for row in rows]

    def tasks_with_intent(self) -> list[Task]:
        """Return the tasks whose completion or deletion a crash cut short (CRASH-13)."""
        return [from_row(Task, row) for row in self._db.all("task_with_intent")]

    def session(self, session_id: str, *, task_id: str = "") -> TaskSession:
        """Return a session. Raises NotFound, also for a session of another task than `task_id`."""
        row = self._db.one("session_get", id=session_id)
        if row is None or (task_id and row["task_id"] != task_id):
            raise NotFound(f"There is no session {session_id}.", id=session_id)
        return from_row(TaskSession, row)

    def sessions(self, task_id: str) -> list[TaskSession]:
        """Return the sessions of a task, oldest first."""
        return [from_row(TaskSession, row) for row in self._db.all("sessions_of_task", task_id=task_id)]

    def settings(self, session_id: str) -> SessionSettings:
        """Return what a session was created with. Raises NotFound."""
        row = self._db.one("session_settings", id=session_id)
        if row is None:
            raise NotFound(f"There is no session {session_id}.", id=session_id)
        return SessionSettings(
            agent_config=row["agent_config"],
            workspace=row["workspace"],
            agent_state=msgspec.json.decode(row["agent_state"]),
        )

    def recap_source(self, session_id: str) -> str:
        """Return the session whose messages a recap of this one tells: itself, or the one it was made from."""
        row = self._db.one("session_recap_of", id=session_id)
        return str(row["recap_of"]) if row and row["recap_of"] else session_id

    def executor(self, session_id: str) -> ExecutorRunning | None:
        """Return the session's executor row, if it was ever started."""
        row = self._db.one("executor_get", session_id=session_id)
        return from_row(ExecutorRunning, row) if row else None

    def executors_not_ended(self) -> list[ExecutorRunning]:
        """Return the rows whose processes were not seen to end."""
        return [from_row(ExecutorRunning, row) for row in self._db.all("executors_not_ended")]

    def open_turn(self, session_id: str) -> Turn | None:
        """Return the turn that has not ended, if any."""
        row = self._db.one("turn_open", session_id=session_id)
        return from_row(Turn, row) if row else None

    def last_turn(self, session_id: str) -> Turn | None:
        """Return the newest turn, if any."""
        row = self._db.one("turn_last", session_id=session_id)
        return from_row(Turn, row) if row else None

    def turn(self, turn_id: str) -> Turn:
        """Return a turn. Raises NotFound."""
        row = self._db.one("turn_get", id=turn_id)
        if row is None:
            raise NotFound(f"There is no turn {turn_id}.", id=turn_id)
        return from_row(Turn, row)

    def any_turn(self, session_id: str) -> bool:
        """Return whether the session ever had a turn."""
        return self._db.one("turn_any", session_id=session_id) is not None

    def message(self, message_id: str) -> Message:
        """Return a message with all its text. Raises NotFound."""
        row = self._db.one("message_get", id=message_id)
        if row is None:
            raise NotFound(f"There is no message {message_id}.", id=message_id)
        return message_from_row(row)

    def message_by_client(self, session_id: str, client_message_id: str) -> Message | None:
        """Return the message that a client sent under its own id, if any (PROMPT-2)."""
        row = self._db.one("message_by_client", session_id=session_id, client_message_id=client_message_id)
        return message_from_row(row) if row else None

    def messages_before(self, session_id: str, *, before: int, limit: int) -> list[Message]:
        """Return the messages with a smaller place, ascending, at most `limit`, nearest to `before`."""
        rows = self._db.all("messages_before", session_id=session_id, before=before, limit=limit)
        return [message_from_row(row) for row in reversed(rows)]

    def messages_after(self, session_id: str, *, after: int, limit: int) -> list[Message]:
        """Return the messages with a larger place, ascending, at most `limit`."""
        rows = self._db.all("messages_after", session_id=session_id, after=after, limit=limit)
        return [message_from_row(row) for row in rows]

    def queue(self, session_id: str) -> list[QueuedPrompt]:
        """Return the prompts that no turn has taken, first to be sent first."""
        return [from_row(QueuedPrompt, row) for row in self._db.all("queue_list", session_id=session_id)]

    def queue_head(self, session_id: str) -> QueuedPrompt | None:
        """Return the prompt that is sent next, if any."""
        row = self._db.one("queue_head", session_id=session_id)
        return from_row(QueuedPrompt, row) if row else None

    def permission(self, request_id: str) -> PermissionRequest:
        """Return a permission request. Raises NotFound."""
        row = self._db.one("permission_get", id=request_id)
        if row is None:
            raise NotFound(f"There is no permission request {request_id}.", id=request_id)
        return from_row(PermissionRequest, row)

    def pending_permissions(self, session_id: str = "") -> list[PermissionRequest]:
        """Return the unanswered requests of a session, or of all."""
        if session_id:
            rows = self._db.all("permissions_pending", session_id=session_id)
        else:
            rows = self._db.all("permissions_pending_all")
        return [from_row(PermissionRequest, row) for row in rows]

    def resumes(self, session_id: str, *, limit: int = 20) -> list[ResumeOutcome]:
        """Return how the session's resumes went, newest first."""
        return [
            from_row(ResumeOutcome, row)
            for row in self._db.all("resumes_of_session", session_id=session_id, limit=limit)
        ]

    def resumes_behind(self, session_id: str, *, first: int, last: int, limit: int = 50) -> list[ResumeOutcome]:
        """Return the outcomes of the starts that belong behind the messages from place `first` to `last`."""
        rows = self._db.all("resumes_behind", session_id=session_id, first=first, last=last, limit=limit)
        return [from_row(ResumeOutcome, row) for row in rows]

    def known_versions(self, agent: str, *, limit: int = 20) -> list[KnownVersion]:
        """Return the versions of an agent that ran, the last one seen first."""
        return [from_row(KnownVersion, row) for row in self._db.all("agent_versions_of", agent=agent, limit=limit)]

    def refuses_restore(self, agent: str, version: str) -> bool:
        """Tell whether this version of an agent is known not to restore although it offers to (TOK-8)."""
        row = self._db.one("agent_version_get", agent=agent, version=version)
        return row is not None and from_row(KnownVersion, row).refuses_restore

    def known_login(self, agent: str) -> KnownLogin | None:
        """Return what the agent last let know of its login."""
        row = self._db.one("agent_login_get", agent=agent)
        return from_row(KnownLogin, row) if row else None

    def forget_session(self, session_id: str) -> None:
        """Drop what is kept in memory of a deleted session."""
        self._places.pop(session_id, None)

    @property
    def database(self) -> Database:
        """The database itself, for named reads that have no method here."""
        return self._db
