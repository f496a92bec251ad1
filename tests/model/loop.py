"""An event loop that a test drives: one callback at a time, and time passes only when the test lets it.

    loop = SimulatedLoop()
    task = loop.begin(work())
    while loop.step():
        pass
    loop.advance(3.0)

Nothing in it waits, so a minute takes no time, and the same seed gives the same order.
"""

import asyncio
import contextvars
import heapq
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Due(NamedTuple):
    handle: asyncio.Handle
    callback: Callable[..., Any]
    args: tuple[Any, ...]
    context: contextvars.Context

    def run(self) -> None:
        if not self.handle.cancelled():
            self.context.run(self.callback, *self.args)


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order of asyncio. `troubles` are what asyncio would have logged."""

    def __init__(self) -> None:
        super().__init__()
        self.troubles: list[dict[str, Any]] = []
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._now = 0.0
        self._waiting: deque[_Due] = deque()
        self._timers: list[tuple[float, int, _Due]] = []
        self._numbers = itertools.count()

    # What a test does

    def begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Make a task; it runs with the next steps."""
        return self.create_task(work)

    @property
    def idle(self) -> bool:
        """True when no callback waits for its turn."""
        return not self._waiting

    def step(self) -> bool:
        """Run the next callback; False when there is none."""
        if not self._waiting:
            return False
        self.inside(self._waiting.popleft().run)
        return True

    def inside(self, call: Callable[[], T]) -> T:
        """Call something that asks for the loop that runs."""
        asyncio._set_running_loop(self)
        try:
            return call()
        finally:
            asyncio._set_running_loop(None)

    def next_timer(self) -> float | None:
        """Return when the next timer is due."""
        while self._timers and self._timers[0][2].handle.cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def advance(self, until: float) -> None:
        """Let time pass; the callbacks of timers that are due become ready, in their order."""
        while (at := self.next_timer()) is not None and at <= until:
            self._now = max(self._now, at)
            self._waiting.append(heapq.heappop(self._timers)[2])
        self._now = max(self._now, until)

    def abandon(self) -> None:
        """Forget everything that waits, as a killed process does: no task of this loop runs on.

        Tasks are ended, so that nothing is left for the garbage collector to complain of.
        """
        for task in list(self._tasks):
            task.cancel()
        for _ in range(10_000):
            if not self.step():
                break
        self._waiting.clear()
        self._timers.clear()
        self.close()

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._waiting.append(_Due(handle, callback, args, context or contextvars.copy_context()))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        due = _Due(handle, callback, args, context or contextvars.copy_context())
        heapq.heappush(self._timers, (when, next(self._numbers), due))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is skipped when its time comes."""

    def create_task(self, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        task = super().create_task(coro, **options)
        self._tasks.add(task)
        return task

    def run_in_executor(self, _executor: object, func: Callable[[*Ts], T], *args: *Ts) -> "asyncio.Future[T]":
        """Run it now: what a thread does is done before anybody looks."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whatever it raises is its caller's
            done.set_exception(error)
        return done

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.troubles.append(context)
