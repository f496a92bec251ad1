"""Tasks and their sessions: created in one transaction (CRASH-1), ended by a stored intention (CRASH-13)."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.agents.base import AgentConfig
from kandev.agents.registry import AgentRegistry
from kandev.domain.models import (
    Event,
    HoldReason,
    ResumeOutcome,
    RowStatus,
    SessionId,
    SessionState,
    Task,
    TaskId,
    TaskSession,
    TaskState,
    new_id,
    now,
)
from kandev.domain.resume import FORK_OF
from kandev.domain.states import SessionEvent, TaskEvent
from kandev.errors import Conflict, Invalid, NotFound
from kandev.orchestrator.deletion import BY_TASK
from kandev.orchestrator.messages import new_prompt, queue_prompt
from kandev.orchestrator.task_operations import TaskOperations
from kandev.orchestrator.transitions import move_session, move_task
from kandev.orchestrator.views import CreateTask, SessionView, session_view
from kandev.store.database import Tx
from kandev.store.rows import from_row, to_json
from kandev.store.store import Store
from kandev.worktrees import Workspace, Worktrees, plan_empty, plan_in_place, plan_worktree

TITLE_CHARS = 80


class TaskService:
    """Creates, lists and completes. `kick` starts a new session by its queue."""

    def __init__(
        self,
        store: Store,
        operations: TaskOperations,
        worktrees: Worktrees,
        registry: AgentRegistry,
        *,
        directory: Path,
        runtimes: Sequence[str],
        default_runtime: str,
        kick: Callable[[str], None],
        publish: Callable[[Sequence[Event]], None],
    ) -> None:
        self._store = store
        self._operations = operations
        self._worktrees = worktrees
        self._registry = registry
        self._directory = directory
        self._runtimes = runtimes
        self._default_runtime = default_runtime
        self._kick = kick
        self._publish = publish

    async def create(self, request: CreateTask) -> tuple[Task, SessionView]:
        """Store task, session, row, first message and queue entry in one transaction; then it starts by itself.

        The same `client_task_id` gives the stored task. Raises NotFound for an unknown agent, Invalid for what is
        no repository, Conflict for an agent that this version cannot start.
        """
        known = self._store.task_by_client(request.client_task_id) if request.client_task_id else None
        if known is not None:
            return await self._known(known)
        config = self._launchable(request.agent)
        request = msgspec.structs.replace(request, runtime=self._runtime(request.runtime, config))
        if not request.description.strip():
            raise Invalid("A task needs a description: it is the first prompt.", field="description")
        task, session = _new_task(request), SessionId(new_id())
        workspace = await self._plan(request, task, session)
        stored = _new_session(request, task.id, session, workspace)
        job = _CreateJob(task, stored, config, workspace, recap_of="")
        hold = HoldReason.OPEN if request.start else HoldReason.NOT_STARTED
        failpoint("task.before_create")
        events = await self._store.write(lambda tx: job.run(tx, prompt=request.description, hold=hold))
        if not events:  # another request with this client id was first
            return await self._known(self._store.task_by_client(request.client_task_id or "") or task)
        failpoint("task.after_create")
        self._publish(events)
        self._kick(session)
        return task, self._view(session)

    async def _known(self, task: Task) -> tuple[Task, SessionView]:
        """Return a task that is there, with its first session. Raises NotFound when that was deleted."""
        sessions = await self.list_sessions(task.id)
        if not sessions:
            raise NotFound(f"The task {task.id} has no session any more.", id=task.id)
        return task, sessions[0]

    async def create_session(self, task_id: str, agent: str | None, from_session_id: str | None) -> SessionView:
        """Make another session of a task, in a worktree of its own.

        From another one it begins as the agent's own copy of it, where the agent is the same and can do that; else,
        and if that fails, with the other one's recap.
        """
        task = self._store.task(task_id)
        sessions = self._store.sessions(task_id)
        source = self._store.session(from_session_id, task_id=task_id) if from_session_id else None
        like = source or (sessions[-1] if sessions else None)
        if task.state is TaskState.COMPLETED:
            raise Conflict("The task is completed, which is final.", reason="session_completed")
        config = self._launchable(agent or (like.agent if like else ""))
        request = CreateTask(
            description=task.description,
            title=task.title,
            agent=config.name,
            runtime=self._runtime(like.runtime if like else "", config),
            repository_path=like.repository_path if like else "",
        )
        session_id = SessionId(new_id())
        workspace = await self._plan(request, task, session_id)
        stored = _new_session(request, task.id, session_id, workspace, recap=source is not None)
        fork_of = self._fork_of(source, config)
        job = _CreateJob(task, stored, config, workspace, recap_of=source.id if source else "", fork_of=fork_of)
        prompt = "" if source else task.description
        failpoint("task.before_session")
        events = await self._store.write(lambda tx: job.run_another(tx, prompt=prompt, hold=HoldReason.NOT_STARTED))
        failpoint("task.after_session")
        self._publish(events)
        return self._view(session_id)

    def _fork_of(self, source: TaskSession | None, config: AgentConfig) -> str:
        row = self._store.executor(source.id) if source and source.agent == config.name else None
        known = row is not None and config.session.forks and row.metadata.get("token_proven")
        return row.resume_token if row is not None and known else ""

    def _launchable(self, name: str) -> AgentConfig:
        config = self._registry.get(name)
        if not config.launchable:
            raise Conflict(config.not_launchable_reason, reason="protocol_not_built")
        return config

    def _runtime(self, wanted: str, config: AgentConfig) -> str:
        """Return where a session runs: as asked for, else as its agent says, else by default."""
        name = wanted or config.runtime or self._default_runtime
        if name not in self._runtimes:
            known_names = ", ".join(self._runtimes)
            raise Invalid(f"There is no runtime {name!r}; there is {known_names}.", field="runtime")
        return name

    async def _plan(self, request: CreateTask, task: Task, session_id: str) -> Workspace:
        """Name the session's directory; git runs later, when that name is stored (WORK-6)."""
        if not request.repository_path:
            return plan_empty(self._directory, session_id=session_id)
        path = os.path.abspath(os.path.expanduser(request.repository_path))
        if request.in_place:
            return plan_in_place(path)
        await self._worktrees.check_repository(path, request.base_branch)
        return plan_worktree(
            self._directory, path, session_id=session_id, title=task.title, base_branch=request.base_branch
        )

    def _view(self, session_id: str) -> SessionView:
        return session_view(self._store.session(session_id), self._store.executor(session_id))

    async def list(self, state: str | None, limit: int, cursor: str | None) -> tuple[Sequence[Task], str | None]:
        """Return tasks, newest first, and the cursor of the next page."""
        before = ("", "")
        if cursor:
            stamp, _, task_id = cursor.partition("|")
            before = (stamp, task_id)
        tasks = self._store.tasks(state=state or "", before=before, limit=limit + 1)
        page = tasks[:limit]
        more = len(tasks) > limit
        return page, f"{page[-1].created_at}|{page[-1].id}" if more else None

    async def get(self, task_id: str) -> tuple[Task, Sequence[SessionView]]:
        """Return a task and its sessions."""
        return self._store.task(task_id), await self.list_sessions(task_id)

    async def list_sessions(self, task_id: str) -> Sequence[SessionView]:
        """Return the sessions of a task, oldest first."""
        self._store.task(task_id)
        return [session_view(s, self._store.executor(s.id)) for s in self._store.sessions(task_id)]

    async def get_session(self, session_id: str) -> tuple[SessionView, Sequence[ResumeOutcome]]:
        """Return a session, and how its resumes went, newest first."""
        return self._view(session_id), self._store.resumes(session_id)

    async def update(self, task_id: str, title: str) -> Task:
        """Rename a task."""
        self._store.task(task_id)
        failpoint("task.before_rename")
        row = await self._store.write(lambda tx: tx.one("task_set_title", id=task_id, title=title, now=now()))
        failpoint("task.after_rename")
        if row is None:
            return self._store.task(task_id)
        task = from_row(Task, row)
        self._publish([Event(action="task.updated", task_id=task_id, payload={"task": task})])
        return task

    async def complete(self, task_id: str) -> Task:
        """End all sessions of a task for good: COMPLETED. The intention is stored first (CRASH-13)."""
        self._store.task(task_id)

        def intend(tx: Tx) -> None:
            tx.run("task_set_intent", id=task_id, intent="complete", now=now())
            for session in tx.all("sessions_of_task", task_id=task_id):
                tx.run("session_set_intent", id=session["id"], intent=BY_TASK, now=now())

        failpoint("complete.before_intent")
        await self._store.write(intend)
        failpoint("complete.after_intent")
        for session in self._store.sessions(task_id):  # from here on there are no more of them
            await self._operations.end_for_good(session.id)
        await self.finish_complete(task_id)
        return self._store.task(task_id)

    async def finish_complete(self, task_id: str) -> None:
        """Store that a completion is carried out."""
        sessions = self._store.sessions(task_id)

        def job(tx: Tx) -> list[Event]:
            events: list[Event] = []
            for session in sessions:
                events += move_session(tx, session.id, SessionEvent.COMPLETE)
                tx.run("session_set_intent", id=session.id, intent="", now=now())
            events += move_task(tx, task_id, TaskEvent.COMPLETE, session_id="")
            tx.run("task_set_intent", id=task_id, intent="", now=now())
            return events

        failpoint("complete.before_finish")
        events = await self._store.write_patiently(job)
        failpoint("complete.after_finish")
        self._publish(events)


