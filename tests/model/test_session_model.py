"""Anything in any order, against the real backend: nothing lost, nothing twice, nothing stuck.

Hypothesis chooses what people ask for, what agents do, when time passes and when the backend is killed; `laws` says
what holds of every committed state, after every step, and at rest. The seed is fixed; `MODEL_EXAMPLES=1000` and
`MODEL_SEED=random` make a long run with fresh ones.
"""

import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kandev.domain import models
from model.acts import Acts
from model.agent import KINDS, MANNERS, MODES, PACES, RESTORES
from model.runtime import START_FAULTS
from model.world import World

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "100"))
STEPS = int(os.environ.get("MODEL_STEPS", "40"))
FRESH = os.environ.get("MODEL_SEED") == "random"
RECOVERIES = ("resume", "fresh_start", "recap", "retry_token")
MEMORY = "/dev/shm"  # the files are real, their disk need not be

which = st.integers(0, 3)
steps = st.sampled_from([0, 1, 3, 7, 15, 40, 100])


class SessionModel(RuleBasedStateMachine):
    """Four sessions at most, of one task or of several, of which two may have an agent at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(dir=MEMORY if os.path.isdir(MEMORY) else None)

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        models._random.seed(seed)  # for this example alone: other tests want ids that differ
        self.acts = Acts(World(Path(self.directory), seed=seed).__enter__())

    def teardown(self) -> None:
        try:
            if hasattr(self, "acts"):
                self._end()
        finally:
            models._random.seed()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self) -> None:
        try:
            if not self.acts.world.faults:
                self.acts.finish()
            self.acts.require_lawful()
        finally:
            self.acts.world.__exit__(None, None, None)

    @invariant()
    def lawful(self) -> None:
        if hasattr(self, "acts"):
            self.acts.laws.look()
            self.acts.require_lawful()

    # ---- people

    @rule(kind=st.sampled_from(KINDS), manner=st.sampled_from(MANNERS), start=st.booleans(), n=steps)
    def launch(self, *, kind: str, manner: str, start: bool, n: int) -> None:
        self.acts.launch(kind, manner, start=start)
        self.acts.world.run(n)

    @rule(i=which, manner=st.sampled_from(MANNERS), n=steps)
    def prompt(self, *, i: int, manner: str, n: int) -> None:
        self.acts.prompt(i, manner)
        self.acts.world.run(n)

    @rule(i=which, n=steps)
    def repeat_prompt(self, *, i: int, n: int) -> None:
        self.acts.repeat_prompt(i)
        self.acts.world.run(n)

    @rule(i=which, n=steps)
    def cancel(self, *, i: int, n: int) -> None:
        self.acts.cancel(i)
        self.acts.world.run(n)

    @rule(i=which, n=steps)
    def stop(self, *, i: int, n: int) -> None:
        self.acts.stop(i)
        self.acts.world.run(n)

    @rule(i=which, times=st.integers(1, 3), asked=st.booleans(), n=steps)
    def resume(self, *, i: int, times: int, asked: bool, n: int) -> None:
        for _ in range(times):
            self.acts.resume(i, asked=asked)
        self.acts.world.run(n)

    @rule(i=which, action=st.sampled_from(RECOVERIES), n=steps)
    def recover(self, *, i: int, action: str, n: int) -> None:
        self.acts.recover(i, action)
        self.acts.world.run(n)

    @rule(i=which, n=steps)
    def withdraw(self, *, i: int, n: int) -> None:
        self.acts.withdraw(i)
        self.acts.world.run(n)

    @rule(i=which, n=steps)
    def resume_queue(self, *, i: int, n: int) -> None:
        self.acts.resume_queue(i)
        self.acts.world.run(n)

    @rule(i=which, cancelled=st.booleans(), n=steps)
    def answer_permission(self, *, i: int, cancelled: bool, n: int) -> None:
        self.acts.answer_permissions(i, cancelled=cancelled)
        self.acts.world.run(n)

    @rule(i=which, kind=st.sampled_from(KINDS), recap=st.booleans(), n=steps)
    def another_session(self, *, i: int, kind: str, recap: bool, n: int) -> None:
        self.acts.another_session(i, kind, recap=recap)
        self.acts.world.run(n)

    @rule(i=which, n=steps)
    def start(self, *, i: int, n: int) -> None:
        self.acts.start(i)
        self.acts.world.run(n)

    @rule(i=which, n=steps)
    def delete_session(self, *, i: int, n: int) -> None:
        self.acts.delete_session(i)
        self.acts.world.run(n)

    @rule(i=which, n=steps)
    def delete_task(self, *, i: int, n: int) -> None:
        self.acts.delete_task(i)
        self.acts.world.run(n)

    @rule(i=which, mode=st.sampled_from(MODES), n=steps)
    def set_mode(self, *, i: int, mode: str, n: int) -> None:
        self.acts.set_mode(i, mode)
        self.acts.world.run(n)

    @rule(i=which, pace=st.sampled_from(PACES), n=steps)
    def set_pace(self, *, i: int, pace: str, n: int) -> None:
        self.acts.set_pace(i, pace)
        self.acts.world.run(n)

    @rule(i=which, n=steps)
    def complete(self, *, i: int, n: int) -> None:
        self.acts.complete(i)
        self.acts.world.run(n)

    # ---- agents

    @rule(i=which)
    def agent_finishes(self, *, i: int) -> None:
        self.acts.let_finish(i)

    @rule(i=which)
    def agent_dies(self, *, i: int) -> None:
        self.acts.kill_agent(i)

    @rule(i=which)
    def agentctl_dies(self, *, i: int) -> None:
        self.acts.kill_agentctl(i)

    @rule(i=which)
    def agentctl_freezes(self, *, i: int) -> None:
        self.acts.freeze_agentctl(i)

    @rule(i=which, how=st.sampled_from(RESTORES))
    def next_restore(self, *, i: int, how: str) -> None:
        self.acts.next_restore(i, how)

    @rule(i=which, how=st.sampled_from(START_FAULTS))
    def next_start(self, *, i: int, how: str) -> None:
        self.acts.next_start(i, how)

    @rule(i=which)
    def late_events(self, *, i: int) -> None:
        self.acts.late_events(i)

    # ---- time, and the backend

    @rule(n=steps)
    def run(self, *, n: int) -> None:
        self.acts.world.run(n)

    @rule()
    def settle(self) -> None:
        self.acts.settle()

    @rule(seconds=st.sampled_from([12.0, 100.0, 130.0]))
    def time_passes(self, *, seconds: float) -> None:
        self.acts.settle(seconds)

    @rule(n=steps)
    def kill_backend(self, *, n: int) -> None:
        self.acts.world.run(n)
        self.acts.restart(self.acts.world.kill)

    @rule(n=steps)
    def stop_backend(self, *, n: int) -> None:
        self.acts.world.run(n)
        self.acts.restart(self.acts.world.stop)


SessionModel.TestCase.settings = hypothesis.settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    derandomize=not FRESH,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
TestSessionModel = SessionModel.TestCase
