"""The store on a real file: pages, places, queues, parts of messages, and every compare-and-set."""

import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kandev.domain.models import (
    Message,
    MessageId,
    ResumeOutcome,
    RowStatus,
    SessionId,
    SessionState,
    TurnState,
    new_id,
    new_message_id,
    now,
)
from kandev.domain.states import SessionEvent, TaskEvent
from kandev.errors import NotFound
from kandev.lifecycle.effects import ExecutionRef, SessionStatusEvent
from kandev.orchestrator.event_handlers import (
    handle_session_status_event,
    put_back,
    set_token_aside,
    store_resume_token,
)
from kandev.orchestrator.messages import MessageService
from kandev.orchestrator.outcomes import outcome_args
from kandev.orchestrator.transitions import hold_queue, move_session, move_task
from kandev.store.rows import message_args
from kandev.store.sqlite import SqliteDatabase
from kandev.store.store import Store
from stored import StoredSession, stored


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    """One database for the module; each test has a session of its own in it."""
    with stored(tmp_path_factory.mktemp("store")) as opened:
        yield opened


@pytest.fixture
async def session(database: SqliteDatabase) -> StoredSession:
    return await StoredSession.create(database)


async def run(database: SqliteDatabase, statement: str, **args: Any) -> int:
    return await database.write(lambda tx: tx.run(statement, **args))


async def one(database: SqliteDatabase, statement: str, **args: Any) -> sqlite3.Row | None:
    """The row that a compare-and-set gives to its winner."""
    return await database.write(lambda tx: tx.one(statement, **args))


async def add_message(session: StoredSession, content: str, **fields: Any) -> Message:
    """A stored message of the agent at the next place."""
    message = Message(
        id=new_message_id(),
        session_id=SessionId(session.ref.session_id),
        seq=session.store.next_seq(session.ref.session_id),
        author_type="agent",
        type="message",
        content=content,
        created_at=now(),
        updated_at=now(),
    )
    message = msgspec.structs.replace(message, **fields)
    await run(session.database, "message_insert", **message_args(message))
    return message


# ---- places and pages of messages


async def test_places_are_counted_for_each_session(database: SqliteDatabase) -> None:
    """From 1, without asking the database each time."""
    first, second = await StoredSession.create(database), await StoredSession.create(database)
    store = Store(database)
    assert [store.next_seq(first.ref.session_id) for _ in range(3)] == [1, 2, 3]
    assert store.next_seq(second.ref.session_id) == 1


async def test_places_go_on_after_a_restart(session: StoredSession) -> None:
    """Behind the last one that is stored; one that was given out and never stored is given again."""
    for text in "abc":
        await add_message(session, text)
    session.store.next_seq(session.ref.session_id)
    assert Store(session.database).next_seq(session.ref.session_id) == 4


async def test_a_forgotten_session_is_counted_anew(session: StoredSession) -> None:
    """A deleted session leaves nothing in memory."""
    assert session.store.next_seq(session.ref.session_id) == 1
    session.store.forget_session(session.ref.session_id)
    assert session.store.next_seq(session.ref.session_id) == 1


async def test_hist_4_pages_come_newest_first_and_ascend(session: StoredSession) -> None:
    """A page holds those nearest to the cursor; the cursor itself is not in it; ends are empty."""
    for n in range(1, 8):
        await add_message(session, str(n))
    store, session_id = session.store, session.ref.session_id

    def before(place: int) -> list[str]:
        return [m.content for m in store.messages_before(session_id, before=place, limit=3)]

    def after(place: int) -> list[str]:
        return [m.content for m in store.messages_after(session_id, after=place, limit=3)]

    assert (before(1 << 62), before(5), before(2), before(1)) == (["5", "6", "7"], ["2", "3", "4"], ["1"], [])
    assert (after(0), after(3), after(6), after(7)) == (["1", "2", "3"], ["4", "5", "6"], ["7"], [])


async def test_prompt_8_a_queued_prompt_is_on_no_page(session: StoredSession) -> None:
    """It has no place yet."""
    await add_message(session, "placed")
    await add_message(session, "queued", seq=None)
    store, session_id = session.store, session.ref.session_id
    assert [m.content for m in store.messages_after(session_id, after=0, limit=9)] == ["placed"]
    assert [m.content for m in store.messages_before(session_id, before=99, limit=9)] == ["placed"]


