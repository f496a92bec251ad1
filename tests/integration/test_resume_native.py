"""Native resume: by session/resume or session/load the agent restores its own memory; what it replays stays out."""

from typing import Any

import pytest

from conversation import Conversation, Conversations
from kandev.domain.models import fingerprint

METHOD_NOT_FOUND = {"error": {"code": -32601, "message": "Method not found"}}
SHOWN = ("session.message.added", "session.message.delta", "session.message.updated")


@pytest.mark.parametrize("method", ["resume", "load"])
async def test_the_agent_remembers(conversation: Conversations, method: str) -> None:
    """After the restore the agent knows the turns before it, and goes on in the same session."""
    session = await conversation(resume=method == "resume")
    await session.begin()
    await session.lose_agent()
    await session.resume()
    await session.say("second")
    assert (await session.texts("agent"))[-1] == "heard: second | memory: 1"
    tokens = {prompt["params"]["sessionId"] for prompt in session.agent.requests("session/prompt")}
    assert len(tokens) == 1


@pytest.mark.parametrize("result", [None, {}, {"sessionId": "another"}, {"models": None, "extra": [1]}])
@pytest.mark.parametrize("method", ["resume", "load"])
async def test_tok_7_any_result_is_a_success(conversation: Conversations, method: str, result: Any) -> None:
    """Null, nothing, another sessionId, other keys: restored, and the session keeps the id that was asked for."""
    session = await conversation(resume=method == "resume", on={f"session/{method}": {"result": result}})
    await session.begin()
    token = session.agent.requests("session/prompt")[0]["params"]["sessionId"]
    await session.lose_agent()
    assert (await session.resume())["how"] == "native"
    await session.say("second")
    assert session.agent.requests("session/prompt")[1]["params"]["sessionId"] == token
    assert (await session.status())["acp_session_id"] == fingerprint(token)


# Fallback: no session/load after all


async def lost_by_fallback(session: Conversation) -> Any:
    """Begins, loses the agent and resumes; the outcome must be a new session with a visible mark."""
    await session.begin()
    before = (await session.status())["acp_session_id"]
    await session.lose_agent()
    done = await session.resume()
    assert done["how"] == "fresh"
    assert done["lost"]
    assert (await session.status())["acp_session_id"] not in {before, ""}
    assert (await session.notice("cannot_restore"))["metadata"]["actions"] == ["recap"]
    return done


async def test_tok_8_method_not_found_falls_back_in_the_same_resume(conversation: Conversations) -> None:
    """TOK-4: advertised, then refused: session/new in the same process, the new token stored, a mark that says so."""
    session = await conversation(on={"session/resume": METHOD_NOT_FOUND, "session/load": METHOD_NOT_FOUND})
    await lost_by_fallback(session)
    assert session.methods() == ["initialize", "session/resume", "session/load", "session/new"]
    assert len(session.agent.pids()) == 2
    await session.say("second")
    assert session.agent.prompts() == ["first", "second"]


async def test_tok_8_this_version_is_not_asked_again(conversation: Conversations) -> None:
    """What a version of an agent cannot do is remembered; another version is asked."""
    session = await conversation(on={"session/resume": METHOD_NOT_FOUND, "session/load": METHOD_NOT_FOUND})
    await lost_by_fallback(session)
    await session.say("second")
    await session.lose_agent()
    session.agent.update(on={})
    await session.resume()
    assert session.methods() == ["initialize", "session/new"]
    await session.say("third")
    await session.lose_agent()
    session.agent.update(version="2")
    assert (await session.resume())["how"] == "native"
    assert session.methods() == ["initialize", "session/resume"]


async def test_load_is_tried_where_resume_is_not_known(conversation: Conversations) -> None:
    """The agent advertises both and has only session/load."""
    session = await conversation(on={"session/resume": METHOD_NOT_FOUND})
    await session.begin()
    await session.lose_agent()
    assert (await session.resume())["reason"] == "session/load"
    assert session.methods() == ["initialize", "session/resume", "session/load"]
    await session.say("second")
    assert (await session.texts("agent"))[-1] == "heard: second | memory: 1"


async def test_tok_4_an_agent_that_does_not_offer_to_load(conversation: Conversations) -> None:
    """The flag says native, the agent's capabilities say no: a new session, and a visible mark."""
    session = await conversation(resume=False, load=False)
    await lost_by_fallback(session)
    assert session.methods() == ["initialize", "session/new"]


# The replay


