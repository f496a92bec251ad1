"""The resume token: given up only when the agent itself says that it does not know the session, and then set aside."""

from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from conversation import LOGIN_HINT, Cast, Conversation, Conversations

GONE = {"error": {"code": -32002, "message": "Session not found"}}
VAGUE = {"error": {"code": -32603, "message": "Internal error", "data": {"details": "service failure"}}}


async def dormant(session: Conversation) -> str:
    """One turn, then the agent is lost; the fingerprint of the token, which is proven."""
    await session.begin()
    await session.lose_agent()
    return str((await session.status())["acp_session_id"])


async def rejected(session: Conversation) -> None:
    """What must hold once the agent has said that it does not know the session (TOK-1)."""
    status = await session.status()
    assert status["acp_session_id"] == ""
    assert (status["queue_held"], status["needs"]) == ("token_rejected", "decision")
    assert "retry_token" in status["recover_actions"]
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
    assert "session FAILED" not in session.moves()
    actions = (await session.notice("rejected"))["metadata"]["actions"]
    assert set(actions) == {"recap", "fresh_start", "retry_token"}


REJECTIONS = {
    "code -32002": {"code": -32002, "message": "Resource not found"},
    "code -32001": {"code": -32001, "message": "nope"},
    "words": {"code": -32603, "message": "Internal error", "data": {"details": "No conversation found with this id"}},
}


@pytest.mark.parametrize("error", REJECTIONS.values(), ids=REJECTIONS)
@pytest.mark.parametrize("method", ["resume", "load"])
async def test_tok_1_a_rejected_token(conversation: Conversations, method: str, error: Any) -> None:
    """STARTING, then waiting and never FAILED; the token is set aside, a message says so, the queue is held."""
    session = await conversation(resume=method == "resume", on={f"session/{method}": {"error": error}})
    await dormant(session)
    failed = await session.fail_to_resume()
    assert failed["cause"] == "unknown_session"
    assert session.moves() == ["session STARTING", "session WAITING_FOR_INPUT"]
    await rejected(session)
    assert session.methods() == ["initialize", f"session/{method}"]


async def test_tok_1_the_next_message_starts_a_new_session(conversation: Conversations) -> None:
    """The transcript stays, the prompt goes to a new agent session, and the queue is open again."""
    session = await conversation(on={"session/resume": GONE})
    before = await dormant(session)
    await session.fail_to_resume()
    await session.say("second")
    assert session.methods() == ["initialize", "session/new", "session/prompt"]
    assert await session.texts("user") == ["first", "second"]
    status = await session.status()
    assert status["acp_session_id"] not in {before, ""}
    assert status["queue_held"] == ""


async def test_tok_1_a_prompt_that_woke_the_session_is_held_and_kept(conversation: Conversations) -> None:
    """The prompt was written for an agent that remembers, so a person decides whether the new one gets it."""
    session = await conversation(on={"session/resume": GONE})
    await dormant(session)
    await session.send("second")
    await session.event("session.resume.failed")
    await rejected(session)
    assert await session.queue() == (["second"], "token_rejected")
    assert session.agent.prompts() == ["first"]
    await session.act("message.queue.resume")
    await session.turn_ended()
    assert session.agent.prompts() == ["first", "second"]


async def test_wire_9_the_first_prompt_after_a_restore_rejects(conversation: Conversations) -> None:
    """Some agents load anything and only then say that there is no such session: the same as a rejected load."""
    session = await conversation(on={"session/prompt": {"match": "second", **GONE, "steps": []}})
    await dormant(session)
    await session.resume()
    turn = await session.say("second")
    assert turn["state"] == "failed"
    await session.event("task.state_changed", new_state="REVIEW")
    await rejected(session)
    await session.say("third")
    assert session.methods()[:2] == ["initialize", "session/new"]


async def test_wire_9_a_later_prompt_costs_no_token(conversation: Conversations) -> None:
    """Once a turn has ended in the restored session, the same words are an error of that turn only."""
    session = await conversation(on={"session/prompt": {"match": "third", **GONE, "steps": []}})
    before = await dormant(session)
    await session.say("second")
    await session.say("third")
    assert (await session.status())["acp_session_id"] == before
    assert await session.notices() == ["turn_failed"]


async def test_tok_5_an_unproven_token_is_given_up_silently(conversation: Conversations) -> None:
    """No turn has ended in the session, so nothing is lost: a new one in the same resume, and no warning."""
    session = await conversation(on={"session/prompt": {"times": 1, "steps": [{"die": 1}]}, "session/resume": GONE})
    await session.act("task.session.start")
    await session.event("session.agent_changed", is_agent_running=False)
    done = await session.resume()
    assert (done["how"], done["lost"]) == ("fresh", "")
    assert session.methods() == ["initialize", "session/resume", "session/new"]
    assert await session.notices() == ["interrupted"]
    assert (await session.status())["acp_session_id"] != ""


