"""Prompts: durable before they are acknowledged, delivered once each, in order, and never again by themselves."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from conversation import Cast, Conversation, Conversations
from fakes import end
from wire_client import CallFailed

WAITING: dict[str, Any] = {"start": [{"gate": "start"}]}
"""The agent does not come up before its gate is open, so that what was acknowledged can not be sent yet."""

HELD_TURN = {"match": "long", "steps": [{"text": "so far "}, {"gate": "turn"}, {"text": "done"}]}
"""A prompt with "long" in it is taken, and answered when the gate is open."""


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """One agent for each test here, and some more."""
    return Cast(tmp_path_factory.mktemp("cast"), each=24)


def parent_of(pid: int) -> int:
    """The parent of a process: of an agent it is its agentctl."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_prompt_1_what_was_acknowledged_is_delivered_after_a_kill(killable: Backend, cast: Cast) -> None:
    """CRASH-7: the backend is killed right after its answer; the next one sends the prompt by itself, once."""
    async with killable.client() as client:
        session = await cast.conversation(client, **WAITING)
        await session.act("task.session.start")
        added = await session.send("second")
        await killable.kill9()
    assert added["id"]
    assert added["seq"] is None
    session.agent.open_gate("start")
    await killable.start()
    await session.agent.until(lambda: len(session.agent.prompts()) == 2)
    assert session.agent.prompts() == ["first", "second"]
    async with killable.client() as client:
        await session.follow(client)
        message = await client.call("message.get", {"message_id": added["id"]})
        assert message["message"]["seq"] is not None


async def test_crash_7_a_request_whose_answer_was_lost_can_be_repeated(killable: Backend, cast: Cast) -> None:
    """The backend is killed before it answered; the same client_message_id makes one message of both requests."""
    async with killable.client() as client:
        session = await cast.conversation(client, **WAITING)
        await session.act("task.session.start")
        lost = [
            asyncio.create_task(session.call("message.add", content=f"m{n}", client_message_id=f"c-{n}"))
            for n in range(9)
        ]
        await asyncio.sleep(0)
        await killable.kill9()
        answers = await asyncio.gather(*lost, return_exceptions=True)
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        stored = [await session.call("message.add", content=f"m{n}", client_message_id=f"c-{n}") for n in range(9)]
        for before, after in zip(answers, stored, strict=True):
            assert isinstance(before, ConnectionError) or before == after
        session.agent.open_gate("start")
        await session.agent.until(lambda: len(session.agent.prompts()) == 10)
        assert session.agent.prompts() == ["first", *(f"m{n}" for n in range(9))]


async def test_prompt_3_the_order_holds_across_a_kill(killable: Backend, cast: Cast) -> None:
    """Prompts that came while the session started are sent once each, in order, by a backend that never saw them."""
    words = [f"word {number}" for number in range(5)]
    async with killable.client() as client:
        session = await cast.conversation(client, **WAITING)
        await session.act("task.session.start")
        for word in words[:3]:
            await session.send(word)
        await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        for word in words[3:]:
            await session.call("message.add", content=word)
        session.agent.open_gate("start")
        await session.event("message.queue.changed", queue=[])
        await session.agent.until(lambda: len(session.agent.prompts()) == 6)
        assert session.agent.prompts() == ["first", *words]
        assert await session.texts("user") == ["first", *words]


async def test_prompt_3_prompts_of_a_running_turn_wait_for_it(conversation: Conversations) -> None:
    """While a turn runs prompts are queued; each is sent when the turn before it has ended."""
    session = await conversation(on={"session/prompt": [HELD_TURN]}, description="long one")
    await session.act("task.session.start")
    await session.event("session.message.delta", text="so far ")
    for word in ("second", "third"):
        await session.call("message.add", content=word)
    assert await session.queue() == (["second", "third"], "")
    assert session.agent.prompts() == ["long one"]
    session.agent.open_gate("turn")
    await session.agent.until(lambda: session.agent.prompts() == ["long one", "second", "third"])


async def test_prompt_2_a_repeated_request_gives_the_stored_message(killable: Backend, cast: Cast) -> None:
    """The same client_message_id, sent at once from two sockets and again after a kill, is one message and one turn."""
    async with killable.client() as client, killable.client() as other:
        session = await cast.conversation(client)
        await session.begin()
        request = {"task_id": session.task_id, "session_id": session.id, "content": "once", "client_message_id": "c-1"}
        session.forget()
        answers = await asyncio.gather(*(one.call("message.add", request) for one in (client, other, client, other)))
        await session.turn_ended()
        await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        answers.append(await client.call("message.add", request))
        assert len({answer["message"]["id"] for answer in answers}) == 1
        await session.say("another")
        assert session.agent.prompts() == ["first", "once", "another"]
        assert await session.texts("user") == ["first", "once", "another"]