class _CreateJob:
    """The rows of a new task or session."""

    def __init__(
        self,
        task: Task,
        session: TaskSession,
        config: AgentConfig,
        workspace: Workspace,
        *,
        recap_of: str,
        fork_of: str = "",
    ) -> None:
        self._task = task
        self._session = session
        self._config = config
        self._workspace = workspace
        self._recap_of = recap_of
        self._fork_of = fork_of

    def run(self, tx: Tx, *, prompt: str, hold: HoldReason) -> list[Event]:
        """Store the task and its first session. Of two requests with one client id the second changes nothing."""
        client_id = self._task.client_task_id
        if client_id and tx.one("task_by_client", client_task_id=client_id) is not None:
            return []
        tx.run("task_insert", **msgspec.structs.asdict(self._task))
        self.run_session(tx, prompt=prompt, hold=hold)
        return [Event(action="task.created", task_id=self._task.id, payload={"task": self._task})]

    def run_another(self, tx: Tx, *, prompt: str, hold: HoldReason) -> list[Event]:
        """Store another session. Raises Conflict for a task that ends: what ends it has looked for its sessions."""
        task = tx.one("task_get", id=self._task.id)
        if task is None or task["intent"] or task["state"] == TaskState.COMPLETED:
            raise Conflict("The task is completed, or is being completed or deleted.", reason="session_completed")
        return self.run_session(tx, prompt=prompt, hold=hold)

    def run_session(self, tx: Tx, *, prompt: str, hold: HoldReason) -> list[Event]:
        """Store session, row, and the first prompt: message and first entry of the queue; '' is none."""
        session = self._session
        tx.run(
            "session_insert",
            id=session.id,
            task_id=session.task_id,
            agent=session.agent,
            agent_config=to_json(self._config),
            runtime=session.runtime,
            state=session.state,
            model=session.model,
            mode=session.mode,
            repository_path=session.repository_path,
            workspace=to_json(self._workspace),
            recap_pending=int(session.recap_pending),
            recap_of=self._recap_of,
            created_at=session.created_at,
            updated_at=session.updated_at,
        )
        tx.run(
            "executor_insert",
            session_id=session.id,
            task_id=session.task_id,
            runtime=session.runtime,
            status=RowStatus.STOPPED,
            worktree_id=self._workspace.id,
            worktree_path=self._workspace.path,
            worktree_branch=self._workspace.branch,
            now=session.created_at,
        )
        if self._fork_of:
            metadata = to_json({FORK_OF: self._fork_of})
            tx.run("executor_set_metadata", session_id=session.id, metadata=metadata, now=session.created_at)
        tx.one("session_set_held", id=session.id, queue_held=hold)
        if prompt:
            queue_prompt(tx, new_prompt(session.id, prompt, None))
        payload = {"task_id": session.task_id, "session_id": session.id}
        return [Event(action="task.updated", task_id=session.task_id, payload=payload)]


def _new_task(request: CreateTask) -> Task:
    stamp = now()
    first_line = request.description.strip().splitlines()[0]
    return Task(
        id=TaskId(new_id()),
        title=request.title.strip() or first_line[:TITLE_CHARS],
        description=request.description,
        state=TaskState.CREATED,
        created_at=stamp,
        updated_at=stamp,
        client_task_id=request.client_task_id,
    )


def _new_session(
    request: CreateTask, task_id: TaskId, session_id: SessionId, workspace: Workspace, *, recap: bool = False
) -> TaskSession:
    stamp = now()
    return TaskSession(
        id=session_id,
        task_id=task_id,
        agent=request.agent,
        runtime=request.runtime,
        state=SessionState.CREATED,
        created_at=stamp,
        updated_at=stamp,
        model=request.model,
        mode=request.mode,
        repository_path=workspace.repository_path,
        recap_pending=recap,
    )
