"""The actions of the WebSocket: one function each, and the table that finds it.

A function gets the context and its typed request, and returns the payload of the answer. Errors are KandevErrors.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

import kandev
from kandev.errors import NotFound, UnknownAction
from kandev.gateway import message_actions as messages
from kandev.gateway import requests as r
from kandev.gateway.board import task_board
from kandev.gateway.context import Context, Payload
from kandev.gateway.protocol import Request, decode_payload
from kandev.orchestrator.views import CreateTask

TASKS_PER_PAGE = 50
LOG_LINES = 200


def health(backend_boot_id: str) -> dict[str, str]:
    """Return what health.check and GET /healthz say."""
    return {"status": "ok", "service": "kandev", "version": kandev.__version__, "boot_id": backend_boot_id}


async def health_check(context: Context, _: r.Nothing) -> Payload:
    """Say that the backend lives."""
    return health(context.backend.boot_id)


async def agent_list(context: Context, request: r.AgentList) -> Payload:
    """List the agents with their flags, whether they were found, and their login; on request, each is asked."""
    agents = context.backend.agents
    return {"agents": await (agents.all_with_versions() if request.installed_versions else agents.all())}


async def agent_check(context: Context, request: r.AgentCheck) -> Payload:
    """Look whether one agent can be started."""
    return await context.backend.agents.one(request.name)


async def runtime_list(context: Context, _: r.Nothing) -> Payload:
    """List the runtimes with what they survive."""
    return {"runtimes": await context.backend.catalog.list_runtimes()}


async def id_resolve(context: Context, request: r.Resolve) -> Payload:
    """Complete a shortened id; CONFLICT with details.candidates where it is ambiguous."""
    return await context.backend.catalog.find(request.id)


async def task_create(context: Context, request: r.TaskCreate) -> Payload:
    """Create a task with its first session, and start it unless told otherwise."""
    task, session = await context.backend.tasks.create(CreateTask(**_given(request)))
    return {"task": task, "session": session}


async def task_list(context: Context, request: r.TaskList) -> Payload:
    """List tasks a page at a time."""
    limit = request.limit or TASKS_PER_PAGE
    tasks, next_cursor = await context.backend.tasks.list(request.state, limit, request.cursor)
    return {"tasks": tasks, "next_cursor": next_cursor}


async def task_get(context: Context, request: r.TaskRef) -> Payload:
    """Return a task with its sessions."""
    task, sessions = await context.backend.tasks.get(request.task_id)
    return {"task": task, "sessions": sessions}


async def task_update(context: Context, request: r.TaskUpdate) -> Payload:
    """Change a task's title."""
    return {"task": await context.backend.tasks.update(request.task_id, request.title)}


async def task_complete(context: Context, request: r.TaskRef) -> Payload:
    """Complete a task and its sessions."""
    return {"task": await context.backend.tasks.complete(request.task_id)}


async def task_delete(context: Context, request: r.TaskDelete) -> Payload:
    """Delete a task; its branch stays unless told otherwise."""
    await context.backend.deletion.delete_task(
        request.task_id, force=bool(request.force), delete_branch=bool(request.delete_branch)
    )
    return {"success": True, "task_id": request.task_id}


async def session_create(context: Context, request: r.SessionCreate) -> Payload:
    """Create a further session of a task, from another one where that is named."""
    session = await context.backend.tasks.create_session(request.task_id, request.agent, request.from_session_id)
    return {"session": session}


async def session_list(context: Context, request: r.TaskRef) -> Payload:
    """List the sessions of a task."""
    return {"sessions": await context.backend.tasks.list_sessions(request.task_id)}


async def session_get(context: Context, request: r.SessionRef) -> Payload:
    """Return a session with the outcome of each of its resumes, and the turns that were cut."""
    session, resumes = await context.backend.tasks.get_session(request.session_id)
    _check_task(request, session.task_id)
    interrupted = await context.backend.messages.interrupted(request.session_id)
    return {"session": session, "resumes": resumes, "interrupted_turns": interrupted}