async def test_prompt_2_a_client_id_counts_within_its_session(conversation: Conversations) -> None:
    """Two sessions may use the same client_message_id for different prompts."""
    one, other = await conversation(), await conversation()
    first = await one.send("for one", client_message_id="same")
    second = await other.send("for the other", client_message_id="same")
    assert first["id"] != second["id"]
    assert second["content"] == "for the other"


async def test_prompt_5_the_description_is_sent_once(killable: Backend, cast: Cast) -> None:
    """Killed before it was sent, the description is sent after the start; taken by a turn, it is never sent again."""
    async with killable.client() as client:
        session = await cast.conversation(client, **WAITING)
        await session.act("task.session.start")
        await killable.kill9()
    session.agent.open_gate("start")
    await killable.start()
    await session.agent.until(lambda: session.agent.prompts() == ["first"])
    async with killable.client() as client:
        await session.follow(client)
        if (await session.status())["state"] == "RUNNING":
            await session.turn_ended()
    await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        await session.resume()
        await session.say("second")
        assert session.agent.prompts() == ["first", "second"]
        assert await session.texts("user") == ["first", "second"]


async def test_prompt_8_a_withdrawn_prompt_leaves_no_trace(conversation: Conversations) -> None:
    """A queued prompt that is withdrawn is in no list, takes no place, and is never sent."""
    session = await conversation(on={"session/prompt": [HELD_TURN]}, description="long one")
    await session.act("task.session.start")
    await session.event("session.message.delta")
    withdrawn = (await session.call("message.add", content="withdrawn"))["message"]
    await session.call("message.add", content="kept")
    await session.call("message.queue.cancel", message_id=withdrawn["id"])
    assert (await session.queue())[0] == ["kept"]
    session.agent.open_gate("turn")
    await session.agent.until(lambda: "kept" in session.agent.prompts())
    with pytest.raises(CallFailed) as gone:
        await session.call("message.get", message_id=withdrawn["id"])
    assert gone.value.code == "NOT_FOUND"
    assert await session.texts("user") == ["long one", "kept"]
    assert session.agent.prompts() == ["long one", "kept"]
    places = [message["seq"] for message in await session.transcript()]
    assert places == sorted(places)


async def test_prompt_8_what_a_turn_took_cannot_be_withdrawn(conversation: Conversations) -> None:
    """A prompt that was sent stays, and the answer says so."""
    session = await conversation()
    await session.begin()
    sent = await session.send("second")
    await session.turn_ended()
    with pytest.raises(CallFailed) as refused:
        await session.call("message.queue.cancel", message_id=sent["id"])
    assert (refused.value.code, refused.value.reason) == ("CONFLICT", "already_sent")
    assert await session.texts("user") == ["first", "second"]


async def stopped_sidecar(session: Conversation) -> int:
    """Stops the session's agentctl, gives the session a prompt, and waits until its turn is stored."""
    sidecar = parent_of(session.agent.pids()[-1])
    os.kill(sidecar, signal.SIGSTOP)
    await session.send("second")
    await session.event("session.turn.started")
    return sidecar


async def test_prompt_4_a_line_that_was_never_begun_goes_out_again(conversation: Conversations) -> None:
    """The agent is gone before its line was begun: the prompt is first in the queue again, and sent by itself."""
    session = await conversation()
    await session.begin()
    sidecar = await stopped_sidecar(session)
    await session.call("message.add", content="third")
    end(session.agent.pids()[-1])
    end(sidecar)
    await session.agent.until(lambda: len(session.agent.prompts()) == 3)
    assert session.agent.prompts() == ["first", "second", "third"]
    assert await session.texts("user") == ["first", "second", "third"]
    assert await session.notices() == ["not_delivered"]


async def test_prompt_4_a_line_that_was_never_begun_goes_out_after_a_kill(killable: Backend, cast: Cast) -> None:
    """CRASH-7: turn stored, line not written; backend and agentctl die, and the next backend sends it once."""
    async with killable.client() as client:
        session = await cast.conversation(client)
        await session.begin()
        sidecar = await stopped_sidecar(session)
        await killable.kill9()
    end(sidecar)
    await killable.start()
    await session.agent.until(lambda: len(session.agent.prompts()) == 2)
    assert session.agent.prompts() == ["first", "second"]
    async with killable.client() as client:
        await session.follow(client)
        assert await session.texts("user") == ["first", "second"]
        assert await session.notices() == ["not_delivered"]