async def test_a_place_is_taken_once(session: StoredSession) -> None:
    """The database would rather fail than show two messages at one place."""
    await add_message(session, "first", seq=1)
    with pytest.raises(sqlite3.IntegrityError):
        await add_message(session, "second", seq=1)


async def test_prompt_2_a_clients_own_id_finds_its_message(session: StoredSession) -> None:
    """In its session only, and once."""
    message = await add_message(session, "mine", client_message_id="c-1")
    other = await StoredSession.create(session.database)
    assert session.store.message_by_client(session.ref.session_id, "c-1") == message
    assert session.store.message_by_client(other.ref.session_id, "c-1") is None
    await add_message(other, "another's", client_message_id="c-1")
    with pytest.raises(sqlite3.IntegrityError):
        await add_message(session, "again", client_message_id="c-1")


async def test_streamed_parts_are_joined_in_the_order_of_their_places(session: StoredSession) -> None:
    """By number, so that 9 comes before 10; behind what the row itself holds."""
    message = await add_message(session, "0:", metadata={"streaming": True})
    for position in (10, 9, 100, 2):
        await run(
            session.database, "message_part_insert", message_id=message.id, position=position, content=f"[{position}]"
        )
    whole = "0:[2][9][10][100]"
    assert session.store.message(message.id).content == whole
    assert session.messages()[0].content == whole
    folded = await one(session.database, "message_fold", id=message.id, now=now())
    assert folded is not None
    assert (folded["content"], folded["metadata"]) == (whole, "{}")
    await run(session.database, "message_parts_delete", message_id=message.id)
    assert session.store.message(message.id).content == whole


async def test_a_part_has_its_place_once(session: StoredSession) -> None:
    """The same text cannot be stored twice by a mistake."""
    message = await add_message(session, "")
    part = {"message_id": message.id, "position": 0, "content": "Hi"}
    await run(session.database, "message_part_insert", **part)
    with pytest.raises(sqlite3.IntegrityError):
        await run(session.database, "message_part_insert", **part)


async def test_what_is_not_there_is_not_found(session: StoredSession) -> None:
    """With the kind and the id in words; a row or a turn that may be missing is None."""
    store = session.store
    for read in (store.task, store.session, store.message, store.turn, store.permission, store.settings):
        with pytest.raises(NotFound, match="nowhere"):
            read("nowhere")
    assert store.executor("nowhere") is None
    assert (store.open_turn("nowhere"), store.last_turn("nowhere"), store.queue_head("nowhere")) == (None, None, None)
    assert not store.any_turn("nowhere")


async def test_a_session_of_another_task_is_not_found(session: StoredSession) -> None:
    """Ids are not guessed together (SEC-2)."""
    assert session.store.session(session.ref.session_id, task_id=session.ref.task_id).id == session.ref.session_id
    with pytest.raises(NotFound):
        session.store.session(session.ref.session_id, task_id=new_id())


# ---- tasks, sessions, prefixes


async def add_task(database: SqliteDatabase, task_id: str, created_at: str, **fields: Any) -> None:
    row: dict[str, Any] = {
        "title": "A task",
        "description": "",
        "state": "REVIEW",
        "client_task_id": None,
        "intent": "",
    }
    row |= {"created_at": created_at, "updated_at": created_at, **fields}
    await run(database, "task_insert", id=task_id, **row)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[SqliteDatabase]:
    """A database of a test's own."""
    with stored(tmp_path) as opened:
        yield opened


async def test_tasks_are_paged_newest_first(empty: SqliteDatabase) -> None:
    """Two of the same millisecond are told apart by their ids, so that no page repeats or leaves out one."""
    times = ["2026-01-01", "2026-01-02", "2026-01-02", "2026-01-03"]
    for task_id, created_at in zip("abcd", times, strict=True):
        await add_task(empty, task_id, created_at, state="REVIEW" if task_id != "b" else "FAILED")
    store = Store(empty)
    pages: list[list[str]] = []
    before = ("", "")
    while page := store.tasks(state="", before=before, limit=2):
        pages.append([task.id for task in page])
        before = (page[-1].created_at, page[-1].id)
    assert pages == [["d", "c"], ["b", "a"]]
    assert [task.id for task in store.tasks(state="FAILED", before=("", ""), limit=9)] == ["b"]


