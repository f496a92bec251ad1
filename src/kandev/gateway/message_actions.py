"""The actions on messages, the queue, turns and permission requests; the table is in `actions`."""

from kandev.errors import Invalid, NotFound
from kandev.gateway import requests as r
from kandev.gateway.context import Context, Payload

MESSAGES_PER_PAGE = 50


async def message_add(context: Context, request: r.MessageAdd) -> Payload:
    """Store a prompt and queue it; answered once it is committed."""
    message = await context.backend.messages.add(
        request.task_id, request.session_id, request.content, request.client_message_id
    )
    return {"message": message}


async def message_list(context: Context, request: r.MessageList) -> Payload:
    """Return a page of the transcript, ascending, and how the agent came up within it."""
    limit = request.limit or MESSAGES_PER_PAGE
    page = await context.backend.messages.list(
        request.session_id, before=request.before, after=request.after, limit=limit
    )
    return page._asdict()


async def message_get(context: Context, request: r.MessageRef) -> Payload:
    """Return one message whole."""
    message = await context.backend.messages.get(request.message_id)
    if request.session_id not in {None, message.session_id}:
        raise NotFound(f"Session {request.session_id} has no message {request.message_id}.")
    return {"message": message}


async def message_search(context: Context, request: r.MessageSearch) -> Payload:
    """Search titles and transcripts of one task, or of all."""
    found = await context.backend.search.find(request.text, request.task_id)
    return {"hits": found.hits, "complete": found.complete}


async def queue_list(context: Context, request: r.SessionRef) -> Payload:
    """Return the prompts that wait, and why they are held ('' for an open queue)."""
    queue, held = await context.backend.messages.queue(request.session_id)
    return {"queue": queue, "held": held}


async def queue_cancel(context: Context, request: r.QueuedRef) -> Payload:
    """Take a prompt out of the queue; CONFLICT already_sent once a turn has it."""
    await context.backend.messages.cancel_queued(request.session_id, request.message_id)
    return {"success": True, "message_id": request.message_id}


async def queue_resume(context: Context, request: r.SessionRef) -> Payload:
    """Open a held queue."""
    await context.backend.messages.resume_queue(request.session_id)
    return {"success": True, "session_id": request.session_id}


async def turn_send_again(context: Context, request: r.TurnRef) -> Payload:
    """Queue the prompt of an interrupted turn once more; CONFLICT already_sent the second time."""
    return {"message": await context.backend.messages.send_again(request.session_id, request.turn_id)}


async def permission_list(context: Context, request: r.PermissionList) -> Payload:
    """Return the pending permission requests of a session, or of all."""
    return {"permissions": await context.backend.permissions.list(request.session_id)}


async def permission_respond(context: Context, request: r.PermissionRespond) -> Payload:
    """Answer a permission request with an option, or cancel it."""
    if (request.option_id is None) is not bool(request.cancelled):
        raise Invalid("Give either `option_id` or `cancelled: true`.", field="option_id", expected="one of the two")
    permission = await context.backend.permissions.respond(
        request.session_id, request.request_id, request.option_id, cancelled=bool(request.cancelled)
    )
    return {"permission": permission}
