"""What a person chooses: resume, fresh_start, recap, retry_token, also for sessions that a resume refuses."""

import pytest

from backend import Backend
from conversation import Cast, Conversation, Conversations

GONE = {"error": {"code": -32002, "message": "Session not found"}}


async def dormant(session: Conversation) -> None:
    """One turn, then the agent is lost."""
    await session.begin()
    await session.lose_agent()


async def test_a_cancelled_session_is_refused_and_brought_back(conversation: Conversations) -> None:
    """Stopped by a person: no resume, no prompt, until it is recovered; then it remembers."""
    session = await conversation()
    await session.begin()
    await session.act("task.session.stop")
    assert session.moves() == ["session CANCELLED"]
    assert (await session.refused("task.session.resume")).reason == "session_ended"
    assert (await session.refused("message.add", content="second")).reason == "session_ended"
    assert session.agent.alive() == []
    assert (await session.recover("resume"))["how"] == "native"
    assert session.moves() == [
        "session WAITING_FOR_INPUT",
        "session STARTING",
        "session WAITING_FOR_INPUT",
    ]
    await session.say("second")
    assert (await session.texts("agent"))[-1] == "heard: second | memory: 1"


async def test_a_failed_session_is_refused_and_brought_back(conversation: Conversations) -> None:
    """PROMPT-5: a launch that failed has not lost the description; recovered, it is sent once."""
    session = await conversation(start=[{"die": 1}])
    await session.act("task.session.start")
    await session.event("session.state_changed", new_state="FAILED")
    assert (await session.refused("task.session.resume")).reason == "session_ended"
    session.agent.update(start=[])
    await session.recover("resume")
    await session.turn_ended()
    await session.event("task.state_changed", new_state="REVIEW")
    assert session.agent.prompts() == ["first"]
    assert await session.states() == ("WAITING_FOR_INPUT", "REVIEW")


@pytest.mark.parametrize("action", ["resume", "fresh_start", "recap", "retry_token"])
async def test_a_completed_session_is_final(conversation: Conversations, action: str) -> None:
    """COMPLETED takes no resume, no prompt, and nothing brings it back."""
    session = await conversation()
    await session.begin()
    await session.act("task.complete")
    assert (await session.refused("task.session.resume")).reason == "session_completed"
    assert (await session.refused("message.add", content="second")).reason == "session_completed"
    assert (await session.refused("task.session.recover", action=action)).reason == "session_completed"
    assert len(session.agent.pids()) == 1


async def test_recover_resume_leaves_a_live_agent_alone(conversation: Conversations) -> None:
    """RACE-2: a person's resume opens the queue, and touches nothing else of an agent that runs."""
    session = await conversation(on={"session/prompt": {"match": "long", "steps": [{"mark": "runs"}, "hang"]}})
    await session.begin()
    await session.send("long")
    await session.agent.until(session.agent.marks)
    await session.call("message.add", content="second")
    await session.act("task.session.cancel")
    await session.turn_ended()
    assert await session.queue() == (["second"], "cancelled")
    answer = await session.act("task.session.recover", action="resume")
    assert answer["already_running"] is True
    await session.turn_ended()
    assert session.agent.prompts() == ["first", "long", "second"]
    assert len(session.agent.pids()) == 1


async def test_a_resume_that_a_person_asks_for_opens_the_queue(conversation: Conversations) -> None:
    """Opening a page resumes too, and leaves a held queue held; `open_queue` says that somebody wants it to go on."""
    session = await conversation(on={"session/prompt": {"match": "long", "steps": [{"text": "on it"}, {"die": 1}]}})
    await session.begin()
    await session.send("long")
    await session.call("message.add", content="second")
    await session.event("session.agent_changed", is_agent_running=False)
    await session.resume()
    assert await session.queue() == (["second"], "interrupted")
    await session.act("task.session.resume", open_queue=True)
    await session.turn_ended()
    assert session.agent.prompts() == ["first", "long", "second"]


async def test_fresh_start_replaces_a_start_under_way(conversation: Conversations) -> None:
    """TOK-10: a resume that still loads the old session is given up before the new one is made."""
    session = await conversation(resume=False)
    await dormant(session)
    session.agent.update(on={"session/load": {"steps": [{"mark": "loading"}, "hang"]}})
    await session.act("task.session.resume")
    await session.agent.until(session.agent.marks)
    await session.recover("fresh_start")
    assert session.methods() == ["initialize", "session/new"]
    assert session.agent.alive() == session.agent.pids()[-1:]
    await session.say("second")
    assert await session.queue() == ([], "")


async def test_fresh_start_gives_the_token_up_first(conversation: Conversations) -> None:
    """TOK-10: the old session is not asked for; it can still be tried again until the new one has had a turn."""
    session = await conversation()
    await dormant(session)
    before = (await session.status())["acp_session_id"]
    await session.recover("fresh_start")
    assert session.methods() == ["initialize", "session/new"]
    assert (await session.status())["acp_session_id"] not in {before, ""}
    await session.say("second")
    assert (await session.texts("agent"))[-1] == "heard: second | memory: 0"
    assert await session.texts("user") == ["first", "second"]


