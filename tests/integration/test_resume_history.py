"""History injection: the first prompt after a restart carries the recorded conversation, once."""

from typing import Any

import pytest

from backend import Backend
from conversation import Cast, Conversations

HEAD = "RESUME CONTEXT FOR CONTINUING TASK"
REQUEST = "=== CURRENT REQUEST ==="


async def test_the_first_prompt_carries_the_context_once(conversation: Conversations) -> None:
    """The agent boots idle; the first prompt goes out inside the history, the second as it is."""
    session = await conversation("history", description="remember apple")
    await session.begin()
    await session.lose_agent()
    assert (await session.resume())["how"] == "injection"
    assert session.methods() == ["initialize", "session/new"]
    await session.say("what is the word?")
    await session.say("and now?")
    context, plain = session.agent.prompts()[1:]
    assert context.startswith(HEAD)
    history, _, request = context.partition(REQUEST)
    assert "[USER]: remember apple" in history
    assert "[ASSISTANT]: heard: remember apple | memory: 0" in history
    assert request.strip().startswith("what is the word?")
    assert "You are continuing work on the above task" in request
    assert plain == "and now?"


async def test_after_kill_9_of_the_backend_too(killable: Backend, cast: Cast) -> None:
    """Killed between two turns, the next backend injects what the last one recorded; a prompt alone is enough."""
    async with killable.client() as client:
        session = await cast.conversation(client, "history", description="remember pear")
        await session.begin()
        await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        await session.say("what is the word?")
    assert "[USER]: remember pear" in session.agent.prompts()[1]


FAILURES: dict[str, Any] = {
    "an error": {"steps": [], "error": {"code": -32603, "message": "overloaded"}},
    "the agent dies": {"steps": [{"die": 1}]},
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_prompt_6_a_failed_first_prompt_injects_again(conversation: Conversations, failure: Any) -> None:
    """What the agent never accepted was not told to it, so the next prompt carries the context."""
    session = await conversation("history", on={"session/prompt": {"match": HEAD, "times": 1, **failure}})
    await session.begin()
    await session.lose_agent()
    await session.resume()
    await session.say("second")
    await session.say("third")
    await session.say("fourth")
    injected = [prompt.startswith(HEAD) for prompt in session.agent.prompts()]
    assert injected == [False, True, True, False]
    assert session.agent.prompts()[2].count("third") == 1


async def test_hist_9_what_was_injected_is_not_recorded(conversation: Conversations) -> None:
    """The transcript has what the person wrote, and the next context does not hold the last one."""
    session = await conversation("history", on={"session/prompt": {"steps": [{"text": "yes"}]}})
    await session.begin()
    for words in ("second", "third"):
        await session.lose_agent()
        await session.resume()
        await session.say(words)
    assert await session.texts("user") == ["first", "second", "third"]
    context = session.agent.prompts()[-1]
    assert context.count(HEAD) == 1
    assert context.count("=== EXECUTION HISTORY ===") == 1
    assert [context.count(f"[USER]: {words}") for words in ("first", "second", "third")] == [1, 1, 0]


async def test_hist_10_tool_calls_and_their_results_are_told(conversation: Conversations) -> None:
    """A tool's name, and its result in the specification's form."""
    steps = [{"tool": "grep", "content": "three hits"}, {"text": "found"}]
    session = await conversation("history", on={"session/prompt": {"match": "^first", "steps": steps}})
    await session.begin()
    await session.lose_agent()
    await session.say("second")
    context = session.agent.prompts()[1]
    assert "[TOOL CALL: grep]" in context
    assert "[TOOL RESULT: grep] three hits" in context


async def test_a_launch_injects_nothing(conversation: Conversations) -> None:
    """A new session has no history, and the agent that ran all the time needs none."""
    session = await conversation("history")
    await session.begin()
    await session.say("second")
    assert session.agent.prompts() == ["first", "second"]


async def test_a_native_agent_is_told_no_history(conversation: Conversations) -> None:
    """The flag is off, so neither recorded nor injected, even where its own memory is gone."""
    session = await conversation(resume=False, load=False)
    await session.begin()
    await session.lose_agent()
    await session.say("second")
    assert session.agent.prompts() == ["first", "second"]


async def test_an_agent_with_neither_flag_boots_idle(conversation: Conversations) -> None:
    """It remembers nothing, which is said; a recap is offered, and the next prompt goes out as it is."""
    session = await conversation("plain")
    await session.begin()
    await session.lose_agent()
    assert (await session.resume())["how"] == "idle"
    assert session.methods() == ["initialize", "session/new"]
    assert (await session.notice("resumed"))["metadata"]["actions"] == ["recap"]
    await session.say("second")
    assert session.agent.prompts() == ["first", "second"]
    assert (await session.texts("agent"))[-1] == "heard: second | memory: 0"
