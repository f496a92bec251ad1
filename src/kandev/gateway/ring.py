"""The last events of one session, encoded, bounded in number and in bytes."""

import time
from collections import deque
from itertools import islice


class Ring:
    """A buffer without gaps: the newest event is the last, and nothing in the middle is ever left out."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self.size = 0
        self.used_at = 0.0
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: deque[bytes] = deque()

    def append(self, data: bytes) -> int:
        """Add the newest event, drop the oldest beyond the bounds, and return by how many bytes the ring grew."""
        before = self.size
        self._events.append(data)
        self.size += len(data)
        self.used_at = time.monotonic()
        while len(self._events) > self._max_events or self.size > self._max_bytes:
            self.size -= len(self._events.popleft())
        return self.size - before

    def last(self, count: int) -> list[bytes] | None:
        """Return the newest `count` events in order, or None where some of them are gone."""
        if count > len(self._events):
            return None
        return list(islice(self._events, len(self._events) - count, None))