async def test_tok_16_tried_once_more_in_a_fresh_process(conversation: Conversations) -> None:
    """An answer that says nothing definite: a second process is asked, and its yes counts."""
    session = await conversation(on={"session/resume": {"times": 1, **VAGUE}})
    before = await dormant(session)
    assert (await session.resume())["how"] == "native"
    assert len(session.agent.pids()) == 3
    assert (await session.status())["acp_session_id"] == before
    assert await session.notices() == []


async def test_tok_16_after_the_second_it_goes_on_as_rejected(conversation: Conversations) -> None:
    """Twice nothing definite: set aside, and "try again" is offered first."""
    session = await conversation(on={"session/resume": VAGUE})
    await dormant(session)
    failed = await session.fail_to_resume()
    assert failed["cause"] == "cannot_restore"
    assert len(session.agent.pids()) == 3
    await rejected(session)
    assert (await session.notice("rejected"))["metadata"]["actions"][0] == "retry_token"


async def test_tok_16_a_good_turn_forgets_the_first(conversation: Conversations) -> None:
    """The count is for one trouble: after a turn, the next trouble has two tries again."""
    session = await conversation(on={"session/resume": {"times": 1, **VAGUE}})
    before = await dormant(session)
    await session.say("second")
    await session.lose_agent()
    session.agent.update(version="again", on={"session/resume": [{"times": 2, **VAGUE}]})
    assert (await session.resume())["how"] == "native"
    assert (await session.status())["acp_session_id"] == before


LOGINS = {
    "code -32000": {"code": -32000, "message": "Authentication required"},
    "words": {"code": -32603, "message": "Internal error", "data": {"details": "Please run /login"}},
}


@pytest.mark.parametrize("error", LOGINS.values(), ids=LOGINS)
async def test_tok_13_login_needed_keeps_the_token(conversation: Conversations, error: Any) -> None:
    """The user is told the command that logs in; after it the same session is restored."""
    session = await conversation(on={"session/resume": {"times": 1, "error": error}})
    before = await dormant(session)
    refused = await session.refused("task.session.resume", wait=True)
    assert (refused.code, refused.reason) == ("CONFLICT", "login_required")
    assert refused.details["command"] == LOGIN_HINT
    status = await session.status()
    assert (status["acp_session_id"], status["queue_held"], status["needs"]) == (before, "login_required", "login")
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
    said = await session.notice("login")
    assert said["metadata"]["command"] == LOGIN_HINT
    assert LOGIN_HINT in said["content"]
    assert (await session.recover("resume"))["how"] == "native"
    status = await session.status()
    assert (status["queue_held"], status["needs"]) == ("", "none")


async def test_tok_13_login_needed_at_a_launch(conversation: Conversations) -> None:
    """The description waits for the login, and is sent by the resume after it."""
    session = await conversation(on={"session/new": {"times": 1, "error": LOGINS["code -32000"]}})
    await session.act("task.session.start")
    await session.event("session.resume.failed")
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
    assert await session.queue() == (["first"], "login_required")
    await session.act("task.session.recover", action="resume")
    await session.turn_ended()
    assert session.agent.prompts() == ["first"]


IN_USE = {"code": -32600, "message": "refused", "data": {"reason": "thread_active_writer", "owner": {"pid": 4711}}}


async def test_tok_14_in_use_is_tried_again(conversation: Conversations) -> None:
    """Another process holds the session for a moment: asked again in the same process, and restored."""
    session = await conversation(on={"session/resume": {"times": 2, "error": IN_USE}})
    before = await dormant(session)
    assert (await session.resume())["how"] == "native"
    assert session.methods() == ["initialize", *["session/resume"] * 3]
    assert (await session.status())["acp_session_id"] == before


async def test_tok_14_in_use_for_long_says_where(conversation: Conversations) -> None:
    """After some seconds it is said who holds the session; token and states stay, a later resume is good."""
    session = await conversation(on={"session/resume": {"error": IN_USE}})
    before = await dormant(session)
    refused = await session.refused("task.session.resume", wait=True)
    assert (refused.code, refused.reason) == ("CONFLICT", "in_use")
    assert refused.details["owner"] == "pid 4711"
    assert "pid 4711" in (await session.notice("in_use"))["content"]
    assert (await session.status())["acp_session_id"] == before
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
    session.agent.update(on={})
    assert (await session.resume())["how"] == "native"