async def test_crash_1_a_clients_own_id_finds_its_task(database: SqliteDatabase) -> None:
    """And cannot be used for two."""
    await add_task(database, new_id(), now(), client_task_id="c-task")
    assert Store(database).task_by_client("c-task") is not None
    assert Store(database).task_by_client("another") is None
    with pytest.raises(sqlite3.IntegrityError):
        await add_task(database, new_id(), now(), client_task_id="c-task")


async def test_crash_13_intentions_are_found_again(session: StoredSession) -> None:
    """A stop or delete that was promised, of a session and of a task."""
    await run(session.database, "session_set_intent", id=session.ref.session_id, intent="stop", now=now())
    await run(session.database, "task_set_intent", id=session.ref.task_id, intent="delete", now=now())
    assert session.ref.session_id in [row["id"] for row in session.database.all("sessions_with_intent")]
    assert session.ref.task_id in [task.id for task in session.store.tasks_with_intent()]


async def test_ids_are_found_by_their_beginning(database: SqliteDatabase) -> None:
    """Exactly those that begin so; an id itself is a beginning too. No id of the fixture begins with an x."""
    for task_id in ("xabc00", "xabc01", "xabcf", "xabd0", "xab"):
        await add_task(database, task_id, now())

    def found(prefix: str) -> list[str]:
        return [row["id"] for row in database.all("ids_like_task", prefix=prefix)]

    assert found("xabc") == ["xabc00", "xabc01", "xabcf"]
    assert found("xabc01") == ["xabc01"]
    assert found("xabce") == []
    assert found("xab") == ["xab", "xabc00", "xabc01", "xabcf", "xabd0"]


async def test_models_come_back_as_they_were(session: StoredSession) -> None:
    """JSON columns as values, flags as booleans, states as their kinds."""
    await run(session.database, "session_set_interrupted", id=session.ref.session_id, interrupted=1)
    await run(session.database, "session_set_failures", id=session.ref.session_id, failures='["a"]', parked_reason="p")
    read = session.store.session(session.ref.session_id)
    assert (read.interrupted, read.failures, read.recap_pending) == (True, ["a"], False)
    assert read.state is SessionState.WAITING_FOR_INPUT
    assert session.row.status is RowStatus.CREATING


async def test_a_deleted_session_leaves_nothing(session: StoredSession) -> None:
    """Messages, their parts, turns, queue, permissions, outbox and row go with it."""
    message = await add_message(session, "")
    await run(session.database, "message_part_insert", message_id=message.id, position=0, content="Hi")
    await session.claim()
    await run(session.database, "session_delete", id=session.ref.session_id)
    connection = session.database._connection
    for table in ("messages", "turns", "queued_prompts", "executors_running", "outbox", "resumes"):
        query = f"SELECT count(*) FROM {table} WHERE session_id = ?"
        assert connection.execute(query, (session.ref.session_id,)).fetchone()[0] == 0, table
    query = "SELECT count(*) FROM message_parts WHERE message_id = ?"
    assert connection.execute(query, (message.id,)).fetchone()[0] == 0


async def test_resumes_come_newest_first(session: StoredSession) -> None:
    """With what each stage took."""
    for n in range(3):
        outcome = ResumeOutcome(
            id=new_id(),
            session_id=SessionId(session.ref.session_id),
            agent_execution_id="e",
            started_at=f"2026-01-0{n + 1}",
            how="native",
            stages={"ready": n},
        )
        await run(session.database, "resume_insert", **outcome_args(outcome))
    assert [resume.stages for resume in session.store.resumes(session.ref.session_id, limit=2)] == [
        {"ready": 2},
        {"ready": 1},
    ]


# ---- the queue


