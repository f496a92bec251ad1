"""Permission requests in the store: asked once, answered once, closed with what they belong to (PERM, WIRE-14)."""

from typing import Any

import msgspec

from kandev.domain.models import (
    Event,
    Message,
    PermissionRequest,
    PermissionState,
    SessionId,
    new_id,
    now,
)
from kandev.lifecycle.batch import Applied, Change, message_event
from kandev.lifecycle.effects import ExecutionRef
from kandev.protocols import acp
from kandev.store.database import Tx
from kandev.store.rows import from_row, message_from_row, to_json

RESOLVED_BY_POLICY = "policy"


class AskedPermission(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it is stored: the message's text and metadata, and the state that the policy gave it."""

    id: str
    content: str
    metadata: dict[str, Any]
    state: PermissionState
    answer: str
    tool_call: dict[str, Any]
    options: list[dict[str, Any]]


def rpc_key(rpc_id: Any) -> str:
    """Return the agent's request id as text that keeps its type: 7 and "7" are two requests."""
    return to_json(rpc_id)


def permission_message(ask: acp.PermissionAsk, *, chosen: str | None, refused: bool) -> AskedPermission:
    """Return what is stored of a request; `chosen` or `refused` by the session's policy, else it is pending."""
    options = [{"option_id": o.option_id, "name": o.name, "kind": o.kind} for o in ask.options]
    state = PermissionState.PENDING
    if chosen is not None:
        state = PermissionState.ANSWERED
    elif refused:
        state = PermissionState.CANCELLED
    request_id = new_id()
    title = ask.title or "The agent asks for permission"
    metadata = {
        "request_id": request_id,
        "state": str(state),
        "answer": chosen or "",
        "options": options,
        "tool_call_id": ask.tool_call_id,
    }
    return AskedPermission(
        id=request_id,
        content=title,
        metadata=metadata,
        state=state,
        answer=chosen or "",
        tool_call=dict(ask.tool_call),
        options=options,
    )


def ask_change(ref: ExecutionRef, message: Message, rpc_id: Any, asked: AskedPermission) -> Change:
    """Return the change that stores a request beside its message and publishes it."""
    request = PermissionRequest(
        id=asked.id,
        session_id=SessionId(ref.session_id),
        turn_id=message.turn_id,
        agent_execution_id=ref.execution_id,
        rpc_id=rpc_key(rpc_id),
        tool_call=asked.tool_call,
        options=asked.options,
        state=asked.state,
        created_at=message.created_at,
        answer=asked.answer,
        resolved_at="" if asked.state is PermissionState.PENDING else message.created_at,
    )

    def change(tx: Tx, applied: Applied) -> None:
        row = {**msgspec.structs.asdict(request), "message_id": message.id}
        row["tool_call"], row["options"] = to_json(request.tool_call), to_json(request.options)
        tx.run("permission_insert", **row)
        if request.state is PermissionState.PENDING:
            applied.events.append(_event("permission.requested", request, ref.task_id))

    return change


def close_permissions(ref: ExecutionRef, state: str, *, only: str = "") -> Change:
    """Return the change that ends the pending requests of a session, or `only` one of them."""

    def change(tx: Tx, applied: Applied) -> None:
        if only:
            row = tx.one("permission_resolve", id=only, state=state, answer="", now=now())
            rows = [row] if row else []
        else:
            rows = tx.all("permissions_close", session_id=ref.session_id, state=state, now=now())
        for row in rows:
            applied.events.extend(resolved_events(tx, row, ref.task_id))

    return change


def resolved_events(tx: Tx, row: Any, task_id: str) -> list[Event]:
    """Bring the message of a resolved request up to date, and return what is published."""
    request = from_row(PermissionRequest, row)
    events = [_event("permission.resolved", request, task_id)]
    stored = tx.one("message_get", id=row["message_id"])
    if stored is not None:
        message = message_from_row(stored)
        metadata = {**message.metadata, "state": str(request.state), "answer": request.answer}
        stamp = now()
        tx.run("message_set_metadata", id=message.id, metadata=to_json(metadata), now=stamp)
        changed = msgspec.structs.replace(message, metadata=metadata, updated_at=stamp)
        events.append(message_event("session.message.updated", changed, task_id))
    return events


def _event(action: str, request: PermissionRequest, task_id: str) -> Event:
    return Event(action=action, session_id=request.session_id, task_id=task_id, payload={"request": request})
