"""Everything is applied in the order of the wire, whoever waits for what (WIRE-6); `_meta` is nothing (WIRE-13)."""

from collections.abc import Iterator

import pytest

from conversation import Conversations
from kandev.protocols import acp
from kandev.store.sqlite import SqliteDatabase
from stored import TOKEN, StoredSession, answer, ask, chunk, line, stored, update


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    """One database for the module; each test has a session of its own in it."""
    with stored(tmp_path_factory.mktemp("order")) as opened:
        yield opened


@pytest.mark.parametrize("together", [1, 2, 100])
async def test_wire_6_questions_tools_and_text_stand_in_the_order_of_the_wire(
    database: SqliteDatabase, together: int
) -> None:
    """Text before a question stands before it, text behind it behind it, however many lines come at once."""
    session = await StoredSession.create(database)
    reader = session.reader()
    await session.opened(reader)
    _, request_id = await session.prompt(reader, "Do it")
    lines = [
        chunk("before "),
        chunk("the question"),
        ask(100, title="May I?"),
        chunk("behind the question"),
        update("tool_call", toolCallId="call-2", title="write", status="pending"),
        chunk("behind the tool"),
        update("tool_call_update", toolCallId="call-2", status="completed"),
        chunk(" goes on"),
        answer(request_id, {"stopReason": "end_turn"}),
        chunk("late"),
    ]
    for start in range(0, len(lines), together):
        reader.feed(lines[start : start + together])
        await session.commit(reader)
    assert [message.content for message in session.messages()] == [
        *("Do it", "before the question", "May I?", "behind the question", "write", "behind the tool goes on", "late"),
    ]
    assert [message.seq for message in session.messages()] == list(range(1, 8))


async def test_wire_6_who_waits_for_an_answer_finds_all_that_came_before_it(database: SqliteDatabase) -> None:
    """The answer is handed on after the commit of every line before it, and before any line behind it is applied."""
    session = await StoredSession.create(database)
    reader = session.reader()
    await session.opened(reader)
    request_id = reader.begin_request("session/set_mode")
    reader.queue_line(acp.set_mode(request_id, TOKEN, "code"))
    await session.commit(reader)
    found: list[list[str]] = []
    reader.on_answer = lambda _id, _response: found.append([message.content for message in session.messages()])
    reader.feed([chunk("one"), update("plan", entries=[{"content": "step"}]), answer(request_id, {})])
    assert found == []
    await session.commit(reader)
    assert [content for content in found[0] if content == "one" or "step" in content] == ["one", "[?] step"]


async def test_wire_13_meta_overrides_nothing_on_its_way_to_the_transcript(database: SqliteDatabase) -> None:
    """Session, kind, text, ids, results and options are those of the message, whatever `_meta` repeats of them."""
    session = await StoredSession.create(database)
    reader = session.reader()
    await session.opened(reader)
    _, request_id = await session.prompt(reader)
    lie = {"sessionId": "other", "sessionUpdate": "plan", "text": "lie", "toolCallId": "other", "stopReason": "refusal"}
    content = {"type": "text", "text": "truth", "_meta": lie}
    said = {"sessionUpdate": "agent_message_chunk", "content": content, "_meta": lie}
    params = {"sessionId": TOKEN, "update": said, "_meta": lie}
    tool = update("tool_call", toolCallId="call-1", title="write", status="completed", _meta=lie)
    reader.feed([line({"method": "session/update", "params": params, "_meta": lie}), tool])
    reader.feed([line({"id": request_id, "result": {"stopReason": "end_turn", "_meta": lie}, "_meta": lie})])
    await session.commit(reader)
    _, text, call = session.messages()
    assert (text.content, text.type) == ("truth", "message")
    assert (call.content, call.metadata["tool_call_id"], call.metadata["status"]) == ("write", "call-1", "completed")
    assert session.row.resume_token == TOKEN
    turn = session.store.last_turn(session.ref.session_id)
    assert turn is not None
    assert (turn.state, turn.stop_reason) == ("completed", "end_turn")


async def test_wire_6_an_agent_that_answers_and_talks_in_one_breath_is_understood(conversation: Conversations) -> None:
    """Text, an answer and more text in one write: the turn has ended, and nothing is lost or out of order."""
    steps = [{"text": "one "}, {"tool": "look"}, {"text": "two"}]
    after = [{"text": " three", "message_id": "late"}, {"text": " four", "message_id": "late"}]
    session = await conversation(on={"session/prompt": {"match": "go", "steps": steps, "after": after}})
    await session.begin()
    await session.say("go")
    await session.say("then?")
    said = [one["content"] for one in await session.transcript() if one["author_type"] == "agent"]
    assert said == ["heard: first | memory: 0", "one ", "look", "two", " three four", "heard: then? | memory: 2"]
