"""The directories of sessions: validated before each start, made again where they are lost, and said (WORK)."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec
import structlog

from kandev.agentctl.failpoints import failpoint
from kandev.domain.constants import Timing
from kandev.domain.models import Event, TaskSession, now
from kandev.errors import AgentctlError, KandevError
from kandev.lifecycle.carrier import Carrier, Journey, not_home
from kandev.lifecycle.execution import AgentExecution
from kandev.orchestrator import notices
from kandev.store.database import Tx
from kandev.store.rows import to_json
from kandev.store.store import Store
from kandev.worktrees import Prepared, Workspace, Worktrees

log = structlog.get_logger(__name__)


class SessionWorkspaces:
    """What the store knows of a session's directory, kept in step with the disk."""

    def __init__(
        self, store: Store, worktrees: Worktrees, *, timing: Timing, publish: Callable[[Sequence[Event]], None]
    ) -> None:
        self._store = store
        self._worktrees = worktrees
        self._carrier = Carrier(worktrees.carrying)
        self._timing = timing
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
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

    async def carry_in(self, execution: AgentExecution, workspace: Workspace) -> None:
        """Bring the session's sources to where its agent will work; say what is not carried. Raises as `Carrier`."""
        await execution.client.wait_ready(self._timing.agentctl_ready_s)
        async with self._turns[execution.ref.session_id]:
            said = await self._carrier.carry_in(_journey(execution, workspace), execution.client)
        await self._say(execution, [execution.instance.note, *said])

    async def bring_home(self, execution: AgentExecution) -> None:
        """Bring home what the agent did; where that fails, the next turn's end or the next start tries again."""
        session_id = execution.ref.session_id
        try:
            workspace = msgspec.json.decode(self._store.settings(session_id).workspace, type=Workspace)
            async with self._turns[session_id]:
                said = await self._carrier.bring_home(_journey(execution, workspace), execution.client)
        except AgentctlError as error:
            log.info("work.not_home", session_id=session_id, error=error.message)
        except KandevError as error:
            log.warning("work.not_home", session_id=session_id, error=error.message)
            await self._say(execution, [not_home(error)])
        else:
            await self._say(execution, said)

    async def forget(self, session_id: str) -> None:
        """Remove the names under which work came home, before the session is deleted; its branch stays."""
        self._turns.pop(session_id, None)
        try:
            workspace = msgspec.json.decode(self._store.settings(session_id).workspace, type=Workspace)
            await self._worktrees.carrying.forget(workspace, session_id)
        except KandevError as error:
            log.warning("work.not_forgotten", session_id=session_id, error=error.message)

    async def _say(self, execution: AgentExecution, lines: Sequence[str]) -> None:
        ref = execution.ref
        said = [
            notices.placed_notice(self._store, ref.session_id, notices.status("workspace", line))
            for line in filter(None, lines)
        ]
        if said:
            written = await self._store.write(lambda tx: [notices.write_notice(tx, one, ref.task_id) for one in said])
            self._publish(written)


def _journey(execution: AgentExecution, workspace: Workspace) -> Journey:
    return Journey(session_id=execution.ref.session_id, workspace=workspace, path=execution.request.cwd)