async def nothing_shown_of_the_replay(session: Conversation) -> None:
    """Resumes and prompts: neither stored nor told is anything but the new turns."""
    before = await session.transcript()
    await session.lose_agent()
    assert (await session.resume())["how"] == "native"
    assert session.seen(*SHOWN) == []
    turn = await session.say("third")
    assert {one["message"]["turn_id"] for one in session.seen(*SHOWN) if "message" in one} == {turn["id"]}
    assert turn["usage"] == {}
    await session.agent.until(lambda: len(session.agent.marks()) == 2)
    await session.say("fourth")  # what came late, in spite of the wait for a quiet moment, is in the transcript by now
    now = await session.transcript()
    assert now[: len(before)] == before
    said = [message["content"] for message in now[len(before) :]]
    assert said == ["third", "heard: third | memory: 2", "fourth", "heard: fourth | memory: 3"]


USAGE = {"update": {"sessionUpdate": "usage_update", "used": 5, "size": 10}}
REPLAYED = {"mark": "replayed"}
SCRIPTS = {
    "load": {"session/load": {"steps": ["replay", REPLAYED]}},
    "usage": {"session/load": {"steps": ["replay", USAGE, REPLAYED]}},
    "new ids": {"session/load": {"steps": [{"replay": True, "ids": "new"}, REPLAYED]}},
    "no ids": {"session/load": {"steps": [{"replay": True, "ids": "none"}, REPLAYED]}},
    "resume replays": {"session/resume": {"steps": ["replay", REPLAYED]}},
    "after the answer": {"session/load": {"steps": [], "after": ["replay", REPLAYED]}},
    "long after it": {"session/load": {"steps": [], "after": [{"replay": True, "delay": 0.05}, REPLAYED]}},
}


@pytest.mark.parametrize("rules", SCRIPTS.values(), ids=SCRIPTS)
async def test_hist_1_a_replay_is_neither_stored_nor_told(conversation: Conversations, rules: Any) -> None:
    """Text, thoughts, tool calls and usage that come back with a load are dropped, before and after its answer."""
    turn = {"match": "second", "steps": [{"thought": "hm"}, {"tool": "ls"}]}
    session = await conversation(resume="session/resume" in rules, on={"session/prompt": turn, **rules})
    await session.begin()
    await session.lose_agent()
    await session.resume()
    await session.say("second")
    await nothing_shown_of_the_replay(session)


async def test_hist_2_the_gate_lets_through_what_is_no_content(conversation: Conversations) -> None:
    """Commands, mode, options and the last plan of a replay are shown, and the plan is no message."""
    updates = [
        {"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "test", "description": "d"}]},
        {"sessionUpdate": "current_mode_update", "currentModeId": "plan"},
        {"sessionUpdate": "plan", "entries": [{"content": "old", "status": "pending", "priority": "high"}]},
        {"sessionUpdate": "plan", "entries": [{"content": "new", "status": "pending", "priority": "high"}]},
    ]
    session = await conversation(resume=False, on={"session/load": {"steps": [{"update": one} for one in updates]}})
    await session.begin()
    await session.lose_agent()
    before = await session.transcript()
    await session.resume()
    await session.event("session.plan_changed")
    snapshot = await session.follow(session.client)
    assert [command["name"] for command in snapshot["commands"]] == ["test"]
    assert snapshot["mode"] == "plan"
    assert [entry["content"] for entry in snapshot["plan"]] == ["new"]
    assert await session.transcript() == before


async def test_hist_3_a_load_that_fails_half_way_leaves_the_transcript(conversation: Conversations) -> None:
    """The agent dies in the middle of its replay: token kept, nothing of the replay stored, the next resume is good."""
    session = await conversation(resume=False, on={"session/load": {"times": 1, "steps": [{"replay": 3}, {"die": 5}]}})
    await session.begin()
    await session.say("second")
    before = await session.transcript()
    await session.lose_agent()
    failed = await session.fail_to_resume()
    assert failed["cause"] == "agent_died"
    told = await session.transcript()
    assert told[: len(before)] == before
    assert [message["author_type"] for message in told[len(before) :]] == ["system"]
    assert (await session.resume())["how"] == "native"


async def test_the_outcome_is_stored_with_its_stages(conversation: Conversations) -> None:
    """task.session.get tells of each start how it went, how long each stage took, and what was replayed."""
    session = await conversation(resume=False)
    await session.begin()
    await session.lose_agent()
    await session.resume()
    newest, launch = (await session.call("task.session.get"))["resumes"]
    assert (newest["how"], launch["how"]) == ("native", "fresh")
    assert {"checking", "workspace", "launching", "starting_agent", "restoring"} <= newest["stages"].keys()
    assert newest["replayed"] == {"user_message_chunk": 1, "agent_message_chunk": 1}
