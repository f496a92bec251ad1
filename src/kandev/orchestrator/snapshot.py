"""What a subscriber must know of a session at once, before it hears the events that follow."""

from collections.abc import Callable, Mapping
from typing import Any

from kandev.orchestrator.views import SessionStatus, session_view
from kandev.store.store import Store

MESSAGES = 50
NEWEST = 1 << 62


def session_snapshot(
    store: Store, session_id: str, *, status: Callable[[str, str], SessionStatus]
) -> Mapping[str, Any]:
    """Return all that a subscriber must know of a session now (contract, `session.subscribe`). Raises NotFound."""
    with store.database.moment():
        session = store.session(session_id)
        told = store.settings(session_id).agent_state
        return {
            "session": session_view(session, store.executor(session_id)),
            "status": status(session.task_id, session_id),
            "turn": store.open_turn(session_id),
            "messages": store.messages_before(session_id, before=NEWEST, limit=MESSAGES),
            "queue": store.queue(session_id),
            "permissions": store.pending_permissions(session_id),
            "mode": told.get("mode"),
            "modes": told.get("modes", []),
            "options": told.get("options", []),
            "commands": told.get("commands", []),
            "plan": told.get("plan"),
        }