async def queue_of(session: StoredSession, *texts: str) -> list[MessageId]:
    service = MessageService(session.store, kick=lambda _session_id: None, publish=lambda _events: None)
    return [(await service.add(session.ref.task_id, session.ref.session_id, text)).id for text in texts]


def queued(session: StoredSession) -> list[str]:
    return [prompt.content for prompt in session.store.queue(session.ref.session_id)]


async def test_prompt_4_a_turn_that_was_unknown_is_put_back(session: StoredSession) -> None:
    """The engine was away, and then it turns out that the prompt reached nobody: it is queued, and no turn is left."""
    turn = await session.claim("one")
    doubt = {"session_id": session.ref.session_id, "state": TurnState.UNKNOWN, "observed": TurnState.OPEN}
    await session.database.write(lambda tx: tx.run("turn_doubt", **doubt))
    await session.database.write(partial(put_back, ref=session.ref, turn=turn))
    assert queued(session) == ["one"]
    assert not session.store.any_turn(session.ref.session_id)


async def test_prompt_3_a_queue_keeps_its_order(session: StoredSession) -> None:
    """First come, first sent; the head is the next."""
    await queue_of(session, "one", "two", "three")
    assert queued(session) == ["one", "two", "three"]
    head = session.store.queue_head(session.ref.session_id)
    assert head is not None
    assert head.content == "one"


async def test_prompt_4_what_is_put_back_is_first_again(session: StoredSession) -> None:
    """Also twice, also before others that were put back, and it has no place any more."""
    await queue_of(session, "two", "three")
    for text in ("one", "zero"):
        turn = await session.claim(text)
        await session.database.write(partial(put_back, ref=session.ref, turn=turn))
        assert session.store.message(turn.message_id).seq is None
        assert not session.store.any_turn(session.ref.session_id)
        await session.database.write(lambda tx: move_session(tx, session.ref.session_id, SessionEvent.TURN_ENDED))
    assert queued(session) == ["zero", "one", "two", "three"]


async def test_a_prompt_is_taken_once(session: StoredSession) -> None:
    """The second who wants it gets nothing; and nobody of another session does."""
    (message_id,) = await queue_of(session, "one")
    taken = [
        await one(session.database, "queue_take", message_id=message_id, session_id=wanted)
        for wanted in ("another", session.ref.session_id, session.ref.session_id)
    ]
    assert [row is not None for row in taken] == [False, True, False]


async def test_queues_that_may_be_served_are_found(database: SqliteDatabase) -> None:
    """Those with a prompt, not held, of a session that has not ended."""
    sessions = [await StoredSession.create(database) for _ in range(4)]
    empty, held, ended, ready = sessions
    for each in (held, ended, ready):
        await queue_of(each, "one")
    await database.write(lambda tx: hold_queue(tx, held.ref.session_id, "cancelled"))
    await database.write(lambda tx: move_session(tx, ended.ref.session_id, SessionEvent.STOP))
    served = {row["session_id"] for row in database.all("queues_open")}
    assert served & {each.ref.session_id for each in sessions} == {ready.ref.session_id}
    assert empty.store.queue(empty.ref.session_id) == []


# ---- turns


async def test_a_session_has_one_open_turn(session: StoredSession) -> None:
    """A second prompt cannot be sent while one is under way."""
    first = await session.claim()
    assert session.store.open_turn(session.ref.session_id) == first
    with pytest.raises(sqlite3.IntegrityError):
        await session.claim()


async def test_a_turn_ends_once(session: StoredSession) -> None:
    """The first end stands (STATE-7); one whose instance may live can still end."""
    turn = await session.claim()

    end = {"id": turn.id, "stop_reason": "", "error": "", "usage": "{}", "now": now()}
    ends = [
        await one(session.database, "turn_end", state=state, **end) is not None
        for state in ("unknown", "completed", "failed")
    ]
    assert ends == [True, True, False]
    assert session.store.turn(turn.id).state == "completed"
    assert session.store.open_turn(session.ref.session_id) is None
    assert session.store.last_turn(session.ref.session_id) == session.store.turn(turn.id)


# ---- states


