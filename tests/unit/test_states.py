"""Both state machines, pair by pair: a table here names every state under every event, also where nothing changes."""

import re
from itertools import product
from pathlib import Path

import pytest

from kandev.domain.models import TERMINAL_STATES, SessionState, TaskState
from kandev.domain.states import SessionEvent, TaskEvent, advance_session, advance_task, diagram

ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"

# A row for each event, a column for each state; "-" changes nothing. WAITING is short for WAITING_FOR_INPUT.
SESSION = """
                CREATED    STARTING   RUNNING    WAITING    COMPLETED  FAILED     CANCELLED
launch          STARTING   -          -          -          -          -          -
resume          -          STARTING   STARTING   STARTING   -          -          -
ready           -          WAITING    -          -          -          -          -
prompt_sent     -          -          -          RUNNING    -          -          -
turn_ended      -          -          WAITING    -          -          -          -
agent_lost      -          WAITING    WAITING    -          -          -          -
token_rejected  -          WAITING    WAITING    -          -          -          -
start_failed    FAILED     FAILED     -          FAILED     -          -          -
start_undone    -          WAITING    -          -          -          -          -
stop            CANCELLED  CANCELLED  CANCELLED  CANCELLED  -          -          -
complete        COMPLETED  COMPLETED  COMPLETED  COMPLETED  -          COMPLETED  COMPLETED
recover         -          -          -          -          -          WAITING    WAITING
"""

TASK = """
                 CREATED      IN_PROGRESS  REVIEW       COMPLETED  FAILED       CANCELLED
launched         IN_PROGRESS  IN_PROGRESS  IN_PROGRESS  -          IN_PROGRESS  IN_PROGRESS
turn_started     IN_PROGRESS  IN_PROGRESS  IN_PROGRESS  -          IN_PROGRESS  IN_PROGRESS
session_waiting  REVIEW       REVIEW       REVIEW       -          REVIEW       REVIEW
session_failed   FAILED       FAILED       FAILED       -          -            -
session_stopped  REVIEW       REVIEW       REVIEW       -          -            -
complete         COMPLETED    COMPLETED    COMPLETED    -          COMPLETED    COMPLETED
"""


def table(text: str) -> dict[tuple[str, str], str | None]:
    """(state, event) to the next state, None where nothing changes."""
    head, *rows = re.sub(r"\bWAITING\b", "WAITING_FOR_INPUT", text).strip("\n").split("\n")
    states = head.split()
    return {
        (state, event): None if target == "-" else target
        for event, *targets in map(str.split, rows)
        for state, target in zip(states, targets, strict=True)
    }


SESSION_PAIRS = table(SESSION)
TASK_PAIRS = table(TASK)


@pytest.mark.parametrize(("state", "event"), list(product(SessionState, SessionEvent)))
def test_a_session_moves_as_its_table_says(state: SessionState, event: SessionEvent) -> None:
    """Each of the 84 pairs has one outcome; a pair that is not in the table here fails."""
    assert advance_session(state, event) == SESSION_PAIRS[state, event]


@pytest.mark.parametrize(("state", "event"), list(product(TaskState, TaskEvent)))
def test_a_task_moves_as_its_table_says(state: TaskState, event: TaskEvent) -> None:
    """Each of the 36 pairs has one outcome."""
    assert advance_task(state, event) == TASK_PAIRS[state, event]


def test_the_tables_here_name_nothing_that_does_not_exist() -> None:
    """A state or event that was taken out of the program is taken out of the tables too."""
    assert set(SESSION_PAIRS) == set(product(SessionState, SessionEvent))
    assert set(TASK_PAIRS) == set(product(TaskState, TaskEvent))


def test_completed_is_final() -> None:
    """Nothing moves a completed session or task."""
    assert {advance_session(SessionState.COMPLETED, event) for event in SessionEvent} == {None}
    assert {advance_task(TaskState.COMPLETED, event) for event in TaskEvent} == {None}


@pytest.mark.parametrize("state", sorted(TERMINAL_STATES))
def test_race_5_a_late_event_of_an_agent_changes_no_ended_session(state: SessionState) -> None:
    """Only a person (recover, complete) moves a session that has ended; a resume is refused too."""
    persons = {SessionEvent.RECOVER, SessionEvent.COMPLETE}
    assert {advance_session(state, event) for event in SessionEvent if event not in persons} == {None}


@pytest.mark.parametrize("state", [SessionState.STARTING, SessionState.RUNNING])
def test_state_1_and_2_no_session_is_stuck(state: SessionState) -> None:
    """Whatever happened to its agent, a session that starts or runs can wait for input again."""
    assert advance_session(state, SessionEvent.AGENT_LOST) is SessionState.WAITING_FOR_INPUT
    assert advance_session(state, SessionEvent.TOKEN_REJECTED) is SessionState.WAITING_FOR_INPUT


def test_state_6_no_event_of_a_resume_exists_for_a_task() -> None:
    """A task learns of launches and turns only, so that opening a page cannot move it out of review."""
    assert "resume" not in " ".join(TaskEvent)


def arrows(text: str) -> set[tuple[str, str, str]]:
    return {(old, new, event) for old, new, event in re.findall(r"^    (\w+) --> (\w+): (\w+)$", text, re.MULTILINE)}


def test_the_diagram_draws_every_move() -> None:
    """Both machines are Mermaid diagrams whose arrows are the pairs that change a state."""
    session, task = diagram().split("### Task")
    moves = {(old, new, event) for (old, event), new in SESSION_PAIRS.items() if new not in (None, old)}
    assert arrows(session) == moves
    assert arrows(task) == {(old, new, event) for (old, event), new in TASK_PAIRS.items() if new not in (None, old)}
    assert diagram().count("```mermaid\nstateDiagram-v2\n") == 2


def test_the_document_holds_the_diagram_of_the_program() -> None:
    """docs/architecture.md draws the machines as they are: print them with `python -m kandev.domain.states`."""
    assert diagram() in ARCHITECTURE.read_text()
