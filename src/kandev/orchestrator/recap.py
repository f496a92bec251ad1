"""A recap: the recorded conversation, rendered from the messages, for any agent; only when a person chose it."""

from kandev.domain.history import Entry, Rendered, render_resume_context
from kandev.domain.models import QueuedPrompt
from kandev.lifecycle.recording import entries_of
from kandev.store.store import Store

NEWEST = 1 << 62
PAGE = 200
MOST_MESSAGES = 2000


def recap_entries(store: Store, session_id: str) -> tuple[list[Entry], int]:
    """Return the newest messages as entries, oldest first, and how many older messages were not read."""
    entries: list[Entry] = []
    before, read = NEWEST, 0
    while read < MOST_MESSAGES:
        page = store.messages_before(session_id, before=before, limit=PAGE)
        if not page:
            return entries, 0
        entries[:0] = [entry for message in page for entry in entries_of(message)]
        before = page[0].seq or 0
        read += len(page)
    return entries, max(before - 1, 0)


def render_recap(store: Store, session_id: str, prompt: str, *, limit: int, without: str = "") -> Rendered:
    """Render a session's recap around a prompt; `without` is the id of the prompt's own message."""
    entries, unread = recap_entries(store, session_id)
    told = [entry for entry in entries if not without or getattr(entry, "message_id", "") != without]
    return render_resume_context(told, prompt, limit=limit, unread=unread)


def recap_prompt(store: Store, head: QueuedPrompt, *, limit: int) -> str:
    """Return the text that is sent for a prompt that goes with a recap.

    A session that was made from another one begins without messages; its recap is that one's.
    """
    source = store.recap_source(head.session_id)
    return render_recap(store, source, head.content, limit=limit, without=head.message_id).text
