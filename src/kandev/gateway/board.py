"""What a board shows of tasks: each with its newest session and that one's status, so that one request draws it."""

import asyncio

import msgspec

from kandev.domain.models import Task
from kandev.errors import NotFound
from kandev.gateway import requests as r
from kandev.gateway.context import Context, Payload
from kandev.orchestrator.views import SessionStatus, SessionView

TASKS_PER_PAGE = 50


class BoardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A task as a board shows it. Without sessions, `session` and `status` are null; `sessions` counts them."""

    task: Task
    session: SessionView | None
    status: SessionStatus | None
    sessions: int


async def task_board(context: Context, request: r.TaskBoard) -> Payload:
    """Return a page of the board, newest tasks first; or the entry of one task, empty when there is none."""
    tasks = context.backend.tasks
    if request.task_id is not None:
        entry = await _entry_of(context, request.task_id)
        return {"entries": [] if entry is None else [entry], "next_cursor": None}
    found, next_cursor = await tasks.list(None, request.limit or TASKS_PER_PAGE, request.cursor)
    entries = []
    for task in found:
        entry = await _entry_of(context, task.id)
        if entry is not None:  # else it was deleted since the list was read
            entries.append(entry)
        await asyncio.sleep(0)  # a page takes some milliseconds, and streams go on meanwhile
    return {"entries": entries, "next_cursor": next_cursor}


async def _entry_of(context: Context, task_id: str) -> BoardEntry | None:
    try:
        task, sessions = await context.backend.tasks.get(task_id)
        session = sessions[-1] if sessions else None
        status = context.backend.operations.status(task_id, session.id) if session else None
    except NotFound:
        return None
    return BoardEntry(task=task, session=session, status=status, sessions=len(sessions))
