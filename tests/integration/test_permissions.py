"""Permission requests: shown to everybody, answered once by a person or a policy, and never a dead button."""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from conversation import Cast, Conversation, Conversations
from fakes import FakeAgent, Json, end
from wire_client import CallFailed, Client

ASKS: Json = {"match": "ask", "steps": [{"permission": "Delete everything"}, {"text": " and on"}]}
"""A prompt with "ask" in it makes the agent ask; then it says what it was answered."""

SCRIPT: Json = {"on": {"session/prompt": ASKS}, "description": "ask first"}


async def asked(session: Conversation) -> Json:
    """Starts the session, and waits for its agent's request; the request."""
    await session.act("task.session.start")
    return dict((await session.event("permission.requested"))["request"])


def outcomes(agent: FakeAgent) -> list[Any]:
    """What the agent was answered, in order."""
    results = [message.get("result") or {} for message in agent.received() if "method" not in message]
    return [result["outcome"] for result in results if "outcome" in result]


async def test_perm_1_a_request_is_shown_to_every_client_and_answered_once(
    stage: Backend, conversation: Conversations
) -> None:
    """It is in the list, in the status and in the snapshot of who comes later; the second answer is told so."""
    session = await conversation(**SCRIPT)
    request = await asked(session)
    assert [option["option_id"] for option in request["options"]] == ["allow_once", "reject_once"]
    status = await session.status()
    assert (status["pending_permissions"], status["needs"], status["state"]) == (1, "permission", "RUNNING")
    async with stage.client() as other:
        snapshot = await other.call("session.subscribe", {"session_id": session.id})
        assert [one["id"] for one in snapshot["permissions"]] == [request["id"]]
        everywhere = await other.call("permission.list")
        assert request["id"] in [one["id"] for one in everywhere["permissions"]]
        answer = {"session_id": session.id, "request_id": request["id"], "option_id": "allow_once"}
        answered = await other.call("permission.respond", answer)
        assert (answered["permission"]["state"], answered["permission"]["answer"]) == ("answered", "allow_once")
        resolved = await session.event("permission.resolved")
        assert resolved["request"]["id"] == request["id"]
        await session.turn_ended()
        with pytest.raises(CallFailed) as refused:
            await session.call("permission.respond", request_id=request["id"], option_id="reject_once")
    assert (refused.value.code, refused.value.reason) == ("CONFLICT", "already_resolved")
    assert outcomes(session.agent) == [{"outcome": "selected", "optionId": "allow_once"}]
    assert (await session.call("permission.list"))["permissions"] == []
    (message,) = [one for one in await session.transcript() if one["type"] == "permission_request"]
    assert (message["metadata"]["state"], message["metadata"]["answer"]) == ("answered", "allow_once")


async def test_perm_1_of_two_answers_at_once_one_wins(stage: Backend, conversation: Conversations) -> None:
    """Two clients answer at the same moment: one is good, the other is refused, the agent gets one answer."""
    session = await conversation(**SCRIPT)
    request = await asked(session)

    async def answer(client: Client, option: str) -> str:
        payload = {"session_id": session.id, "request_id": request["id"], "option_id": option}
        try:
            return str((await client.call("permission.respond", payload))["permission"]["answer"])
        except CallFailed as refused:
            return refused.reason

    async with stage.client() as other, stage.client() as third:
        answers = await asyncio.gather(answer(other, "allow_once"), answer(third, "reject_once"))
    assert len(set(answers) & {"allow_once", "reject_once"}) == 1
    assert answers.count("already_resolved") == 1
    await session.turn_ended()
    assert len(outcomes(session.agent)) == 1


