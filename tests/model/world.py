"""One home, the machine beside it, and the backend that serves it now; a test lets them run, kills, and starts again.

with World(tmp_path, seed=0) as world:
session = world.launch("native", "remember apple quick")
world.settle()
world.kill()
world.start()
"""

from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, ParamSpec, Self

import structlog

from kandev.agents.base import AgentOverride
from kandev.app import Backend
from kandev.config import Config, LimitsConfig
from kandev.domain.models import Event
from kandev.errors import KandevError
from kandev.home import Home
from model.agent import KINDS
from model.database import LoopDatabase, Seen
from model.loop import SimulatedLoop
from model.machine import Machine
from model.runtime import MemoryRuntime

SETTLED_S = 3.0
"""Of virtual time: longer than what follows by itself, shorter than what waits for somebody."""
MOST_STEPS = 200_000
START_STEPS = 20_000
MOST_LIVE_AGENTS = 2

P = ParamSpec("P")


class Call:
    """Something that a client asked for. `done` once it was answered, with `error` or `result`.

    `then` is called with a good answer, as soon as it is there.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.done = False
        self.result: Any = None
        self.error: KandevError | None = None
        self.then: Callable[[Any], None] = lambda _result: None


class World:
    """A backend in its world. `faults` are what must never happen, whoever saw it."""

    def __init__(self, directory: Path, *, seed: int) -> None:
        self.random = Random(seed)
        self.faults: list[str] = []
        self.seen: list[Seen] = []
        self.published: list[Event] = []
        self.after_commit: Callable[[], None] = lambda: None
        self.home = directory
        self._config = _config(directory)
        self._config.home.prepare()
        self.machine = Machine(self._config.home.run, self.random)
        self._logs = structlog.testing.capture_logs()

    def __enter__(self) -> Self:
        self._entries = self._logs.__enter__()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._logs.__exit__(kind, error, trace)

    # ---- the backend's life

    def start(self) -> None:
        """Start a backend on the home, until its port would be open."""
        self.loop = SimulatedLoop()
        self.database = LoopDatabase.begin(self._config.home.database, self.random)
        self.database.writer.after_commit = self._committed
        self.runtime = MemoryRuntime(self.machine)
        self._recorded = 0
        self.loop.begin(self._open())
        self.calls: list[Call] = []
        self._started = False
        for _ in range(START_STEPS):
            if self._started or not (self.loop.step() or self._pass_time(self.loop.time() + SETTLED_S)):
                break
        if not self._started:
            self.faults.append("the backend did not start")

    async def _open(self) -> None:
        self.backend = Backend(self._config, self.database, runtimes=[self.runtime])
        for action in ("session.state_changed", "task.state_changed"):
            self.backend.hub.watch(action, self.published.append)
        await self.backend._start()
        self._started = True

    def kill(self) -> None:
        """Kill the backend where it stands; then the agentctls see it, and end their agents."""
        self._note_seen()
        self._note_troubles()
        self.runtime.cut = True
        self.database.kill()
        self.machine.backend_died()
        self.loop.abandon()
        self._entries.clear()

    def stop(self) -> None:
        """End the backend in order, as SIGTERM does; then it is gone."""
        stopping = self.loop.begin(self.backend._stop())
        for _ in range(MOST_STEPS):
            if stopping.done() or not self._something(self.loop.time() + 60.0):
                break
        if not stopping.done():
            self.faults.append("the backend did not stop")
        elif error := stopping.exception():
            self.faults.append(f"the backend's stop raised {error!r}")
        self.kill()

    # ---- what happens

    def ask(self, method: Callable[P, Coroutine[Any, Any, Any]], *args: P.args, **kwargs: P.kwargs) -> Call:
        """Have a client call a method of the backend; it goes on while the world runs."""
        call = Call(f"{method.__name__}{args}")
        self.calls.append(call)
        self.loop.begin(self._answer(call, lambda: method(*args, **kwargs)))
        return call

    async def _answer(self, call: Call, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            call.result = await work()
        except KandevError as error:
            call.error = error
        except Exception as error:  # noqa: BLE001 - a refusal is an answer, anything else is a fault
            if not self.runtime.cut:
                self.faults.append(f"{call.what} raised {error!r}")
        if self.runtime.cut:
            return
        call.done = True
        if call.error is None:
            call.then(call.result)

    def run(self, steps: int) -> None:
        """Let so many callbacks of the backend run, and the machine in between."""
        for _ in range(steps):
            if self.random.random() < 0.25:
                self.machine.work()
            if not self.loop.step() and not self.machine.work():
                return

    def until(self, happened: Callable[[], object]) -> None:
        """Let one thing after the other happen until `happened` says so; time passes where it must."""
        for _ in range(MOST_STEPS):
            if happened():
                return
            if not self._something(self.loop.time() + SETTLED_S):
                break
        raise AssertionError("it did not happen")

    def settle(self, seconds: float = SETTLED_S) -> None:
        """Let everything run until nothing more happens by itself within `seconds`."""
        until = self.loop.time() + seconds
        for _ in range(MOST_STEPS):
            if not self._something(until):
                break
        else:
            self.faults.append("it does not come to rest")
        self.loop.advance(until)
        while self.loop.step():
            pass
        self._note_troubles()

    def _something(self, until: float) -> bool:
        first, second = self.loop.step, self.machine.work
        if self.random.random() < 0.25:
            first, second = second, first
        return first() or second() or self._pass_time(until)

    def _pass_time(self, until: float) -> bool:
        at = self.loop.next_timer()
        if at is None or at > until:
            return False
        self.loop.advance(at)
        return True

    # ---- what was seen

    def _committed(self) -> None:
        self._note_seen()
        self.after_commit()

    def _note_seen(self) -> None:
        new = self.database.seen(self._recorded)
        if new:
            self._recorded = new[-1].n
            self.seen += new

    def _note_troubles(self) -> None:
        """What the backend logs as an error is one of ours: a broken execution, a failed task."""
        for entry in self._entries:
            if entry["log_level"] in {"error", "critical"}:
                self.faults.append(f"logged: {entry}")
        self._entries.clear()
        self.faults += [f"left to the loop: {trouble}" for trouble in self.loop.troubles]
        self.loop.troubles.clear()


def _config(directory: Path) -> Config:
    agents = {
        kind: AgentOverride(
            command=(kind,),
            native_session_resume=kind in {"native", "resuming"},
            history_context_injection=kind == "telling",
        )
        for kind in KINDS
    }
    limits = LimitsConfig(max_live_agents=MOST_LIVE_AGENTS)
    return Config(home=Home(directory), sources={}, agents=agents, limits=limits)
