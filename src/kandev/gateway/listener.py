"""A subscriber inside this process: the events of one session as an async iterator."""

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec

from kandev.errors import Unavailable
from kandev.gateway.outbox import TRY_AGAIN_LATER, Outbox

_decode = msgspec.json.Decoder().decode


class Listener:
    """Yields notifications ({type, action, payload, timestamp}) as a client would get them, with the same bounds.

    Ends when it is closed; raises Unavailable (reason `too_slow`) after its reader fell so far behind that events
    were lost.
    """

    def __init__(self, outbox: Outbox, unsubscribe: Callable[[], None]) -> None:
        self._outbox = outbox
        self._unsubscribe = unsubscribe
        self._ready: deque[bytes] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, Any]:
        if not self._ready:
            frame = await self._outbox.take()
            if not frame:
                await self.aclose()
                self._raise_end()
            self._ready.extend(frame.split(b"\n"))
        event: dict[str, Any] = _decode(self._ready.popleft())
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening. What was read already is still yielded; a second call does nothing."""
        self._unsubscribe()
        self._outbox.close(1000)

    def _raise_end(self) -> None:
        if self._outbox.closed_with == TRY_AGAIN_LATER:
            raise Unavailable(
                "This listener did not keep up, and events were lost. Listen again.", reason="too_slow"
            ) from None
        raise StopAsyncIteration
