"""An agent that loses a session which it restores in the minute of its start is asked in the next one."""

from conversation import Conversation, Conversations


async def resumed_in_the_minute(session: Conversation) -> None:
    """Resumes until that falls into the minute of the agent's last start: the second time at the latest."""
    for _ in range(2):
        await session.lose_agent()
        await session.act("task.session.resume")
        asked = await session.event_where(
            "session.resume.progress", lambda p: p["stage"] in {"next_minute", "restoring"}
        )
        if asked["stage"] == "next_minute":
            return
        await session.event("session.resume.completed")
    raise AssertionError("the agent was asked twice within a minute")


async def test_the_agent_runs_and_is_not_asked_before_the_minute_is_over(conversation: Conversations) -> None:
    """The wait is a stage that people see, and a stop ends it at once; the token is kept."""
    session = await conversation("minute")
    await session.begin()
    token = (await session.status())["acp_session_id"]
    await resumed_in_the_minute(session)
    assert (await session.status())["stage"] == "next_minute"
    assert session.methods() == ["initialize"]
    await session.act("task.session.stop")
    assert (await session.status())["stage"] == ""
    assert session.methods() == ["initialize"]
    assert (await session.status())["acp_session_id"] == token


async def test_a_session_without_a_turn_is_not_waited_for(conversation: Conversations) -> None:
    """Nothing of it can be lost yet."""
    session = await conversation(
        "minute", on={"session/prompt": {"times": 1, "error": {"code": -32603, "message": "no"}}}
    )
    await session.begin()
    await session.lose_agent()
    await session.resume()
    assert "next_minute" not in {seen["stage"] for seen in session.seen("session.resume.progress")}
    assert session.methods() == ["initialize", "session/resume"]
