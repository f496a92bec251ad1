"""Answers to the agents' permission requests: once each, and never automatic after a restart (PERM)."""

from collections.abc import Callable, Sequence

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.domain.models import Event, PermissionRequest, PermissionState, now
from kandev.errors import Conflict, Invalid, NotFound
from kandev.lifecycle.batch import Applied
from kandev.lifecycle.execution import AgentExecution
from kandev.lifecycle.permissions import resolved_events
from kandev.lifecycle.reader import Reader
from kandev.store.database import Tx
from kandev.store.store import Store


class PermissionService:
    """Lists and answers. `running` finds the live agent of a session."""

    def __init__(
        self,
        store: Store,
        *,
        running: Callable[[str], AgentExecution | None],
        publish: Callable[[Sequence[Event]], None],
    ) -> None:
        self._store = store
        self._running = running
        self._publish = publish

    async def list(self, session_id: str | None) -> list[PermissionRequest]:
        """Return the requests that wait, of a session or of all (PERM-1)."""
        return self._store.pending_permissions(session_id or "")

    async def respond(
        self, session_id: str, request_id: str, option_id: str | None, *, cancelled: bool = False
    ) -> PermissionRequest:
        """Answer a request; the answer and its line to the agent are one commit.

        Raises Conflict with reason already_resolved, or expired when the asking process is gone (PERM-2).
        """
        request = self._store.permission(request_id)
        if request.session_id != session_id:
            raise NotFound(f"There is no permission request {request_id} in this session.", id=request_id)
        if request.state is PermissionState.EXPIRED:
            raise _expired()
        if request.state is not PermissionState.PENDING:
            raise Conflict("This request was answered already.", reason="already_resolved", answer=request.answer)
        execution = self._running(session_id)
        if execution is None or execution.ref.execution_id != request.agent_execution_id:
            raise _expired()
        if execution.state.permissions.pop(request.rpc_id, None) is None:
            raise Conflict("This request was answered already.", reason="already_resolved")
        answer = "" if cancelled else _chosen(request, option_id, execution)
        _queue_answer(execution.ingest.reader, request, answer)
        state = PermissionState.CANCELLED if cancelled else PermissionState.ANSWERED
        task_id = execution.ref.task_id

        def change(tx: Tx, applied: Applied) -> None:
            row = tx.one("permission_resolve", id=request_id, state=state, answer=answer, now=now())
            if row is not None:
                applied.events.extend(resolved_events(tx, row, task_id))

        failpoint("permission.before_answer")
        await execution.ingest.flush(change)
        failpoint("permission.after_answer")
        return self._store.permission(request_id)


def _chosen(request: PermissionRequest, option_id: str | None, execution: AgentExecution) -> str:
    offered = [option["option_id"] for option in request.options]
    if option_id in offered:
        return str(option_id)
    execution.state.permissions[request.rpc_id] = request.id
    raise Invalid(f"The request offers {', '.join(offered)}, not {option_id!r}.", field="option_id")


def _queue_answer(reader: Reader, request: PermissionRequest, answer: str) -> None:
    rpc_id = msgspec.json.decode(request.rpc_id)
    reader.queue_line(reader.dialect.answer_permission(rpc_id, answer or None, request.tool_call))


def _expired() -> Conflict:
    return Conflict(
        "The agent that asked is not running any more, so its question expired. Send a message to go on; the agent "
        "asks again if it needs to.",
        reason="expired",
    )
