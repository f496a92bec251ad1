"""State changes inside a transaction: compare-and-set on the state that was observed, and what is published of it.

Losing is an answer: an empty list of events, and nothing changed (STATE-3).
"""

from kandev.domain.models import Event, SessionState, TaskState, now
from kandev.domain.states import SessionEvent, TaskEvent, advance_session, advance_task
from kandev.store.database import Tx

RUNS = frozenset({SessionState.STARTING, SessionState.RUNNING})
LIVES = RUNS | {SessionState.WAITING_FOR_INPUT}


def move_session(tx: Tx, session_id: str, event: SessionEvent, *, error: str = "") -> list[Event]:
    """Move a session by `event`. `error` replaces its error message; a move without one clears it."""
    row = tx.one("session_get", id=session_id)
    if row is None:
        return []
    observed = SessionState(row["state"])
    target = advance_session(observed, event)
    if target is None:
        return []
    moved = tx.one("session_move", id=session_id, state=target, observed=observed, error_message=error, now=now())
    if moved is None or target is observed:
        return []
    payload = {"old_state": observed, "new_state": target, "error_message": error}
    return [Event(action="session.state_changed", session_id=session_id, task_id=row["task_id"], payload=payload)]


def move_task(tx: Tx, task_id: str, event: TaskEvent, *, session_id: str) -> list[Event]:
    """Move a task by what happened to one of its sessions; another session that runs or lives can forbid it."""
    row = tx.one("task_get", id=task_id)
    if row is None or _forbidden(tx, task_id, event, session_id):
        return []
    observed = TaskState(row["state"])
    target = advance_task(observed, event)
    if target is None or target is observed:
        return []
    moved = tx.one("task_move", id=task_id, state=target, observed=observed, now=now())
    if moved is None:
        return []
    payload = {"task_id": task_id, "old_state": observed, "new_state": target}
    return [Event(action="task.state_changed", task_id=task_id, payload=payload)]


def _forbidden(tx: Tx, task_id: str, event: TaskEvent, session_id: str) -> bool:
    """A task waits only when no other session runs, and fails only when no other session lives (STATE-8)."""
    others = tx.all("session_states_of_task", task_id=task_id, except_id=session_id)
    states = {SessionState(row["state"]) for row in others}
    if event in {TaskEvent.SESSION_WAITING, TaskEvent.SESSION_STOPPED}:
        return bool(states & RUNS)
    return event is TaskEvent.SESSION_FAILED and bool(states & LIVES)


def hold_queue(tx: Tx, session_id: str, reason: str) -> list[Event]:
    """Hold a session's queue for `reason`, or open it with the empty text."""
    changed = tx.one("session_set_held", id=session_id, queue_held=reason)
    return [queue_event(tx, session_id, changed["task_id"]), *rest_task(tx, session_id)] if changed else []


def rest_task(tx: Tx, session_id: str) -> list[Event]:
    """Put the task of a session that waits in review, unless a prompt of its queue is about to go out.

    A launched task stays in progress until its first prompt went out; that prompt may be withdrawn or held before.
    """
    session = tx.one("session_get", id=session_id)
    if session is None or session["state"] != SessionState.WAITING_FOR_INPUT:
        return []
    if not session["queue_held"] and tx.one("queue_head", session_id=session_id) is not None:
        return []
    return move_task(tx, session["task_id"], TaskEvent.SESSION_WAITING, session_id=session_id)


def queue_event(tx: Tx, session_id: str, task_id: str) -> Event:
    """Return the notification that tells the queue as it is now."""
    row = tx.one("session_get", id=session_id)
    queue = [
        {"message_id": entry["message_id"], "content": entry["content"], "created_at": entry["created_at"]}
        for entry in tx.all("queue_list", session_id=session_id)
    ]
    payload = {"queue": queue, "held": row["queue_held"] if row else ""}
    return Event(action="message.queue.changed", session_id=session_id, task_id=task_id, payload=payload)