async def test_prompt_4_a_line_that_was_begun_is_a_persons_decision(conversation: Conversations) -> None:
    """The agent dies over a prompt: interrupted and held; "send again" sends it once more, however often asked."""
    session = await conversation(on={"session/prompt": {"match": "deadly", "times": 1, "steps": [{"die": 3}]}})
    await session.begin()
    await session.send("deadly")
    turn = await session.turn_ended()
    assert turn["state"] == "interrupted"
    await session.event("message.queue.changed", held="interrupted")
    assert session.agent.prompts() == ["first", "deadly"]
    session.forget()
    again = (await session.call("turn.send_again", turn_id=turn["id"]))["message"]
    for _ in range(2):
        with pytest.raises(CallFailed) as refused:
            await session.call("turn.send_again", turn_id=turn["id"])
        assert (refused.value.reason, refused.value.details["message_id"]) == ("already_sent", again["id"])
    assert (await session.turn_ended())["state"] == "completed"
    assert session.agent.prompts() == ["first", "deadly", "deadly"]
    assert (await session.status())["interrupted"] is False


async def test_prompt_4_a_completed_turn_is_not_sent_again(conversation: Conversations) -> None:
    """Only a turn that was cut can be sent again; a turn of another session is not found."""
    session, other = await conversation(), await conversation()
    await session.begin()
    turn = (await session.status())["last_turn"]
    with pytest.raises(CallFailed) as refused:
        await session.call("turn.send_again", turn_id=turn["id"])
    assert (refused.value.code, refused.value.reason) == ("CONFLICT", "not_possible")
    with pytest.raises(CallFailed) as unknown:
        await other.call("turn.send_again", turn_id=turn["id"])
    assert unknown.value.code == "NOT_FOUND"


async def test_prompt_7_a_cancel_holds_the_queue(conversation: Conversations) -> None:
    """What waits behind a cancelled turn waits on, until a person says that it goes on."""
    session = await conversation(on={"session/prompt": [HELD_TURN]}, description="long one")
    await session.act("task.session.start")
    await session.event("session.message.delta")
    await session.call("message.add", content="second")
    await session.act("task.session.cancel")
    assert (await session.turn_ended())["state"] == "cancelled"
    assert await session.queue() == (["second"], "cancelled")
    assert session.agent.prompts() == ["long one"]
    await session.act("message.queue.resume")
    await session.turn_ended()
    assert session.agent.prompts() == ["long one", "second"]


async def test_prompt_7_a_cancel_holds_the_queue_across_a_kill(killable: Backend, cast: Cast) -> None:
    """A held queue is stored as held: the next backend sends nothing by itself."""
    async with killable.client() as client:
        session = await cast.conversation(client, on={"session/prompt": [HELD_TURN]}, description="long one")
        await session.act("task.session.start")
        await session.event("session.message.delta")
        await session.call("message.add", content="second")
        await session.call("task.session.cancel")
        await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        status = await session.status()
        assert (status["state"], status["queued"], status["queue_held"]) == ("WAITING_FOR_INPUT", 1, "cancelled")
        assert status["last_turn"]["state"] == "cancelled"
        await session.resume()
        assert session.agent.prompts() == ["long one"]


async def test_prompt_7_a_cancel_beats_a_prompt_that_waits_for_the_replay(tmp_path: Path, cast: Cast) -> None:
    """HIST-1 lets the first prompt after a load wait; a cancel in that time ends its turn, and it is not sent."""
    quiet = {"KANDEV__TIMING__REPLAY_QUIET_S": "1.5", "KANDEV__TIMING__REPLAY_QUIET_MAX_S": "1.5"}
    async with Backend(tmp_path, config=cast.config, environment=quiet) as backend:
        await backend.start()
        async with backend.client() as client:
            session = await cast.conversation(client, resume=False)
            await session.begin()
            await session.lose_agent()
            await session.send("second")
            await session.event("session.turn.started")
            await session.call("task.session.cancel")
            assert (await session.turn_ended())["state"] == "cancelled"
            assert (await session.status())["state"] == "WAITING_FOR_INPUT"
            await session.say("third")
            assert session.agent.prompts() == ["first", "third"]


async def test_crash_1_requests_at_once_with_one_client_task_id_make_one_task(stage: Backend, cast: Cast) -> None:
    """A client whose answer is late asks again on another connection: one task, and the same answer to all."""
    name, _ = cast.take("native")
    request = {"agent": name, "description": "first", "start": False, "client_task_id": "once"}
    async with stage.client() as one, stage.client() as other:
        made = await asyncio.gather(*(client.call("task.create", request) for client in (one, other) * 3))
        assert len({created["session"]["id"] for created in made}) == 1
        tasks = (await one.call("task.list", {"limit": 200}))["tasks"]
        assert [task["id"] for task in tasks if task["client_task_id"] == "once"] == [made[0]["task"]["id"]]