async def test_fresh_start_ends_an_agent_that_runs(conversation: Conversations) -> None:
    """The old process is gone before the new one has the session."""
    session = await conversation()
    await session.begin()
    await session.recover("fresh_start")
    assert session.agent.alive() == session.agent.pids()[1:]
    assert len(session.agent.pids()) == 2


async def test_fresh_start_is_the_end_of_what_is_injected(conversation: Conversations) -> None:
    """An agent that is told the history is told nothing from before a fresh start, also later."""
    session = await conversation("history")
    await session.begin()
    await session.recover("fresh_start")
    await session.say("second")
    await session.lose_agent()
    await session.say("third")
    plain, context = session.agent.prompts()[1:]
    assert plain == "second"
    assert "[USER]: second" in context
    assert "[USER]: first" not in context


async def test_recap_goes_with_the_next_prompt_once(conversation: Conversations) -> None:
    """After a rejected token the person has the new session told what was recorded."""
    session = await conversation(on={"session/resume": GONE})
    await dormant(session)
    await session.fail_to_resume()
    assert (await session.recover("recap"))["how"] == "recap"
    assert session.agent.prompts() == ["first"]
    await session.say("second")
    await session.say("third")
    recap, plain = session.agent.prompts()[1:]
    assert "[USER]: first" in recap
    assert "[ASSISTANT]: heard: first | memory: 0" in recap
    assert recap.partition("=== CURRENT REQUEST ===")[2].strip().startswith("second")
    assert plain == "third"
    assert await session.texts("user") == ["first", "second", "third"]


async def test_a_recap_that_was_not_accepted_is_sent_again(conversation: Conversations) -> None:
    """PROMPT-6 for the recap: an agent that answers its prompt with an error has not been told."""
    overloaded = {"steps": [], "error": {"code": -32603, "message": "overloaded"}}
    session = await conversation("plain", on={"session/prompt": {"match": "second", **overloaded}})
    await dormant(session)
    await session.recover("recap")
    await session.say("second")
    await session.say("third")
    assert "[USER]: first" in session.agent.prompts()[-1]


async def test_retry_token_asks_for_the_old_session_again(conversation: Conversations) -> None:
    """The agent's store was away for a moment: the old session is restored, with its memory."""
    session = await conversation(on={"session/resume": GONE})
    await dormant(session)
    await session.fail_to_resume()
    session.agent.update(on={})
    done = await session.recover("retry_token")
    assert done["how"] == "native"
    await session.say("second")
    assert (await session.texts("agent"))[-1] == "heard: second | memory: 1"
    assert (await session.refused("task.session.recover", action="retry_token")).reason == "not_possible"


async def test_retry_token_rejected_again_can_be_tried_again(conversation: Conversations) -> None:
    """A second no sets the same token aside again."""
    session = await conversation(on={"session/resume": GONE})
    await dormant(session)
    await session.fail_to_resume()
    await session.act("task.session.recover", action="retry_token")
    await session.event("session.resume.failed")
    assert "retry_token" in (await session.status())["recover_actions"]
    session.agent.update(on={})
    assert (await session.recover("retry_token"))["how"] == "native"


async def test_retry_token_ends_with_the_first_turn_of_a_new_session(conversation: Conversations) -> None:
    """Once a turn has ended in the new agent session, the old one is over."""
    session = await conversation(on={"session/resume": GONE})
    await dormant(session)
    await session.fail_to_resume()
    await session.say("second")
    assert (await session.refused("task.session.recover", action="retry_token")).reason == "not_possible"


async def test_recover_is_refused_while_a_turn_runs(conversation: Conversations) -> None:
    """What runs is cancelled first, by the person, not by the recovery."""
    session = await conversation(on={"session/prompt": {"match": "long", "steps": [{"mark": "runs"}, {"gate": "go"}]}})
    await session.begin()
    await session.send("long")
    await session.agent.until(session.agent.marks)
    assert (await session.refused("task.session.recover", action="fresh_start")).reason == "turn_running"
    session.agent.open_gate("go")
    assert (await session.turn_ended())["state"] == "completed"


async def test_tok_10_a_fresh_start_that_cannot_be_written_changes_nothing(killable: Backend, cast: Cast) -> None:
    """Its boundary finds no place in the history: refused, all is as it was, and nothing is started; later it works."""
    async with killable.client() as client:
        session = await cast.conversation(client, "history")
        await session.begin()
        await session.act("task.session.stop")
    await killable.restart()
    history = killable.home / "sessions" / f"{session.id}.jsonl"
    kept = history.rename(history.with_suffix(".kept"))
    history.mkdir()
    async with killable.client() as client:
        await session.follow(client)
        await session.refused("task.session.recover", action="fresh_start")
        assert await session.states() == ("CANCELLED", "REVIEW")
        assert (await session.queue())[1] == "stopped"
        assert session.agent.alive() == []
        history.rmdir()
        kept.rename(history)
        assert (await session.recover("fresh_start"))["how"] == "idle"
        await session.say("second")
        assert session.agent.prompts() == ["first", "second"]
