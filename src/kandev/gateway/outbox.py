"""What waits for one subscriber: bounded in messages and bytes, taken out a frame at a time.

The publisher never waits. A subscriber that cannot keep up loses everything that waits and is closed with 1013; it
comes back with its cursor.
"""

import asyncio
from collections import deque

OUTBOX_MESSAGES = 100_000  # a second of the fastest stream; a browser that stalls so long is behind for good
OUTBOX_BYTES = 32 * 1024 * 1024
FRAME_TARGET_BYTES = 1024 * 1024  # a larger frame would hold up the loop; one message may still be larger
TRY_AGAIN_LATER = 1013  # WebSocket close code
SERVICE_RESTART = 1012


class Outbox:
    """The queue of one subscriber. `closed_with` is its close code, once it takes nothing more."""

    def __init__(self, *, max_messages: int = OUTBOX_MESSAGES, max_bytes: int = OUTBOX_BYTES) -> None:
        self.closed_with: int | None = None
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._news = asyncio.Event()

    def push(self, message: bytes) -> None:
        """Add one message; once closed, drop it."""
        if self.closed_with is not None:
            return
        # What already waits decides, so that one large answer is always taken.
        if len(self._waiting) >= self._max_messages or self._bytes > self._max_bytes:
            self._clear()
            self.close(TRY_AGAIN_LATER)
            return
        self._waiting.append(message)
        self._bytes += len(message)
        self._news.set()

    def close(self, code: int) -> None:
        """Take nothing more; what waits is still handed out."""
        if self.closed_with is None:
            self.closed_with = code
        self._news.set()

    async def take(self) -> bytes:
        """Wait, then return all that waits as one frame of lines; b"" means closed, for ever."""
        while not self._waiting:
            if self.closed_with is not None:
                return b""
            self._news.clear()
            await self._news.wait()
        if self._bytes <= FRAME_TARGET_BYTES:
            frame = b"\n".join(self._waiting)
            self._clear()
            return frame
        return b"\n".join(self._some())

    def _some(self) -> list[bytes]:
        messages: list[bytes] = []
        size = 0
        while self._waiting and (not messages or size + len(self._waiting[0]) <= FRAME_TARGET_BYTES):
            message = self._waiting.popleft()
            size += len(message)
            messages.append(message)
        self._bytes -= size
        return messages

    def _clear(self) -> None:
        self._waiting.clear()
        self._bytes = 0