async def session_start(context: Context, request: r.SessionRef) -> Payload:
    """Start a session that was created without."""
    if request.task_id is not None:
        session, _ = await context.backend.tasks.get_session(request.session_id)
        _check_task(request, session.task_id)
    return {"session": await context.backend.operations.start_session(request.session_id)}


async def session_status(context: Context, request: r.TaskSessionRef) -> Payload:
    """Evaluate whether a session needs a resume (specification: GetTaskSessionStatus)."""
    return await context.backend.operations.get_task_session_status(request.task_id, request.session_id)


async def session_resume(context: Context, request: r.Resume) -> Payload:
    """Resume a session (specification: ResumeTaskSession); with `wait`, until the agent is ready."""
    operations = context.backend.operations
    return await operations.resume_task_session(
        request.task_id, request.session_id, wait=bool(request.wait), open_queue=bool(request.open_queue)
    )


async def session_recover(context: Context, request: r.Recover) -> Payload:
    """Do what a person chose for a session that did not come back by itself."""
    return await context.backend.recovery.recover(request.task_id, request.session_id, request.action)


async def session_cancel(context: Context, request: r.TaskSessionRef) -> Payload:
    """Cancel the turn."""
    await context.backend.operations.cancel_turn(request.task_id, request.session_id)
    return {"success": True, "session_id": request.session_id}


async def session_stop(context: Context, request: r.TaskSessionRef) -> Payload:
    """Stop a session: CANCELLED, its task REVIEW."""
    return {"session": await context.backend.operations.stop_session(request.task_id, request.session_id)}


async def session_delete(context: Context, request: r.TaskSessionRef) -> Payload:
    """Delete a session."""
    await context.backend.deletion.delete_session(request.task_id, request.session_id)
    return {"success": True, "session_id": request.session_id}


async def session_set_mode(context: Context, request: r.SetMode) -> Payload:
    """Set the agent's mode; answers what the agent answered."""
    return await context.backend.settings.set_mode(request.session_id, request.mode_id)


async def session_set_config_option(context: Context, request: r.SetConfigOption) -> Payload:
    """Set one of the agent's options; answers what the agent answered."""
    settings = context.backend.settings
    return await settings.set_config_option(request.session_id, request.config_id, request.value)


async def session_logs(context: Context, request: r.Logs) -> Payload:
    """Return the agent's stderr and the stages of the resumes."""
    return await context.backend.operations.logs(request.session_id, request.limit or LOG_LINES)


async def session_recap_preview(context: Context, request: r.SessionRef) -> Payload:
    """Show the summary that a recap would send."""
    return await context.backend.operations.recap_preview(request.session_id)


async def workspace_rebuild(context: Context, request: r.SessionRef) -> Payload:
    """Make the session's worktree again from its branch."""
    return await context.backend.operations.rebuild_workspace(request.session_id)


async def session_subscribe(context: Context, request: r.SessionSubscribe) -> Payload:
    """Subscribe this socket to a session: what came after `since`, or a snapshot."""
    backend = context.backend
    return backend.hub.subscribe(context.outbox, request.session_id, request.since, backend.snapshot)


async def session_unsubscribe(context: Context, request: r.SessionRef) -> Payload:
    """End this socket's subscription to a session."""
    context.backend.hub.unsubscribe(context.outbox, request.session_id)
    return {"success": True, "session_id": request.session_id}


async def task_subscribe(context: Context, request: r.TaskSubscription) -> Payload:
    """Subscribe this socket to what a board shows of a task, or of all tasks (hub.BOARD_ACTIONS)."""
    context.backend.hub.subscribe_board(context.outbox, request.task_id)
    return {"success": True, "task_id": request.task_id, "boot_id": context.backend.boot_id}


