"""What a person at a terminal sees after something broke, and does about it: show, send-again, recover, doctor."""

import asyncio
import json
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest

from backend import Backend
from conversation import Cast, Conversation, Conversations
from wire_client import LIMIT

TOOL_THEN_HANG = {
    "match": "^long one$",
    "times": 1,
    "steps": [{"text": "so far"}, {"tool": "make all", "end": False}, {"mark": "hangs"}, "hang"],
}
GONE = {"error": {"code": -32002, "message": "Session not found"}}
DIES = {"steps": [{"die": 7}]}


async def words(backend: Backend, *arguments: str) -> str:
    """What a command says to a person."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kandev", *arguments),
        env=backend.env(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(LIMIT):
        out, _ = await process.communicate()
    return out.decode()


async def shown(backend: Backend, session: Conversation) -> Any:
    """What `kandev show --json` says."""
    done = await backend.cli("show", session.id)
    assert done.code == 0, done
    return done.answer


@pytest.fixture
async def cut(killable: Backend, cast: Cast) -> AsyncIterator[Conversation]:
    """A session whose second turn was cut by a kill of the backend, with a tool call under way; served again."""
    async with killable.client() as client:
        session = await cast.conversation(client, on={"session/prompt": TOOL_THEN_HANG})
        await session.begin()
        await session.send("long one")
        await session.agent.until(session.agent.marks)
        await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        yield session


async def test_prompt_4_a_turn_that_was_cut_is_shown_with_what_may_have_run(
    cut: Conversation, killable: Backend
) -> None:
    """`show` names the prompt, the tool call without a result, and the command that sends the prompt again."""
    (turn,) = (await shown(killable, cut))["interrupted_turns"]
    assert (turn["prompt"], turn["sent_again"]) == ("long one", "")
    assert [call["title"] for call in turn["tool_calls"]] == ["make all"]
    said = await words(killable, "show", cut.id)
    assert "you had asked: long one" in said
    assert "may have run, or not: make all" in said
    assert f"kandev send-again {cut.id} --turn {turn['turn_id']}" in said
    assert cut.agent.prompts() == ["first", "long one"], "nothing is sent again by itself"


async def test_prompt_4_a_prompt_is_sent_again_once(cut: Conversation, killable: Backend) -> None:
    """`send-again` sends it and waits; the second time it is refused with the message that did it."""
    done = await killable.cli("send-again", cut.id, "--wait")
    assert (done.code, done.answer["turn"]["state"]) == (0, "completed")
    assert cut.agent.prompts() == ["first", "long one", "long one"]
    (turn,) = (await shown(killable, cut))["interrupted_turns"]
    assert turn["sent_again"] == done.answer["message"]["id"]
    refused = await killable.cli("send-again", cut.id, "--turn", turn["turn_id"])
    assert (refused.code, refused.answer["error"]["details"]["reason"]) == (5, "already_sent")
    assert refused.answer["error"]["details"]["message_id"] == turn["sent_again"]
    newest = await killable.cli("send-again", cut.id)
    assert (newest.code, newest.answer["error"]["details"]["reason"]) == (5, "not_possible"), "the newest is completed"
    assert cut.agent.prompts() == ["first", "long one", "long one"]


async def test_prompt_4_what_was_taken_back_can_be_sent_again(conversation: Conversations, stage: Backend) -> None:
    """The repetition waits behind another prompt and is withdrawn there: then it was never sent."""
    dies = {"match": "deadly", "times": 1, "steps": [{"die": 3}]}
    waits = {"match": "between", "steps": [{"mark": "between"}, {"gate": "between"}]}
    session = await conversation(on={"session/prompt": [dies, waits]})
    await session.begin()
    turn = await session.say("deadly")
    await session.send("between")
    await session.agent.until(session.agent.marks)
    first = await stage.cli("send-again", session.id, "--turn", turn["id"])
    await session.act("message.queue.cancel", message_id=first.answer["message"]["id"])
    second = await stage.cli("send-again", session.id, "--turn", turn["id"])
    assert (first.code, second.code) == (0, 0)
    session.agent.open_gate("between")
    await session.agent.until(lambda: session.agent.prompts() == ["first", "deadly", "between", "deadly"])


async def test_a_session_without_a_turn_has_nothing_to_send_again(conversation: Conversations, stage: Backend) -> None:
    """Nothing was asked yet."""
    session = await conversation()
    assert (await stage.cli("send-again", session.id)).code == 4


async def test_each_start_is_shown_with_how_why_and_how_long(conversation: Conversations, stage: Backend) -> None:
    """By `show`, `task.session.get` and `message.list`: native after a load, with what the agent repeated, by kind."""
    session = await conversation(resume=False)
    await session.begin()
    await session.lose_agent()
    await session.resume()
    newest, first = (await shown(stage, session))["resumes"]
    assert (newest["how"], newest["reason"], first["how"]) == ("native", "session/load", "fresh")
    assert newest["replayed"] == {"user_message_chunk": 1, "agent_message_chunk": 1}
    assert {"checking", "workspace", "launching", "starting_agent", "restoring"} <= set(newest["stages"])
    got = await session.call("task.session.get")
    assert got["resumes"] == [newest, first]
    listed = await session.client.call("message.list", {"session_id": session.id})
    assert listed["resumes"] == [newest, first]
    said = await words(stage, "show", session.id)
    assert "how: native (session/load)" in said
    assert "restoring" in said
    assert "1 user_message_chunk, 1 agent_message_chunk" in said


async def test_hist_1_what_is_repeated_behind_the_answer_counts_too(
    conversation: Conversations, stage: Backend
) -> None:
    """Some agents answer a load first; what they repeat until the next prompt is in the outcome, by kind."""
    session = await conversation(resume=False, on={"session/load": {"steps": [], "after": ["replay"]}})
    await session.begin()
    await session.lose_agent()
    await session.say("second")
    newest = (await shown(stage, session))["resumes"][0]
    assert newest["replayed"] == {"user_message_chunk": 1, "agent_message_chunk": 1}


async def test_pages_of_the_transcript_have_the_starts_that_belong_to_them(
    conversation: Conversations,
) -> None:
    """Each start is on one page, whichever way one reads: behind the messages that were there when it began."""
    session = await conversation()
    await session.begin()
    for text in ("second", "third"):
        await session.lose_agent()
        await session.say(text)

    async def pages(**cursor: int) -> list[Any]:
        return [await session.client.call("message.list", {"session_id": session.id, "limit": 2, **cursor})]

    back = await pages()
    while back[-1]["has_more"]:
        back += await pages(before=back[-1]["messages"][0]["seq"])
    assert [[one["how"] for one in page["resumes"]] for page in back] == [[], ["native"], ["native", "fresh"]]
    forth = await pages(after=0)
    while forth[-1]["has_more"]:
        forth += await pages(after=forth[-1]["messages"][-1]["seq"])
    found = [one["id"] for page in forth for one in reversed(page["resumes"])]
    assert found == [one["id"] for page in reversed(back) for one in reversed(page["resumes"])]


async def test_a_silent_turn_right_after_a_restore_offers_a_recap(conversation: Conversations, stage: Backend) -> None:
    """It may have lost its memory: that is said, `show` has the command, and the recap goes with the next prompt."""
    session = await conversation(on={"session/prompt": {"match": "second", "steps": []}})
    await session.begin()
    await session.lose_agent()
    await session.say("second")
    assert (await session.notice("empty_turn"))["metadata"]["actions"] == ["recap"]
    said = await words(stage, "show", session.id)
    assert "without a word" in said
    assert f"kandev recover {session.id} --action recap" in said
    assert (await stage.cli("recover", session.id, "--action", "recap", "--wait")).code == 0
    await session.say("third")
    assert "[USER]: first" in session.agent.prompts()[-1]
    assert "without a word" not in await words(stage, "show", session.id), "it is no news any more"


async def test_tok_1_a_rejected_session_offers_what_goes_on(conversation: Conversations, stage: Backend) -> None:
    """`show` says that the agent has forgotten it, what the decision is, and the command of each way."""
    session = await conversation()
    await session.begin()
    await session.lose_agent()
    session.agent.update(on={"session/resume": GONE, "session/load": GONE})
    await session.fail_to_resume()
    said = await words(stage, "show", session.id)
    assert "does not know this session any more" in said
    for action in ("recap", "fresh_start", "retry_token"):
        assert f"kandev recover {session.id} --action {action}" in said
    assert (await stage.cli("recover", session.id, "--action", "recap", "--wait")).code == 0
    await session.say("second")
    assert "[USER]: first" in session.agent.prompts()[-1]


# The crash budget


async def park(session: Conversation) -> None:
    """An agent that ends whenever it is to restore, until nobody starts it any more."""
    await session.begin()
    await session.lose_agent()
    session.agent.update(on={"session/resume": DIES, "session/load": DIES})
    await session.send("second")
    await session.event("message.queue.changed", held="parked")


async def test_state_5_ends_that_repeat_are_said_once_and_counted(conversation: Conversations, stage: Backend) -> None:
    """One notice has how often and when; each start has its outcome; then one that says it is parked."""
    session = await conversation()
    await park(session)
    assert await session.notices() == ["agent_died", "parked"]
    notice = await session.notice("agent_died")
    failed = [one for one in (await shown(stage, session))["resumes"] if one["error"]]
    assert notice["metadata"]["times"] == len(notice["metadata"]["at"]) == len(failed) == 4
    assert "4 times in a row" in notice["content"]
    assert notice["metadata"]["exit_code"] == 7
    status = await words(stage, "status", session.id)
    assert f"kandev recover {session.id} --action" in status


def about(findings: Any, session: Conversation) -> Any:
    """The finding of doctor that mends something of a session."""
    (found,) = [one for one in findings["findings"] if session.id[:8] in one["text"] and one["can_fix"]]
    return found


async def test_state_5_doctor_brings_a_parked_session_out_by_its_backend(killable: Backend, cast: Cast) -> None:
    """Once the cause is mended, --fix tries again; what waited is sent."""
    async with killable.client() as client:
        session = await cast.conversation(client)
        await park(session)
        assert not about((await killable.cli("doctor")).answer, session)["fixed"]
        session.agent.update(on={})
        assert about((await killable.cli("doctor", "--fix")).answer, session)["fixed"]
        await session.agent.until(lambda: session.agent.prompts() == ["first", "second"])
        assert (await session.status())["resume_reason"] == "already_running"


async def test_state_5_doctor_brings_a_parked_session_out_without_a_backend(killable: Backend, cast: Cast) -> None:
    """--fix starts no agent; the next backend does, and sends what waited."""
    async with killable.client() as client:
        session = await cast.conversation(client)
        await park(session)
    await killable.stop()
    session.agent.update(on={})
    starts = len(session.agent.pids())
    assert about((await killable.cli("doctor", "--fix")).answer, session)["fixed"]
    assert len(session.agent.pids()) == starts
    await killable.start()
    await session.agent.until(lambda: session.agent.prompts() == ["first", "second"])


async def test_state_1_doctor_settles_what_a_killed_backend_left(killable: Backend, cast: Cast) -> None:
    """Without a start: the turn is cut, the session waits, its task is in review, and no agent runs."""
    async with killable.client() as client:
        session = await cast.conversation(client, on={"session/prompt": TOOL_THEN_HANG}, description="long one")
        await session.act("task.session.start")
        await session.agent.until(session.agent.marks)
        await killable.kill9()
    assert about((await killable.cli("doctor", "--fix")).answer, session)["fixed"]
    with closing(sqlite3.connect(killable.home / "kandev.db")) as database:
        query = """SELECT task_sessions.state, tasks.state, turns.state FROM task_sessions
            JOIN tasks ON tasks.id = task_sessions.task_id JOIN turns ON turns.session_id = task_sessions.id"""
        assert database.execute(query).fetchall() == [("WAITING_FOR_INPUT", "REVIEW", "interrupted")]
    assert session.agent.alive() == []
    again = (await killable.cli("doctor", "--fix")).answer
    assert [one for one in again["findings"] if one["can_fix"]] == []
    assert len(session.agent.pids()) == 1


async def test_state_1_doctor_brings_a_session_out_that_is_running_without_an_agent(
    killable: Backend, cast: Cast
) -> None:
    """It should not happen; where it does, the backend resumes it and closes what is open."""
    async with killable.client() as client:
        session = await cast.conversation(client)
        await session.begin()
        await session.lose_agent()
        with closing(sqlite3.connect(killable.home / "kandev.db", isolation_level=None)) as database:
            database.execute("UPDATE task_sessions SET state = 'RUNNING' WHERE id = ?", (session.id,))
        found = about((await killable.cli("doctor", "--fix")).answer, session)
        assert (found["fixed"], "no agent runs for it" in found["text"]) == (True, True)
        await session.event("session.resume.completed")
        assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")


async def test_doctor_leaves_a_session_alone_that_works(killable: Backend, cast: Cast) -> None:
    """A turn that runs is not stuck."""
    async with killable.client() as client:
        session = await cast.conversation(client, on={"session/prompt": TOOL_THEN_HANG}, description="long one")
        await session.act("task.session.start")
        await session.agent.until(session.agent.marks)
        done = await killable.cli("doctor", "--fix")
        assert session.id[:8] not in json.dumps([one for one in done.answer["findings"] if one["can_fix"]])
        assert (await session.status())["turn"] is not None
