"""What the agent is asked at a start: cases A, B and C of build_resume_request, seen from the agent's side."""

import pytest

from backend import Backend
from conversation import Cast, Conversations
from kandev.domain.models import fingerprint

GONE = {"error": {"code": -32002, "message": "Session not found"}}


async def test_launch_makes_a_session_and_sends_the_description(conversation: Conversations) -> None:
    """A first start: session/new in the session's directory, then the description as the first prompt."""
    session = await conversation(description="build it")
    await session.begin()
    assert session.methods() == ["initialize", "session/new", "session/prompt"]
    assert session.agent.prompts() == ["build it"]
    asked = session.agent.requests("session/new")[0]["params"]
    assert asked == {"cwd": (await session.status())["worktree_path"], "mcpServers": []}


async def test_case_a_resumes_and_does_not_prompt(conversation: Conversations) -> None:
    """A token and an agent with session/resume: only that, nothing is prompted."""
    session = await conversation()
    await session.begin()
    await session.lose_agent()
    done = await session.resume()
    assert (done["how"], done["reason"]) == ("native", "session/resume")
    assert session.methods() == ["initialize", "session/resume"]


async def test_case_a_loads_where_the_agent_cannot_resume(conversation: Conversations) -> None:
    """A token and an agent that only loads: session/load, nothing is prompted."""
    session = await conversation(resume=False)
    await session.begin()
    await session.lose_agent()
    done = await session.resume()
    assert (done["how"], done["reason"]) == ("native", "session/load")
    assert session.methods() == ["initialize", "session/load"]


@pytest.mark.parametrize("method", ["load", "resume"])
async def test_wire_11_a_restore_names_the_same_directory(conversation: Conversations, method: str) -> None:
    """The token, the exact `cwd` of the first time, and `mcpServers` although empty."""
    session = await conversation(resume=method == "resume")
    await session.begin()
    token = session.agent.requests("session/prompt")[0]["params"]["sessionId"]
    await session.lose_agent()
    await session.resume()
    first = session.agent.requests("session/new")[0]["params"]
    asked = session.agent.requests(f"session/{method}")[0]["params"]
    assert asked == {"sessionId": token, "cwd": first["cwd"], "mcpServers": []}


@pytest.mark.parametrize("kind", ["plain", "history"])
async def test_case_a_without_the_flag_makes_a_new_session(conversation: Conversations, kind: str) -> None:
    """The token is stored whatever the flags, and an agent without native resume is never asked to load it."""
    session = await conversation(kind)
    await session.begin()
    before = (await session.status())["acp_session_id"]
    await session.lose_agent()
    await session.resume()
    assert session.methods() == ["initialize", "session/new"]
    assert (await session.status())["acp_session_id"] not in {before, ""}


async def test_case_a_by_the_command_line(conversation: Conversations) -> None:
    """An agent with a flag of its own gets the token behind it, and no session/load."""
    session = await conversation("flagged")
    await session.begin()
    token = session.agent.requests("session/prompt")[0]["params"]["sessionId"]
    assert fingerprint(token) == (await session.status())["acp_session_id"]
    await session.lose_agent()
    await session.resume()
    assert session.agent.events("start")[0]["argv"][2:] == []
    assert session.agent.events("start")[1]["argv"][2:] == ["--resume", token]
    assert session.methods() == ["initialize", "session/new"]


async def test_tok_5_a_flag_is_not_used_with_an_unproven_token(conversation: Conversations) -> None:
    """No turn has ended in the agent's session, so its command line does not name it."""
    session = await conversation("flagged", on={"session/prompt": {"steps": [{"die": 1}]}})
    await session.act("task.session.start")
    await session.event("session.agent_changed", is_agent_running=False)
    session.agent.update(on={})
    await session.resume()
    assert session.agent.events("start")[1]["argv"][2:] == []


async def test_case_b_boots_idle(conversation: Conversations) -> None:
    """No token and WAITING_FOR_INPUT: a new session, and nothing is prompted until a person writes."""
    session = await conversation(on={"session/resume": GONE})
    await session.begin()
    await session.lose_agent()
    await session.fail_to_resume()
    assert (await session.resume())["how"] == "idle"
    assert session.methods() == ["initialize", "session/new"]
    await session.say("second")
    assert session.agent.prompts() == ["first", "second"]


async def test_case_c_sends_the_description_that_no_turn_has_taken(killable: Backend, cast: Cast) -> None:
    """PROMPT-5: killed while STARTING, before the first prompt; the next backend launches and sends it, once."""
    async with killable.client() as client:
        session = await cast.conversation(client, start=[{"mark": "waits"}, {"gate": "go"}])
        await session.act("task.session.start")
        await session.agent.until(session.agent.marks)
        await killable.kill9()
    session.agent.open_gate("go")
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        await session.agent.until(session.agent.prompts)
        assert session.methods() == ["initialize", "session/new", "session/prompt"]
        await session.send("second")
        await session.agent.until(lambda: len(session.agent.prompts()) > 1)
    assert session.agent.prompts() == ["first", "second"]


async def test_case_c_does_not_repeat_a_description_that_a_turn_has_taken(killable: Backend, cast: Cast) -> None:
    """Killed in its first turn: the prompt may have worked, so the resume does not send it again."""
    async with killable.client() as client:
        session = await cast.conversation(client, on={"session/prompt": {"times": 1, "steps": ["hang"]}})
        await session.act("task.session.start")
        await session.agent.until(session.agent.prompts)
        await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        assert (await session.resume())["how"] == "native"
        assert session.methods() == ["initialize", "session/resume"]
        assert await session.queue() == ([], "interrupted")
