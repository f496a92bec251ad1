"""WIRE-12: mode, model and options are what they were, before the first prompt after a resume."""

from typing import Any

import pytest

from conversation import Conversation, Conversations

MODES = ["default", "plan"]


def selects(*, model: str = "small") -> list[dict[str, Any]]:
    """Two options of an agent: its model, and how hard it thinks."""
    choices = {"model": ("small", "large"), "effort": ("low", "high")}
    return [
        {
            "id": name,
            "name": name.title(),
            "type": "select",
            "category": "model" if name == "model" else "thought_level",
            "currentValue": model if name == "model" else values[0],
            "options": [{"value": value, "name": value} for value in values],
        }
        for name, values in choices.items()
    ]


STATE = {"on": {"session/prompt": {"match": "state", "steps": ["state"]}}}


async def said(session: Conversation) -> str:
    """The state that the agent says it is in."""
    await session.say("state")
    return str((await session.texts("agent"))[-1])


@pytest.mark.parametrize("method", ["resume", "load"])
async def test_wire_12_the_mode_is_set_again(conversation: Conversations, method: str) -> None:
    """An agent that comes back in its default mode is set before anything is prompted."""
    session = await conversation(resume=method == "resume", modes=MODES, **STATE)
    await session.begin()
    await session.call("session.set_mode", mode_id="plan")
    await session.lose_agent()
    await session.resume()
    assert session.methods() == ["initialize", f"session/{method}", "session/set_mode"]
    assert (await said(session)).startswith("mode: plan")
    assert (await session.follow(session.client))["mode"] == "plan"


async def test_wire_12_a_mode_that_came_back_is_not_set_again(conversation: Conversations) -> None:
    """The agent restores its mode itself."""
    session = await conversation(modes=MODES, restore_modes=True, **STATE)
    await session.begin()
    await session.call("session.set_mode", mode_id="plan")
    await session.say("second")
    await session.lose_agent()
    await session.resume()
    assert session.methods() == ["initialize", "session/resume"]
    assert (await said(session)).startswith("mode: plan")


async def test_wire_12_options_are_set_again(conversation: Conversations) -> None:
    """What a person chose, in a session that was made new as well as in a restored one."""
    session = await conversation(options=selects(), **STATE)
    await session.begin()
    await session.call("session.set_config_option", config_id="effort", value="high")
    await session.lose_agent()
    await session.resume()
    assert session.methods() == ["initialize", "session/resume", "session/set_config_option"]
    assert '"effort": "high"' in await said(session)
    await session.recover("fresh_start")
    assert '"effort": "high"' in await said(session)


async def test_wire_12_the_model_of_the_task_is_set_at_every_start(conversation: Conversations) -> None:
    """At the launch, and again after a resume; the mode comes after it."""
    task = {"model": "large", "mode": "plan"}
    session = await conversation(task=task, options=selects(), modes=MODES, **STATE)
    await session.begin()
    set_both = ["session/set_config_option", "session/set_mode"]
    assert session.methods() == ["initialize", "session/new", *set_both, "session/prompt"]
    await session.lose_agent()
    await session.resume()
    assert session.methods() == ["initialize", "session/resume", *set_both]
    assert '"model": "large"' in await said(session)


async def test_wire_12_a_setting_without_an_agent_counts_at_the_next_start(conversation: Conversations) -> None:
    """Chosen while no agent runs, it is kept, and set when one does."""
    session = await conversation(modes=MODES, **STATE)
    await session.begin()
    await session.lose_agent()
    assert (await session.call("session.set_mode", mode_id="plan"))["applied"] is False
    assert (await said(session)).startswith("mode: plan")


async def test_wire_12_no_prompt_while_the_mode_is_not_restored(conversation: Conversations) -> None:
    """A read-only session could write again: the prompt that woke it waits until a person agrees."""
    session = await conversation(modes=MODES)
    await session.begin()
    await session.call("session.set_mode", mode_id="plan")
    await session.lose_agent()
    session.agent.update(modes=["default"])
    await session.send("second")
    await session.event("session.resume.completed")
    assert await session.queue() == (["second"], "mode_not_restored")
    assert session.agent.prompts() == ["first"]
    assert (await session.notice("mode_not_restored"))["metadata"]["actions"] == ["queue_resume"]
    status = await session.status()
    assert (status["state"], status["needs"]) == ("WAITING_FOR_INPUT", "decision")
    await session.act("message.queue.resume")
    await session.turn_ended()
    assert session.agent.prompts() == ["first", "second"]
