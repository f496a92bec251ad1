"""Amp by its own command line, as a stand-in that speaks what its manual says: it cannot run without an account."""

import json
from pathlib import Path

import pytest

from backend import Backend
from stand_ins import Stage, Talk

NOBODYS = "T-11111111-2222-4333-8444-555555555555"


@pytest.fixture
async def stage(backend: Backend, tmp_path: Path) -> Stage:
    """A running backend with the stand-ins."""
    made = Stage(backend, tmp_path / "agents")
    await backend.start()
    return made


AMP_KNOWS = "I know apple."


async def test_amp_goes_on_in_its_thread(stage: Stage) -> None:
    """Turns end with its last messages, in one process; after a kill it continues the stored thread."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "amp")
        await talk.ended()
        assert (await talk.say("tool list"))["state"] == "completed"
        assert len(stage.starts()) == 1
        await stage.backend.kill9()
    token = stage.row()["resume_token"]
    assert token.startswith("T-")
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        assert (await talk.say("what?"))["state"] == "completed"
        assert (await talk.status())["how"] == "native"
        assert await talk.said() == ["remember apple", AMP_KNOWS, "tool list", AMP_KNOWS, "what?", AMP_KNOWS]
        (call,) = [m for m in await talk.transcript() if m["type"] == "tool_call"]
        assert (call["content"], call["metadata"]["status"]) == ("list", "completed")
    assert stage.starts()[1] == ["threads", "continue", token, "-x", "--stream-json", "--stream-json-input"]


async def test_crash_the_backend_is_killed_in_a_turn_of_amp(stage: Stage) -> None:
    """The turn is interrupted; the thread has the prompt, and goes on."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "amp")
        await talk.ended()
        await talk.send("slow 100")
        await stage.backend.until(lambda: "slow 100" in next(stage.directory.glob("session-*")).read_text())
        await stage.backend.kill9()
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        assert (await talk.status())["interrupted"]
        assert (await talk.say("what?"))["state"] == "completed"
        assert await talk.said() == ["remember apple", AMP_KNOWS, "slow 100", "what?", AMP_KNOWS]


async def test_tok_1_amp_does_not_know_the_thread(stage: Stage) -> None:
    """It tells only when a prompt is there, and ends: the token is set aside, the prompt is not sent by itself."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "amp")
        await talk.ended()
        await stage.backend.kill9()
    stage.change("resume_token", NOBODYS)
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        assert (await talk.say("what?"))["state"] == "failed"
        await client.wait_event("session.agent_changed", lambda changed: not changed["is_agent_running"])
        status = await talk.status()
        assert (status["queue_held"], status["acp_session_id"]) == ("token_rejected", "")
        assert (await talk.notices()).count("rejected") == 1
        assert NOBODYS not in json.dumps(await talk.transcript())
        assert (await talk.say("what?"))["state"] == "completed"


async def test_tok_13_amp_is_not_logged_in(stage: Stage) -> None:
    """It would take the prompt for the code of a login; that fails, and the command for it is named."""
    stage.set("login")
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "amp")
        assert (await talk.ended())["state"] == "failed"
        assert (await talk.status())["queue_held"] == "login_required"
        notice = next(m for m in await talk.transcript() if m["metadata"].get("kind") == "login")
        assert notice["metadata"]["command"] == "amp login"


async def test_prompt_7_a_cancel_ends_amp(stage: Stage) -> None:
    """It cannot be asked to stop, so its process is ended; the next message continues the thread."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "amp")
        await talk.ended()
        seen = await talk.send("slow 100")
        await stage.backend.until(lambda: "slow 100" in next(stage.directory.glob("session-*")).read_text())
        await talk.call("task.session.cancel")
        assert (await talk.ended(after=seen))["state"] == "cancelled"
        assert (await talk.say("what?"))["state"] == "completed"
        assert (await talk.said())[-1] == AMP_KNOWS
    assert stage.starts()[1][:2] == ["threads", "continue"]


async def test_amp_begins_with_a_copy_of_another_thread(stage: Stage) -> None:
    """Its own command copies; the copy is continued, and does not touch the first thread."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "amp")
        await talk.ended()
        token = stage.row()["resume_token"]
        copy = await talk.fork()
        assert (await copy.say("remember pear"))["state"] == "completed"
        assert (await copy.said())[-1] == "I know apple pear."
        status = await copy.status()
        assert (status["how"], await copy.notices()) == ("native", [])
        assert (await talk.say("what?"))["state"] == "completed"
        assert (await talk.said())[-1] == AMP_KNOWS
    threads = [start[2] for start in stage.starts() if start[:2] == ["threads", "continue"]]
    assert [start for start in stage.starts() if start[:2] == ["threads", "fork"]] == [["threads", "fork", token]]
    assert len(threads) == 1
    assert threads[0] != token


async def test_wire_12_amp_gets_its_mode_at_its_start(stage: Stage) -> None:
    """Nothing can be told to it while it runs: the mode is kept, and stands on the next command line."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "amp")
        await talk.ended()
        assert not (await talk.call("session.set_mode", mode_id="deep"))["applied"]
        await stage.backend.kill9()
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        assert (await talk.say("what?"))["state"] == "completed"
    assert ["--mode" in start for start in stage.starts()] == [False, True]
    assert stage.starts()[1][-2:] == ["--mode", "deep"]


async def test_a_copy_is_made_by_the_command_line_too(stage: Stage) -> None:
    """`kandev fork` makes the session, and the first message to it begins it."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "amp")
        await talk.ended()
        made = await stage.backend.cli("fork", talk.ids["session_id"])
        assert (made.code, made.answer["session"]["task_id"]) == (0, talk.ids["task_id"])
        sent = await stage.backend.cli("send", made.answer["session"]["id"], "what?", "--wait")
        assert sent.code == 0
        copy = Talk(client, {**talk.ids, "session_id": made.answer["session"]["id"]})
        assert (await copy.said())[-1] == AMP_KNOWS


async def test_a_thread_that_cannot_be_copied_leaves_the_recap(stage: Stage) -> None:
    """Newer versions have no such command any more: the session begins empty, says why, and takes the recap along."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "amp")
        await talk.ended()
        stage.set("forkless")
        copy = await talk.fork()
        assert (await copy.say("what?"))["state"] == "completed"
        assert (await copy.status())["how"] == "recap"
        assert "The fork command has been deprecated." in (await copy.transcript())[0]["content"]
    threads = [path.read_text() for path in stage.directory.glob("session-*")]
    assert any("remember apple" in text and "what?" in text for text in threads)