async def test_state_3_only_the_winner_moves_a_session(session: StoredSession) -> None:
    """A second move from the state that was observed changes nothing and publishes nothing."""
    moved = [
        await session.database.write(lambda tx: move_session(tx, session.ref.session_id, SessionEvent.PROMPT_SENT))
        for _ in range(2)
    ]
    assert [[event.payload["new_state"] for event in events] for events in moved] == [["RUNNING"], []]
    args = {"id": session.ref.session_id, "state": "FAILED", "error_message": "", "now": now()}
    lost = await one(session.database, "session_move", observed="WAITING_FOR_INPUT", **args)
    assert (lost, session.state) == (None, "RUNNING")


async def another_session(session: StoredSession, state: str) -> None:
    """The task has a second session in this state."""
    connection = session.database._connection
    await session.database.write(
        lambda _tx: connection.execute(
            "INSERT INTO task_sessions (id, task_id, agent, agent_config, runtime, state, created_at, updated_at)"
            " VALUES (?, ?, 'fake', '{}', 'standalone', ?, '', '')",
            (new_id(), session.ref.task_id, state),
        )
    )


MOVES = [
    (TaskEvent.SESSION_FAILED, "WAITING_FOR_INPUT", "REVIEW"),
    (TaskEvent.SESSION_FAILED, "RUNNING", "REVIEW"),
    (TaskEvent.SESSION_FAILED, "FAILED", "FAILED"),
    (TaskEvent.SESSION_FAILED, "CREATED", "FAILED"),
]


@pytest.mark.parametrize(("event", "other", "expected"), MOVES)
async def test_state_8_a_task_fails_only_when_no_other_session_lives(
    session: StoredSession, event: TaskEvent, other: str, expected: str
) -> None:
    """A second attempt that fails does not fail the first."""
    await another_session(session, other)
    await session.database.write(
        lambda tx: move_task(tx, session.ref.task_id, event, session_id=session.ref.session_id)
    )
    assert session.task_state == expected


@pytest.mark.parametrize(("other", "expected"), [("RUNNING", "IN_PROGRESS"), ("WAITING_FOR_INPUT", "REVIEW")])
async def test_a_task_is_in_review_only_when_no_session_runs(session: StoredSession, other: str, expected: str) -> None:
    """The turn of one session may end while another goes on."""
    ref = session.ref
    await another_session(session, other)
    await session.database.write(
        lambda tx: move_task(tx, ref.task_id, TaskEvent.TURN_STARTED, session_id=ref.session_id)
    )
    await session.database.write(
        lambda tx: move_task(tx, ref.task_id, TaskEvent.SESSION_WAITING, session_id=ref.session_id)
    )
    assert session.task_state == expected


async def test_race_1_one_start_wins_the_row(session: StoredSession) -> None:
    """Two that saw the same execution: the second changes nothing."""
    seen = {"session_id": session.ref.session_id, "observed_execution": session.ref.execution_id}
    won = [
        await one(session.database, "executor_begin", agent_execution_id=name, instance_id="i", now=now(), **seen)
        is not None
        for name in ("one", "two")
    ]
    assert won == [True, False]
    assert session.row.agent_execution_id == "one"


# ---- the token


async def keep(session: StoredSession, token: str, ref: ExecutionRef | None = None, **how: Any) -> None:
    await session.database.write(lambda tx: store_resume_token(tx, ref or session.ref, token, **how))


async def test_tok_3_an_older_execution_never_overwrites_the_token(session: StoredSession) -> None:
    """Neither by our own check nor by the statement."""
    old = session.ref
    session.ref = await session.replace_execution()
    await keep(session, "new")
    await keep(session, "late", old, proven=True, last_message_uuid="late")
    lost = await one(
        session.database,
        "executor_set_token",
        session_id=old.session_id,
        agent_execution_id=old.execution_id,
        resume_token="late",
        last_message_uuid="",
        metadata="{}",
        now=now(),
    )
    assert lost is None
    assert (session.row.resume_token, session.row.last_message_uuid) == ("new", "")
    assert session.row.metadata == {"token_proven": False}


