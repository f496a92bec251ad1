"""Recording: closed messages become entries of the history file, in order, after their commit.

Specification, "Recording". A backend that is killed in between leaves a gap; `complete_history` fills it from the
messages when the file is needed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from kandev.agentctl.failpoints import failpoint
from kandev.domain.history import AgentMessage, Entry, ToolCall, ToolResult, UserMessage
from kandev.domain.models import Message
from kandev.errors import KandevError
from kandev.lifecycle.batch import TOOL_DONE
from kandev.lifecycle.session_history import SessionHistoryManager
from kandev.protocols.acp import tool_output
from kandev.store.store import Store

log = structlog.get_logger(__name__)

COMPLETED_MESSAGES = 2000
PAGE = 200


def entries_of(message: Message) -> list[Entry]:
    """Return what the history says of a message: nothing for thinking, plans, our own notices, and unfinished text."""
    if message.metadata.get("streaming"):
        return []  # recorded once, when it closes; its agent may live, and a backend attach to it
    common: dict[str, Any] = {"message_id": message.id, "time": message.created_at}
    match message.author_type, message.type:
        case "user", "message":
            return [UserMessage(content=message.content, **common)]
        case "agent", "message":
            return [AgentMessage(content=message.content, **common)]
        case "agent", "tool_call":
            call: Entry = ToolCall(name=message.content, **common)
            if message.metadata.get("status") not in TOOL_DONE:
                return [call]
            return [call, ToolResult(name=message.content, content=_result_text(message.metadata), **common)]
    return []


def _result_text(metadata: Mapping[str, Any]) -> str:
    call = metadata.get("tool_call")
    if not isinstance(call, Mapping):
        return ""
    return tool_output(call)


class HistoryRecorder:
    """Appends entries for all sessions, one after the other, without keeping the commit waiting."""

    def __init__(self, history: SessionHistoryManager, store: Store) -> None:
        self._history = history
        self._store = store
        self._waiting: asyncio.Queue[tuple[str, list[Entry]]] = asyncio.Queue()

    def record(self, session_id: str, messages: Sequence[Message]) -> None:
        """Take messages of one session whose commit is done."""
        entries = [entry for message in messages for entry in entries_of(message)]
        if entries:
            self._waiting.put_nowait((session_id, entries))

    async def run(self) -> None:
        """Append for as long as the backend lives."""
        while True:
            session_id, entries = await self._waiting.get()
            try:
                for entry in entries:
                    failpoint("history.before_append")
                    await self._history.append(session_id, entry)
                    failpoint("history.after_append")
            except KandevError as error:
                # The messages are in the database; the file is completed from them when it is needed.
                log.warning("history.not_written", session_id=session_id, error=error.message)
            finally:
                self._waiting.task_done()

    async def settle(self) -> None:
        """Wait until everything that was taken is in its file."""
        await self._waiting.join()

    async def complete_history(self, session_id: str) -> None:
        """Bring the file up to the newest messages (CRASH-8), before it decides or tells anything."""
        await self.settle()
        messages: list[Message] = []
        before = 1 << 62
        while len(messages) < COMPLETED_MESSAGES:
            page = self._store.messages_before(session_id, before=before, limit=PAGE)
            if not page:
                break
            messages[:0] = page
            before = page[0].seq or 0
        expected = [entry for message in messages for entry in entries_of(message)]
        if expected:
            failpoint("history.before_complete")
            await self._history.complete(session_id, expected)
            failpoint("history.after_complete")