async def task_unsubscribe(context: Context, request: r.TaskSubscription) -> Payload:
    """End this socket's subscription to a task, or to all."""
    context.backend.hub.unsubscribe_board(context.outbox, request.task_id)
    return {"success": True, "task_id": request.task_id}


def _given(request: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that the client gave, so that the defaults of the rest stand in one place."""
    return {name: value for name, value in msgspec.structs.asdict(request).items() if value is not None}


def _check_task(request: r.SessionRef, task_id: str) -> None:
    if request.task_id not in {None, task_id}:
        raise NotFound(f"Task {request.task_id} has no session {request.session_id}.")


@dataclass(frozen=True)
class Action:
    """How one action's payload is read, and the function that answers it."""

    decoder: msgspec.json.Decoder[Any]
    run: Callable[[Context, Any], Awaitable[Payload]]


_TABLE: Mapping[str, tuple[type[msgspec.Struct], Callable[[Context, Any], Awaitable[Payload]]]] = {
    "health.check": (r.Nothing, health_check),
    "agent.list": (r.AgentList, agent_list),
    "agent.check": (r.AgentCheck, agent_check),
    "runtime.list": (r.Nothing, runtime_list),
    "id.resolve": (r.Resolve, id_resolve),
    "task.create": (r.TaskCreate, task_create),
    "task.list": (r.TaskList, task_list),
    "task.board": (r.TaskBoard, task_board),
    "task.get": (r.TaskRef, task_get),
    "task.update": (r.TaskUpdate, task_update),
    "task.complete": (r.TaskRef, task_complete),
    "task.delete": (r.TaskDelete, task_delete),
    "task.subscribe": (r.TaskSubscription, task_subscribe),
    "task.unsubscribe": (r.TaskSubscription, task_unsubscribe),
    "task.session.create": (r.SessionCreate, session_create),
    "task.session.list": (r.TaskRef, session_list),
    "task.session.get": (r.SessionRef, session_get),
    "task.session.start": (r.SessionRef, session_start),
    "task.session.status": (r.TaskSessionRef, session_status),
    "task.session.resume": (r.Resume, session_resume),
    "task.session.recover": (r.Recover, session_recover),
    "task.session.cancel": (r.TaskSessionRef, session_cancel),
    "task.session.stop": (r.TaskSessionRef, session_stop),
    "task.session.delete": (r.TaskSessionRef, session_delete),
    "session.set_mode": (r.SetMode, session_set_mode),
    "session.set_config_option": (r.SetConfigOption, session_set_config_option),
    "session.logs": (r.Logs, session_logs),
    "session.recap.preview": (r.SessionRef, session_recap_preview),
    "session.subscribe": (r.SessionSubscribe, session_subscribe),
    "session.unsubscribe": (r.SessionRef, session_unsubscribe),
    "workspace.rebuild": (r.SessionRef, workspace_rebuild),
    "message.add": (r.MessageAdd, messages.message_add),
    "message.list": (r.MessageList, messages.message_list),
    "message.get": (r.MessageRef, messages.message_get),
    "message.search": (r.MessageSearch, messages.message_search),
    "message.queue.list": (r.SessionRef, messages.queue_list),
    "message.queue.cancel": (r.QueuedRef, messages.queue_cancel),
    "message.queue.resume": (r.SessionRef, messages.queue_resume),
    "turn.send_again": (r.TurnRef, messages.turn_send_again),
    "permission.list": (r.PermissionList, messages.permission_list),
    "permission.respond": (r.PermissionRespond, messages.permission_respond),
}

ACTIONS: Mapping[str, Action] = {
    name: Action(msgspec.json.Decoder(request), run) for name, (request, run) in _TABLE.items()
}


async def perform(context: Context, request: Request) -> Payload:
    """Answer one request. Between the return of the function and this one's nothing else runs in the loop."""
    action = ACTIONS.get(request.action)
    if action is None:
        raise UnknownAction(f"There is no action {request.action!r}.", action=request.action)
    return await action.run(context, decode_payload(request, action.decoder))
