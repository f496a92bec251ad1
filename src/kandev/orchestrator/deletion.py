"""Deleting sessions and tasks: refused before anything changes, stored before anything ends, finished after a crash.

What is stored as promised is kept or taken back: without room on the disk that waits for room.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.domain.models import Event, TaskSession, now
from kandev.errors import KandevError
from kandev.lifecycle.agent_logs import AgentLogs
from kandev.lifecycle.session_history import SessionHistoryManager
from kandev.orchestrator.task_operations import TaskOperations
from kandev.store.database import Tx
from kandev.store.store import Store
from kandev.worktrees import Workspace, Worktrees

BY_TASK = "task"
"""The intent of a session whose task has one: it takes no prompt, and the task's intent says what becomes of it."""


class Deletion:
    """An intent is "delete FORCE DELETE_BRANCH", both 0 or 1 (CRASH-13)."""

    def __init__(
        self,
        store: Store,
        operations: TaskOperations,
        worktrees: Worktrees,
        history: SessionHistoryManager,
        *,
        agent_logs: AgentLogs,
        forget: Callable[[str, str], Awaitable[None]],
        publish: Callable[[Sequence[Event]], None],
    ) -> None:
        self._store = store
        self._operations = operations
        self._worktrees = worktrees
        self._history = history
        self._agent_logs = agent_logs
        self._forget = forget
        self._publish = publish

    async def delete_task(self, task_id: str, *, force: bool = False, delete_branch: bool = False) -> None:
        """Delete a task, its sessions and their directories; branches stay unless told.

        Without `force` raises Conflict for uncommitted changes and unmerged commits; then nothing was changed.
        """
        self._store.task(task_id)
        sessions = self._store.sessions(task_id)
        try:
            await self._refuse_losses(sessions, force=force, delete_branch=delete_branch)
            await self._intend(task_id, f"delete {int(force)} {int(delete_branch)}", BY_TASK, sessions)
            sessions = self._store.sessions(task_id)  # from here on there are no more of them
            await self._remove(sessions, force=force, delete_branch=delete_branch)
        except KandevError:
            await self._take_back(task_id, sessions)
            raise
        failpoint("delete.before_task")
        await self._store.write_patiently(lambda tx: tx.run("task_delete", id=task_id))
        failpoint("delete.after_task")
        self._publish([Event(action="task.deleted", task_id=task_id, payload={"task_id": task_id})])

    async def delete_session(self, task_id: str, session_id: str, *, force: bool = False) -> None:
        """Delete one session; works when its worktree or agent is gone (STATE-9). Raises as `delete_task` does."""
        session = self._store.session(session_id, task_id=task_id)
        try:
            await self._refuse_losses([session], force=force, delete_branch=False)
            await self._intend("", "", f"delete {int(force)} 0", [session])
            await self._remove([session], force=force, delete_branch=False)
        except KandevError:
            await self._take_back("", [session])
            raise
        failpoint("delete.before_session")
        await self._store.write_patiently(lambda tx: tx.run("session_delete", id=session_id))
        failpoint("delete.after_session")
        payload = {"task_id": task_id, "session_id": session_id, "new_state": "DELETED"}
        self._publish([Event(action="task.updated", task_id=task_id, payload=payload)])

    async def _refuse_losses(self, sessions: Sequence[TaskSession], *, force: bool, delete_branch: bool) -> None:
        for session in () if force else sessions:
            await self._worktrees.check_removable(self._workspace(session.id), delete_branch=delete_branch)

    async def _intend(self, task_id: str, intent: str, of_sessions: str, sessions: Sequence[TaskSession]) -> None:
        """Store what is promised from here on."""
        await _set_intents(self._store.write, task_id, intent, of_sessions, sessions)

    async def _take_back(self, task_id: str, sessions: Sequence[TaskSession]) -> None:
        """Store that nothing is promised any more, if anything was."""
        for session in sessions:
            self._history.keep(session.id)
        promised = [self._store.session(session.id).intent for session in sessions]
        if task_id:
            promised.append(self._store.task(task_id).intent)
        if any(promised):
            await _set_intents(self._store.write_patiently, task_id, "", "", sessions)

    async def _remove(self, sessions: Sequence[TaskSession], *, force: bool, delete_branch: bool) -> None:
        """End the agents, then remove all that is kept outside of the database. What is gone already is no error."""
        for session in sessions:
            await self._operations.end_agent(session.id, why="stopped")
        failpoint("delete.after_agents")
        # Once more, now that no agent works there any more.
        await self._refuse_losses(sessions, force=force, delete_branch=delete_branch)
        for session in sessions:
            workspace = self._workspace(session.id)
            await self._worktrees.remove(workspace, force=force, delete_branch=delete_branch)
            failpoint("delete.after_worktree")
            await self._history.delete(session.id)
            self._agent_logs.delete(session.id)
            await self._forget(session.runtime, session.id)
            self._store.forget_session(session.id)
            failpoint("delete.after_files")

    def _workspace(self, session_id: str) -> Workspace:
        return msgspec.json.decode(self._store.settings(session_id).workspace, type=Workspace)


async def _set_intents(
    write: Callable[[Callable[[Tx], None]], Awaitable[None]],
    task_id: str,
    intent: str,
    of_sessions: str,
    sessions: Sequence[TaskSession],
) -> None:
    def job(tx: Tx) -> None:
        tx.run("task_set_intent", id=task_id, intent=intent, now=now())
        rows = tx.all("sessions_of_task", task_id=task_id) if task_id else ()
        for session_id in {*(session.id for session in sessions), *(row["id"] for row in rows)}:
            tx.run("session_set_intent", id=session_id, intent=of_sessions, now=now())

    failpoint("delete.before_intent")
    await write(job)
    failpoint("delete.after_intent")


def delete_flags(intent: str) -> tuple[bool, bool]:
    """Return force and delete_branch of a stored intent."""
    _, force, delete_branch = intent.split(" ")
    return force == "1", delete_branch == "1"
