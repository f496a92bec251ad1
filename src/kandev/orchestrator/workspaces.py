"""The directories of sessions: validated before each start, made again where they are lost, and said (WORK)."""

from collections.abc import Callable, Sequence

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.domain.models import Event, TaskSession, now
from kandev.orchestrator import notices
from kandev.store.database import Tx
from kandev.store.rows import to_json
from kandev.store.store import Store
from kandev.worktrees import Prepared, Workspace, Worktrees


class SessionWorkspaces:
    """What the store knows of a session's directory, kept in step with the disk."""

    def __init__(self, store: Store, worktrees: Worktrees, *, publish: Callable[[Sequence[Event]], None]) -> None:
        self._store = store
        self._worktrees = worktrees
        self._publish = publish

    async def validate(self, session: TaskSession) -> Prepared:
        """Validate the directory; a rebuilt one is said in the transcript (WORK-1). Raises as `Worktrees.validate`."""
        settings = self._store.settings(session.id)
        workspace = msgspec.json.decode(settings.workspace, type=Workspace)
        prepared = await self._worktrees.validate(workspace)
        if prepared.workspace != workspace or prepared.note:
            await self._keep(session, prepared)
        return prepared

    async def _keep(self, session: TaskSession, prepared: Prepared) -> None:
        notice = notices.status("workspace", prepared.note, output=prepared.setup_output[-2000:])
        message = notices.placed_notice(self._store, session.id, notice) if prepared.note else None

        def job(tx: Tx) -> list[Event]:
            tx.run("session_set_workspace", id=session.id, workspace=to_json(prepared.workspace), now=now())
            return [notices.write_notice(tx, message, session.task_id)] if message else []

        failpoint("start.before_workspace")
        events = await self._store.write(job)
        failpoint("start.after_workspace")
        self._publish(events)
