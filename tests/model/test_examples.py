"""What the model has found, each as an example of its own: it goes wrong where two things meet in one moment."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kandev.errors import StorageFull
from model.acts import Acts, Session
from model.database import rows
from model.world import Call, World


@pytest.fixture(params=range(3))
def acts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Acts]:
    """A world of its own, in three orders of what may happen in any."""
    with World(tmp_path / "home", seed=request.param) as world:
        yield Acts(world)


def stored(acts: Acts, column: str, number: int = 0) -> str:
    """A column of a session, or of its row in executors_running."""
    query = "SELECT * FROM task_sessions AS s JOIN executors_running AS e ON e.session_id = s.id WHERE s.id = ?"
    return str(rows(acts.world.database.connection, query, acts.sessions[number].id)[0][column])


def launched(acts: Acts, kind: str = "native", manner: str = "quick", *, start: bool = True) -> int:
    """A new session, whose creation was answered."""
    before = len(acts.sessions)
    acts.launch(kind, manner, start=start)
    acts.world.until(lambda: len(acts.sessions) > before)
    return before


def is_in(acts: Acts, state: str, number: int = 0) -> Callable[[], bool]:
    """Whether a session is in a state."""
    return lambda: (
        rows(acts.world.database.connection, "SELECT state FROM task_sessions WHERE id = ?", acts.sessions[number].id)[
            0
        ]["state"]
        == state
    )


def end(acts: Acts) -> None:
    """Everything comes to an end, and nothing was wrong on the way."""
    acts.settle()
    acts.finish()
    acts.require_lawful()


def test_crash_11_recovered_and_killed_at_once(acts: Acts) -> None:
    """The task does not stay FAILED beside a session that waits."""
    launched(acts, start=False)
    acts.next_start(0, "command missing")
    acts.resume_queue(0)
    acts.world.until(is_in(acts, "FAILED"))
    acts.settle()
    acts.recover(0, "resume")
    acts.world.until(is_in(acts, "WAITING_FOR_INPUT"))
    acts.restart(acts.world.kill)
    end(acts)


def test_prompt_8_first_prompt_is_withdrawn_while_its_agent_comes_up(acts: Acts) -> None:
    """A task of which nothing runs and nothing waits is in review."""
    launched(acts)
    acts.world.until(is_in(acts, "STARTING"))
    acts.withdraw(0)
    end(acts)


def test_prompt_7_first_prompt_is_held_as_soon_as_its_agent_is_up(acts: Acts) -> None:
    """The same for a prompt that a cancel holds."""
    launched(acts)
    acts.world.until(lambda: stored(acts, "status") == "ready")
    acts.cancel(0)
    end(acts)


def test_state_2_no_instance_can_be_made(acts: Acts) -> None:
    """The row does not stay "creating", as if something were on its way."""
    launched(acts, start=False)
    acts.next_start(0, "no instance")
    acts.resume_queue(0)
    acts.world.until(is_in(acts, "FAILED"))
    acts.settle()
    acts.require_lawful()
    assert stored(acts, "status") == "failed"
    end(acts)


def test_tok_5_an_unproven_token_that_is_put_back_is_unproven(acts: Acts) -> None:
    """No turn had ended in it, so its rejection is no loss."""
    launched(acts, manner="fail")
    acts.settle()
    acts.recover(0, "fresh_start")
    acts.settle()
    acts.recover(0, "retry_token")
    end(acts)


def test_crash_15_agentctl_goes_while_a_line_is_on_its_way(acts: Acts) -> None:
    """Whoever sends is told that nobody took it; the queue is served again (PROMPT-3)."""
    launched(acts)
    acts.settle()
    acts.freeze_agentctl(0)
    acts.prompt(0, "quick")
    acts.world.until(lambda: rows(acts.world.database.connection, "SELECT 1 FROM outbox"))
    acts.world.settle(1.0)
    acts.kill_agentctl(0)
    end(acts)


@pytest.mark.parametrize("moment", range(0, 60, 3))
def test_race_5_agent_ends_in_the_moment_in_which_it_is_ready(tmp_path: Path, moment: int) -> None:
    """Nothing is stored behind its end: no row says "ready" of an agent that is gone, and no start waits for ever."""
    with World(tmp_path / "home", seed=moment) as world:
        acts = Acts(world)
        launched(acts)
        world.until(lambda: world.machine.made)
        world.run(moment)
        acts.kill_agent(0)
        end(acts)


@pytest.mark.parametrize("moment", range(24))
def test_tok_10_fresh_start_while_the_queue_is_served(tmp_path: Path, moment: int) -> None:
    """The start that the queue asks for in between does not load the old session."""
    with World(tmp_path / "home", seed=moment) as world:
        acts = Acts(world)
        launched(acts)
        acts.settle()
        acts.prompt(0, "ask")
        acts.settle()
        acts.prompt(0, "quick")
        acts.restart(world.stop)
        acts.resume_queue(0)
        world.until(lambda: stored(acts, "status") == "ready")
        world.run(moment)
        acts.recover(0, "fresh_start")
        end(acts)


def test_race_7_stopped_and_recovered_while_its_agent_dies(acts: Acts) -> None:
    """The later wish counts: no session is CANCELLED while its agent works."""
    launched(acts, manner="die")
    acts.prompt(0, "deaf")
    acts.world.until(is_in(acts, "RUNNING"))
    acts.stop(0)
    acts.world.run(200)  # no time passes, so the stop still waits for an agent that has died by itself
    acts.recover(0, "fresh_start")
    end(acts)


@pytest.mark.parametrize("moment", range(0, 40, 2))
def test_race_3_resumed_while_it_is_being_stopped(tmp_path: Path, moment: int) -> None:
    """The resume waits for the end of the agent, reads the state again, and starts nothing."""
    with World(tmp_path / "home", seed=moment) as world:
        acts = Acts(world)
        launched(acts)
        acts.settle()
        acts.stop(0)
        world.until(lambda: world.backend.manager.all()[0].ending)
        acts.resume(0)
        world.run(moment)
        acts.resume(0)
        acts.settle()
        acts.require_lawful()
        assert stored(acts, "state") == "CANCELLED"


def test_race_10_resumed_while_its_agent_is_being_ended(acts: Acts) -> None:
    """The next process starts when the old one is proven dead: the machine never has two of one session."""
    launched(acts)
    acts.settle()
    manager = acts.world.backend.manager
    acts.world.ask(manager.stop, manager.all()[0], why="idle", grace_s=5.0)
    acts.world.run(3)
    acts.resume(0)
    acts.world.run(200)
    end(acts)


def test_race_6_cancelled_while_another_agent_makes_room(acts: Acts) -> None:
    """The end of the other agent goes on without its asker; its session can be resumed."""
    for number in range(2):
        launched(acts)
        acts.settle()
        acts.require_lawful()
        assert stored(acts, "status", number) == "ready"
    third = launched(acts)
    acts.world.until(lambda: any(execution.ending for execution in acts.world.backend.manager.all()))
    acts.cancel(third)
    acts.settle()
    acts.resume(0)
    acts.resume(1)
    end(acts)


@pytest.mark.parametrize("moment", range(12))
def test_state_3_start_is_given_up_while_a_turn_runs(tmp_path: Path, moment: int) -> None:
    """A start that comes to nothing moves no task of a session that runs: its agent is just being ended."""
    with World(tmp_path / "home", seed=moment) as world:
        acts = Acts(world)
        launched(acts)
        world.until(lambda: stored(acts, "status") == "ready")
        world.run(moment)
        acts.stop(0)
        acts.resume(0, asked=True)
        acts.stop(0)
        end(acts)


ENDS: dict[str, Callable[[World, Session], Call]] = {
    "stop": lambda world, one: world.ask(world.backend.operations.stop_session, one.task_id, one.id),
    "complete": lambda world, one: world.ask(world.backend.tasks.complete, one.task_id),
    "delete task": lambda world, one: world.ask(world.backend.deletion.delete_task, one.task_id, force=True),
    "delete session": lambda world, one: world.ask(
        world.backend.deletion.delete_session, one.task_id, one.id, force=True
    ),
}


@pytest.mark.parametrize("which", range(1, 6))
@pytest.mark.parametrize("what", ENDS)
def test_crash_13_a_promise_meets_a_full_disk(tmp_path: Path, what: str, which: int) -> None:
    """Whichever write finds no room: nothing was promised, or it is kept as soon as there is room."""
    with World(tmp_path / "home", seed=which) as world:
        acts = Acts(world)
        launched(acts)
        acts.settle()
        world.database.write = cramped(world.database.write, which)  # type: ignore[method-assign]  # a full disk
        asked = ENDS[what](world, acts.sessions[0])
        world.settle(10)
        assert asked.done
        assert isinstance(asked.error, StorageFull | None)
        query = "SELECT id FROM tasks WHERE intent <> '' UNION SELECT id FROM task_sessions WHERE intent <> ''"
        assert [row["id"] for row in rows(world.database.connection, query)] == []
        assert world.faults == []


def cramped(write: Any, which: int) -> Any:
    """The same, but the write of this number finds no room."""
    writes = itertools.count(1)

    async def cramped_write(job: Any) -> Any:
        if next(writes) == which:
            raise StorageFull("No room.")
        return await write(job)

    return cramped_write


@pytest.mark.parametrize("moment", ["STARTING", "ready"])
def test_wire_12_a_mode_that_is_set_while_the_agent_comes_up(acts: Acts, moment: str) -> None:
    """It holds from the first prompt on, however far the start was when it was asked for."""
    launched(acts, manner="slow")
    seen = {"STARTING": is_in(acts, "STARTING"), "ready": lambda: stored(acts, "agent_pid") != "0"}
    acts.world.until(seen[moment])
    acts.set_mode(0, "plan")
    acts.set_pace(0, "fast")
    acts.prompt(0, "quick")
    end(acts)
    last = acts.world.machine.received[-1]
    assert (last.mode, last.pace) == ("plan", "fast")


@pytest.mark.parametrize("end_of_task", ["complete", "delete_task"])
def test_crash_13_another_session_is_made_while_its_task_ends(acts: Acts, end_of_task: str) -> None:
    """It is refused, or ends with the others: no agent is left of a task that is over."""
    launched(acts)
    acts.settle()
    acts.another_session(0, "native", recap=False)
    getattr(acts, end_of_task)(0)
    acts.another_session(0, "native", recap=False)
    acts.world.run(15)
    acts.start(1)
    end(acts)


def test_a_session_is_deleted_while_its_start_fails(acts: Acts) -> None:
    """Nothing is stored of it, and nothing is wrong."""
    launched(acts, start=False)
    acts.next_start(0, "command missing")
    acts.start(0)
    acts.delete_session(0)
    acts.resume(0)
    end(acts)
    assert acts.laws.deleted