async def test_tok_5_a_turn_proves_its_token_and_no_other(session: StoredSession) -> None:
    """Another event for the same token leaves the proof; a new token has none."""
    proofs = []
    for token, proven in (("one", None), ("one", True), ("one", None), ("two", None)):
        await keep(session, token, proven=proven)
        proofs.append(session.row.metadata["token_proven"])
    assert proofs == [False, True, True, False]


async def test_tok_6_the_last_message_uuid_survives_a_write_without_one(session: StoredSession) -> None:
    """A new one replaces it."""
    await keep(session, "one", last_message_uuid="u1")
    await keep(session, "one", proven=True)
    assert session.row.last_message_uuid == "u1"
    await keep(session, "one", last_message_uuid="u2")
    assert session.row.last_message_uuid == "u2"


async def test_no_token_is_never_a_token(session: StoredSession) -> None:
    """An answer without an id leaves what is there."""
    await keep(session, "one")
    await keep(session, "")
    assert session.row.resume_token == "one"


async def test_tok_1_a_token_is_set_aside_and_not_destroyed(session: StoredSession) -> None:
    """It can be tried again until a turn ended in the new session; then it is gone for good."""
    await keep(session, "one", proven=True)
    await session.database.write(lambda tx: set_token_aside(tx, session.ref.session_id))
    assert (session.row.resume_token, session.row.metadata) == ("", {"previous_token": "one"})
    await keep(session, "two")
    assert session.row.metadata == {"previous_token": "one", "token_proven": False}
    await keep(session, "two", proven=True)
    assert session.row.metadata == {"token_proven": True}


async def test_tok_1_setting_aside_twice_keeps_the_first(session: StoredSession) -> None:
    """A second rejection has no token to set aside."""
    await keep(session, "one")
    for _ in range(2):
        await session.database.write(lambda tx: set_token_aside(tx, session.ref.session_id))
    assert session.row.metadata["previous_token"] == "one"


async def test_tok_1_a_late_word_of_the_agent_brings_no_rejected_token_back(session: StoredSession) -> None:
    """The process that does not know the session still names it in its updates."""
    await keep(session, "one", proven=True)
    await session.database.write(lambda tx: set_token_aside(tx, session.ref.session_id))
    late = SessionStatusEvent(token="one")
    await session.database.write(lambda tx: handle_session_status_event(tx, session.ref, late))
    assert session.row.resume_token == ""


async def test_tok_4_a_token_that_is_replaced_is_remembered(session: StoredSession) -> None:
    """The agent could not load, and made a new session."""
    await keep(session, "one", proven=True)
    await keep(session, "two")
    assert (session.row.resume_token, session.row.metadata["previous_token"]) == ("two", "one")


async def test_a_token_is_swapped_only_for_the_one_that_was_seen(session: StoredSession) -> None:
    """An event that came between wins."""
    await keep(session, "one")
    swap = {"session_id": session.ref.session_id, "resume_token": "", "metadata": "{}", "now": now()}
    lost = await one(session.database, "executor_swap_token", observed_token="zero", **swap)
    assert (lost, session.row.resume_token) == (None, "one")


# ---- permissions


async def test_perm_1_a_request_is_answered_once(session: StoredSession) -> None:
    """The second answer finds it resolved; the list of what waits is by age, of one session or of all."""
    ids = [new_id(), new_id()]
    for n, request_id in enumerate(ids):
        row = {"turn_id": None, "agent_execution_id": "e", "message_id": "m", "rpc_id": "7", "tool_call": "{}"}
        row |= {"options": "[]", "state": "pending", "answer": "", "created_at": f"2026-01-0{n + 1}", "resolved_at": ""}
        await run(session.database, "permission_insert", id=request_id, session_id=session.ref.session_id, **row)
    store = session.store
    assert [request.id for request in store.pending_permissions(session.ref.session_id)] == ids
    assert {request.id for request in store.pending_permissions()} >= set(ids)
    resolved = [
        await one(session.database, "permission_resolve", id=ids[0], state="answered", answer=answer, now=now())
        for answer in ("yes", "no")
    ]
    assert [row is not None for row in resolved] == [True, False]
    assert store.permission(ids[0]).answer == "yes"
    assert [request.id for request in store.pending_permissions(session.ref.session_id)] == [ids[1]]