async def test_perm_1_an_answer_that_was_not_offered_is_refused(conversation: Conversations) -> None:
    """The request stays open for a right one; another session's request is not found; both or neither is invalid."""
    session, other = await conversation(**SCRIPT), await conversation()
    request = await asked(session)
    for wrong in ({"option_id": "burn"}, {}, {"option_id": "allow_once", "cancelled": True}):
        with pytest.raises(CallFailed) as invalid:
            await session.call("permission.respond", request_id=request["id"], **wrong)
        assert invalid.value.code == "VALIDATION_ERROR"
    with pytest.raises(CallFailed) as unknown:
        await other.call("permission.respond", request_id=request["id"], option_id="allow_once")
    assert unknown.value.code == "NOT_FOUND"
    await session.call("permission.respond", request_id=request["id"], option_id="reject_once")
    await session.turn_ended()
    assert (await session.texts("agent"))[-1] == "permission: reject_once and on"


async def test_a_person_can_close_a_request_without_an_answer(conversation: Conversations) -> None:
    """Cancelled is an answer too: the agent is told, and goes on or ends as it likes."""
    session = await conversation(**SCRIPT)
    request = await asked(session)
    answered = await session.call("permission.respond", request_id=request["id"], cancelled=True)
    assert answered["permission"]["state"] == "cancelled"
    await session.turn_ended()
    assert outcomes(session.agent) == [{"outcome": "cancelled"}]


async def test_perm_1_a_question_outside_of_any_turn_can_be_answered(conversation: Conversations) -> None:
    """Auggie asks right after session/new whether it may index: neither turn nor queue waits for that."""
    session = await conversation(on={"session/new": {"after": [{"permission": "Index the directory"}]}})
    await session.act("task.session.start")
    request = dict((await session.event("permission.requested"))["request"])
    await session.turn_ended()
    status = await session.status()
    assert (status["state"], status["needs"], status["queued"]) == ("WAITING_FOR_INPUT", "permission", 0)
    await session.say("second")
    await session.act("permission.respond", request_id=request["id"], option_id="allow_once")
    await session.event_where("session.message.added", lambda payload: payload["message"]["author_type"] == "agent")
    assert "permission: allow_once" in "".join(await session.texts("agent"))
    assert (await session.status())["needs"] == "none"


async def test_perm_2_a_request_of_a_killed_backend_is_expired(killable: Backend, cast: Cast) -> None:
    """After the restart nothing waits, the transcript shows it expired, an answer says what to do, no yes was sent."""
    async with killable.client() as client:
        session = await cast.conversation(client, **SCRIPT)
        request = await asked(session)
        await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        assert (await session.call("permission.list"))["permissions"] == []
        (message,) = [one for one in await session.transcript() if one["type"] == "permission_request"]
        assert message["metadata"]["state"] == "expired"
        with pytest.raises(CallFailed) as refused:
            await session.call("permission.respond", request_id=request["id"], option_id="allow_once")
        assert (refused.value.code, refused.value.reason) == ("CONFLICT", "expired")
        assert "Send a message" in refused.value.message
        status = await session.status()
        assert (status["pending_permissions"], status["needs"]) == (0, "decision")
        assert outcomes(session.agent) == []


async def test_perm_2_a_request_of_an_agent_that_died_is_expired(conversation: Conversations) -> None:
    """The agent dies while it waits for a person: the button is gone at once."""
    session = await conversation(**SCRIPT)
    request = await asked(session)
    end(session.agent.pids()[-1])
    resolved = await session.event("permission.resolved")
    assert (resolved["request"]["id"], resolved["request"]["state"]) == (request["id"], "expired")
    await session.turn_ended()
    with pytest.raises(CallFailed) as refused:
        await session.call("permission.respond", request_id=request["id"], option_id="allow_once")
    assert refused.value.reason == "expired"


async def test_crash_10_an_answer_right_before_a_kill_is_kept(killable: Backend, cast: Cast) -> None:
    """What was answered stays answered; whether the agent still took it, its own words tell."""
    async with killable.client() as client:
        session = await cast.conversation(client, **SCRIPT)
        request = await asked(session)
        await session.call("permission.respond", request_id=request["id"], option_id="allow_once")
        await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        (message,) = [one for one in await session.transcript() if one["type"] == "permission_request"]
        assert (message["metadata"]["state"], message["metadata"]["answer"]) == ("answered", "allow_once")
        with pytest.raises(CallFailed) as refused:
            await session.call("permission.respond", request_id=request["id"], option_id="reject_once")
        assert refused.value.reason == "already_resolved"