# TOK-2: no answer is no rejection


async def test_tok_2_the_agent_ends_before_initialize(conversation: Conversations) -> None:
    """FAILED, because nothing was ever answered, with the token kept: recover restores the same session."""
    session = await conversation()
    before = await dormant(session)
    session.agent.update(start=[{"die": 9}])
    await session.fail_to_resume()
    assert await session.states() == ("FAILED", "FAILED")
    assert (await session.status())["acp_session_id"] == before
    session.agent.update(start=[])
    assert (await session.recover("resume"))["how"] == "native"
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")


async def test_tok_2_the_program_is_missing(conversation: Conversations) -> None:
    """The same for a program that cannot be started at all."""
    session = await conversation()
    before = await dormant(session)
    script = Path(session.agent.command[-1])
    script.rename(script.with_suffix(".away"))
    await session.fail_to_resume()
    assert (await session.status())["state"] == "FAILED"
    script.with_suffix(".away").rename(script)
    assert (await session.recover("resume"))["how"] == "native"
    assert (await session.status())["acp_session_id"] == before


@pytest.mark.parametrize("method", ["resume", "load"])
async def test_tok_2_the_agent_dies_while_it_restores(conversation: Conversations, method: str) -> None:
    """Waiting as before, the token kept, the exit code said; the next resume is good."""
    steps = [{"stderr": "out of memory"}, {"die": 137}]
    session = await conversation(resume=method == "resume", on={f"session/{method}": {"times": 1, "steps": steps}})
    before = await dormant(session)
    refused = await session.refused("task.session.resume", wait=True)
    assert (refused.code, refused.reason, refused.details["exit_code"]) == ("UNAVAILABLE", "agent_died", 137)
    assert session.moves() == ["session STARTING", "session WAITING_FOR_INPUT"]
    said = (await session.notice("agent_died"))["metadata"]
    assert (said["exit_code"], "out of memory" in said["stderr"]) == (137, True)
    assert (await session.status())["acp_session_id"] == before
    assert (await session.resume())["how"] == "native"


async def test_tok_2_a_load_without_an_answer(tmp_path: Path, cast: Cast) -> None:
    """Silence ends the start after its deadline, which any message resets (WIRE-10); the token is kept."""
    waits = {"KANDEV__TIMING__RPC_INACTIVITY_S": "2"}
    steps = [{"delay": 1.2}, {"update": {"sessionUpdate": "plan", "entries": []}}, {"delay": 1.2}]
    async with Backend(tmp_path, config=cast.config, environment=waits) as backend:
        await backend.start()
        async with backend.client() as client:
            session = await cast.conversation(client, on={"session/resume": [{"times": 1, "silent": True}]})
            before = await dormant(session)
            failed = await session.fail_to_resume()
            assert failed["cause"] == "inactive"
            assert (await session.status())["acp_session_id"] == before
            assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")
            session.agent.update(on={"session/resume": {"steps": steps}})
            assert (await session.resume())["how"] == "native"


async def test_tok_2_the_backend_is_stopped_during_a_load(killable: Backend, cast: Cast) -> None:
    """SIGTERM in the middle of a load: after the start the session waits, and the same token restores it."""
    async with killable.client() as client:
        session = await cast.conversation(client)
        before = await dormant(session)
        session.agent.update(on={"session/resume": {"steps": [{"mark": "loading"}, "hang"]}})
        await session.act("task.session.resume")
        await session.agent.until(session.agent.marks)
        await killable.stop()
    session.agent.update(on={})
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        status = await session.status()
        assert (status["state"], status["resume_reason"]) == ("WAITING_FOR_INPUT", "agent_not_running")
        assert status["acp_session_id"] == before
        assert (await session.resume())["how"] == "native"


async def test_tok_9_the_token_is_in_no_log_and_no_answer(stage: Backend, conversation: Conversations) -> None:
    """Also where the agent's own error repeats it, only a fingerprint is written and sent."""
    session = await conversation()
    await dormant(session)
    token = session.agent.requests("session/prompt")[0]["params"]["sessionId"]
    session.agent.update(on={"session/resume": {"error": {"code": -32002, "message": f"Session {token} not found"}}})
    await session.fail_to_resume()
    answers = [await session.status(), await session.transcript(), await session.call("task.session.get")]
    answers += [await session.call("session.logs"), session.client.events]
    assert token not in repr(answers)
    logs = [path.read_text() for path in (stage.home / "logs").rglob("*") if path.is_file()]
    assert token not in "".join([*logs, stage.log.read_text()])
    assert any("restore_refused" in text for text in logs)