def _asks(title: str, payload: Json) -> bool:
    return bool(payload["request"]["tool_call"]["title"] == title)


async def test_wire_14_a_cancel_answers_every_request_with_cancelled(conversation: Conversations) -> None:
    """All pending requests are answered before the cancel is sent; the turn is cancelled, the requests too."""
    steps = [{"permission": "One", "wait": False}, {"permission": "Two", "wait": False}, {"permission": "Three"}]
    session = await conversation(on={"session/prompt": {"match": "ask", "steps": steps}}, description="ask first")
    await session.act("task.session.start")
    for title in ("One", "Two", "Three"):
        await session.client.wait_event("permission.requested", partial(_asks, title))
    await session.act("task.session.cancel")
    assert (await session.turn_ended())["state"] == "cancelled"
    received = session.agent.received()
    cancelled = next(n for n, message in enumerate(received) if message.get("method") == "session/cancel")
    answers = [n for n, message in enumerate(received) if "outcome" in (message.get("result") or {})]
    assert len(answers) == 3
    assert max(answers) < cancelled
    assert outcomes(session.agent) == [{"outcome": "cancelled"}] * 3
    assert (await session.call("permission.list"))["permissions"] == []


async def test_a_request_that_the_agent_takes_back_is_closed(conversation: Conversations) -> None:
    """The agent goes on without an answer: the request is shown as cancelled when its turn ends."""
    steps = [{"permission": "Never mind", "wait": False}, {"text": "done"}]
    session = await conversation(on={"session/prompt": {"match": "ask", "steps": steps}}, description="ask first")
    request = await asked(session)
    await session.turn_ended()
    with pytest.raises(CallFailed) as refused:
        await session.call("permission.respond", request_id=request["id"], option_id="allow_once")
    assert refused.value.reason == "already_resolved"
    assert (await session.status())["pending_permissions"] == 0


# Policies


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """One agent for each test here."""
    return Cast(tmp_path_factory.mktemp("cast"), each=24)


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[tuple[Backend, FakeAgent]]:
    """A backend, and an agent that is there under three policies."""
    agent = FakeAgent(tmp_path / "agent", on={"session/prompt": ASKS})
    policies = {"deny": '"deny"', "edits": '["edit"]', "reads": '["read"]'}
    config = "".join(
        f"[agents.{name}]\ncommand = {json.dumps(agent.command)}\npermissions = {policy}\n"
        for name, policy in policies.items()
    )
    async with Backend(tmp_path, config=config) as backend:
        await backend.start()
        yield backend, agent


async def test_policies_answer_without_asking(strict: tuple[Backend, FakeAgent]) -> None:
    """Deny rejects, a list allows its kinds and asks for the rest; all stands in the transcript with its answer."""
    backend, agent = strict
    async with backend.client() as client:
        answers = {}
        for name in ("deny", "edits", "reads"):
            created = await client.call("task.create", {"agent": name, "description": "ask first", "start": False})
            session = Conversation(client, agent, created["task"]["id"], created["session"]["id"])
            await session.follow(client)
            await session.act("task.session.start")
            if name == "reads":
                request = (await session.event("permission.requested"))["request"]
                await session.call("permission.respond", request_id=request["id"], option_id="allow_once")
            await session.turn_ended()
            (message,) = [one for one in await session.transcript() if one["type"] == "permission_request"]
            answers[name] = message["metadata"]["answer"]
            assert bool(session.seen("permission.requested")) is (name == "reads")
    assert answers == {"deny": "reject_once", "edits": "allow_once", "reads": "allow_once"}
    assert [outcome["optionId"] for outcome in outcomes(agent)] == ["reject_once", "allow_once", "allow_once"]
