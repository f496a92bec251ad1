"""Claude Code by its own command line, as a stand-in that speaks what it does, through the whole server.

The real one is in tests/real_agents/test_claude_code.py.
"""

import json
from pathlib import Path

import pytest

from backend import Backend
from stand_ins import Stage, Talk
from wire_client import CallFailed

NOBODYS = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
async def stage(backend: Backend, tmp_path: Path) -> Stage:
    """A running backend with the stand-ins."""
    made = Stage(backend, tmp_path / "agents")
    await backend.start()
    return made


KNOWS = "I know apple, and say so."


async def test_claude_code_goes_on_at_its_last_message(stage: Stage) -> None:
    """After a kill between two turns it gets the token and the last message of the last turn on its command line."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        assert (await talk.ended())["state"] == "completed"
        await stage.backend.kill9()
    row = stage.row()
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        assert (await talk.say("what?"))["state"] == "completed"
        assert (await talk.status())["how"] == "native"
        assert await talk.said() == ["remember apple", KNOWS, "what?", KNOWS]
    first, second = stage.starts()
    assert "--resume" not in first
    assert second[-4:] == ["--resume", row["resume_token"], "--resume-session-at", row["last_message_uuid"]]


async def test_crash_the_backend_is_killed_while_claude_code_speaks(stage: Stage) -> None:
    """What was said is kept once; the session is resumed with all that the agent recorded, also of that turn."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        await talk.ended()
        seen = await talk.send("slow 100")
        await client.wait_event("session.message.delta", lambda delta: "piece 3" in delta["text"], after=seen)
        await stage.backend.kill9()
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        assert (await talk.status())["interrupted"]
        partial = (await talk.said())[-1]
        assert partial.startswith("piece 1 piece 2 piece 3 ")
        assert (await talk.say("what?"))["state"] == "completed"
        assert await talk.said() == ["remember apple", KNOWS, "slow 100", partial, "what?", KNOWS]
    assert "--resume" in stage.starts()[-1]
    assert "--resume-session-at" not in stage.starts()[-1]


async def test_tok_5_a_first_turn_that_was_killed_is_resumed(stage: Stage) -> None:
    """The token is not proven, but the agent may know it; if it does not, a new session is made in silence."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code", "slow 100")
        await client.wait_event("session.message.delta")
        await stage.backend.kill9()
    token = stage.row()["resume_token"]
    (stage.directory / f"session-{token}.json").unlink()
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        assert (await talk.say("what?"))["state"] == "completed"
        assert (await talk.said())[-1] == "I know nothing, and say so."
        assert await talk.notices() == ["interrupted"]
    assert ["--resume" in start for start in stage.starts()] == [False, True, False]
    assert stage.row()["resume_token"] not in {"", token}


@pytest.mark.parametrize("way", ["result", "quiet"])
async def test_tok_1_claude_code_does_not_know_the_session(stage: Stage, way: str) -> None:
    """Whether it says so in a result or only by its end: the token is set aside, and the next message starts anew."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        await talk.ended()
        await stage.backend.kill9()
    stage.change("resume_token", NOBODYS)
    stage.set(way)
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        with pytest.raises(CallFailed) as refused:
            await talk.call("task.session.resume", wait=True)
        assert refused.value.reason == "unknown_session"
        status = await talk.status()
        assert (status["state"], status["queue_held"]) == ("WAITING_FOR_INPUT", "token_rejected")
        assert NOBODYS not in json.dumps(await talk.transcript())
        assert (await talk.say("what?"))["state"] == "completed"
        assert (await talk.said())[-1] == "I know nothing, and say so."


async def test_tok_16_claude_code_does_not_know_the_message(stage: Stage) -> None:
    """The second try goes on at the end of its record, and nothing is lost."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        await talk.ended()
        await stage.backend.kill9()
    stage.change("last_message_uuid", NOBODYS)
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        assert (await talk.say("what?"))["state"] == "completed"
        assert (await talk.said())[-1] == KNOWS
        assert (await talk.status())["how"] == "native"
    assert ["--resume-session-at" in start for start in stage.starts()] == [False, True, False]


async def test_tok_6_the_last_message_outlives_a_turn_that_brings_none(stage: Stage) -> None:
    """A cancelled turn has none: the stored one stands, and is not gone on at."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        await talk.ended()
        stored = stage.row()["last_message_uuid"]
        seen = await talk.send("slow 100")
        await client.wait_event("session.message.delta", after=seen)
        await talk.call("task.session.cancel")
        assert (await talk.ended(after=seen))["state"] == "cancelled"
        assert stored
        assert stage.row()["last_message_uuid"] == stored
        await stage.backend.kill9()
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        await talk.say("what?")
    assert "--resume-session-at" not in stage.starts()[-1]


async def test_prompt_7_a_cancel_interrupts_the_turn(stage: Stage) -> None:
    """The process goes on, and takes the next prompt."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        await talk.ended()
        seen = await talk.send("slow 100")
        await client.wait_event("session.message.delta", after=seen)
        await talk.call("task.session.cancel")
        assert (await talk.ended(after=seen))["stop_reason"] == "cancelled"
        assert (await talk.say("what?"))["state"] == "completed"
    assert len(stage.starts()) == 1


@pytest.mark.parametrize("option", ["allow_once", "allow_always", "deny"])
async def test_perm_1_each_answer_reaches_claude_code(stage: Stage, option: str) -> None:
    """Once allows this call as it was asked, always hands back the rule that was suggested, deny says why."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        await talk.ended()
        seen = await talk.send("tool list")
        request = (await client.wait_event("permission.requested", after=seen))["request"]
        assert [one["name"] for one in request["options"]] == ["Allow once", "Always allow: Bash(list *)", "Deny"]
        await talk.call("permission.respond", request_id=request["id"], option_id=option)
        assert (await talk.ended(after=seen))["state"] == "completed"
        (call,) = [m for m in await talk.transcript() if m["type"] == "tool_call"]
        assert (call["content"], call["metadata"]["kind"]) == ("list", "execute")
        assert call["metadata"]["status"] == ("failed" if option == "deny" else "completed")
    answer = json.loads((stage.directory / "answer-list.json").read_text())
    rules = [rule["ruleContent"] for one in answer.get("updatedPermissions", ()) for rule in one["rules"]]
    expected = {
        "allow_once": ("allow", {"command": "list"}, []),
        "allow_always": ("allow", {"command": "list"}, ["list *"]),
        "deny": ("deny", None, []),
    }
    assert (answer["behavior"], answer.get("updatedInput"), rules) == expected[option]


async def test_wire_14_a_cancel_answers_what_is_asked(stage: Stage) -> None:
    """The open question is refused, the turn ends as cancelled."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        await talk.ended()
        seen = await talk.send("tool list")
        await client.wait_event("permission.requested", after=seen)
        await talk.call("task.session.cancel")
        assert (await talk.ended(after=seen))["state"] == "cancelled"
        assert await client.call("permission.list", {"session_id": talk.ids["session_id"]}) == {"permissions": []}
    answer = json.loads((stage.directory / "answer-list.json").read_text())
    assert (answer["behavior"], answer["interrupt"]) == ("deny", True)


async def test_perm_2_a_question_does_not_outlive_its_process(stage: Stage) -> None:
    """A permission request that is open when everything is killed is expired after the start."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        await talk.ended()
        seen = await talk.send("tool list")
        request = (await client.wait_event("permission.requested", after=seen))["request"]
        await stage.backend.kill9()
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        with pytest.raises(CallFailed) as refused:
            await talk.call("permission.respond", request_id=request["id"], option_id="allow_once")
        assert refused.value.reason == "expired"
        (call,) = [m for m in await talk.transcript() if m["type"] == "tool_call"]
        assert call["metadata"]["status"] == "unknown"


async def test_perm_2_a_question_of_an_agent_that_lives_on_is_answered(stage: Stage) -> None:
    """Detached, it outlives the kill: what it asked is answered by the next backend, with what was suggested."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code", runtime="detached")
        await talk.ended()
        seen = await talk.send("tool list")
        request = (await client.wait_event("permission.requested", after=seen))["request"]
        await stage.backend.kill9()
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        await talk.call("permission.respond", request_id=request["id"], option_id="allow_always")
        assert (await talk.ended())["state"] == "completed"
        (call,) = [m for m in await talk.transcript() if m["type"] == "tool_call"]
        assert call["metadata"]["status"] == "completed"
        await talk.call("task.session.stop")
    answer = json.loads((stage.directory / "answer-list.json").read_text())
    assert (answer["updatedInput"], len(answer["updatedPermissions"])) == ({"command": "list"}, 1)
    assert len(stage.starts()) == 1


async def test_crash_a_turn_goes_on_while_no_backend_runs(stage: Stage) -> None:
    """Detached, it speaks on; the next backend reads on exactly where the last one stood, within a message."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code", "slow 40", runtime="detached")
        await client.wait_event("session.message.delta", lambda delta: "piece 3" in delta["text"])
        await stage.backend.kill9()
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        if (await talk.status())["state"] == "RUNNING":
            assert (await talk.ended())["state"] == "completed"
        pieces = "".join(f"piece {number} " for number in range(1, 41))
        assert await talk.said() == ["slow 40", pieces]
        assert (await talk.say("what?"))["state"] == "completed"
        assert (await talk.status())["how"] == "attached"
        await talk.call("task.session.stop")
    assert len(stage.starts()) == 1


async def test_wire_11_tool_servers_are_told_at_each_start(stage: Stage) -> None:
    """With their variables resolved; one that does not start costs its tools, and not the session."""
    await stage.backend.stop()
    stage.backend.environment["ISSUES_TOKEN"] = "abc"
    stage.backend.config += """
[[agents.claude-code.mcp_servers]]
name = "issues"
command = "issues-mcp"
args = ["--read-only"]
env = { TOKEN = "$ISSUES_TOKEN" }

[[agents.claude-code.mcp_servers]]
name = "broken"
type = "http"
url = "http://127.0.0.1:9/mcp"
headers = { Authorization = "xyz" }
"""
    await stage.backend.start()
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        assert (await talk.ended())["state"] == "completed"
    told = [json.loads(line) for line in (stage.directory / "controls.jsonl").read_text().splitlines()]
    assert [request["subtype"] for request in told] == ["initialize", "mcp_set_servers"]
    assert told[1]["servers"] == {
        "issues": {"command": "issues-mcp", "args": ["--read-only"], "env": {"TOKEN": "abc"}},
        "broken": {"type": "http", "url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "xyz"}},
    }


async def test_state_11_an_interrupt_that_is_not_heeded(stage: Stage) -> None:
    """After its time the process is ended; the next message resumes."""
    await stage.backend.stop()
    stage.backend.environment["KANDEV__TIMING__CANCEL_FORCE_S"] = "1"
    stage.set("deaf")
    await stage.backend.start()
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        await talk.ended()
        seen = await talk.send("slow 300")
        await client.wait_event("session.message.delta", after=seen)
        await talk.call("task.session.cancel")
        assert (await talk.ended(after=seen))["state"] == "cancelled"
        assert (await talk.say("what?"))["state"] == "completed"
        assert (await talk.said())[-1] == KNOWS
    assert "--resume" in stage.starts()[-1]


async def test_tok_13_claude_code_is_not_logged_in(stage: Stage) -> None:
    """Its own words hold the queue and name its command; after the login the same session goes on."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        await talk.ended()
        token = stage.row()["resume_token"]
        stage.set("login")
        assert (await talk.say("what?"))["state"] == "failed"
        assert (await talk.status())["queue_held"] == "login_required"
        notice = (await talk.transcript())[-1]
        assert (notice["metadata"]["kind"], notice["metadata"]["command"]) == ("login", "claude auth login")
        assert "Please run /login" not in (await talk.said())[-1]
        (stage.directory / "login").unlink()
        assert (await talk.say("what?"))["state"] == "completed"
        assert stage.row()["resume_token"] == token


async def test_wire_12_mode_and_model_are_set_at_each_start(stage: Stage) -> None:
    """By control requests, before the first prompt; what it offers is shown."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        await talk.ended()
        assert (await talk.call("session.set_mode", mode_id="plan"))["applied"]
        snapshot = await talk.follow(client)
        assert (snapshot["mode"], [c["name"] for c in snapshot["commands"]]) == ("plan", ["compact"])
        await stage.backend.kill9()
    await stage.backend.start()
    async with stage.backend.client() as client:
        await talk.follow(client)
        await talk.call("task.session.resume", wait=True)
        assert (await talk.follow(client))["mode"] == "plan"


async def test_claude_code_begins_with_a_copy_of_another_session(stage: Stage) -> None:
    """By its own flag; the copy has an id of its own as soon as it is prompted, also when it is killed before."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        await talk.ended()
        token = stage.row()["resume_token"]
        copy = await talk.fork()
        seen = await copy.send("slow 100")
        await client.wait_event("session.message.delta", after=seen)
        await stage.backend.kill9()
    await stage.backend.start()
    async with stage.backend.client() as client:
        await copy.follow(client)
        assert (await copy.say("remember pear"))["state"] == "completed"
        assert (await copy.said())[-1] == "I know apple pear, and say so."
        await talk.follow(client)
        await talk.say("what?")
        assert (await talk.said())[-1] == KNOWS
    forked, resumed, other = stage.starts()[1:]
    assert forked[-3:] == ["--resume", token, "--fork-session"]
    assert resumed[-2] == "--resume"
    assert resumed[-1] != token
    assert token in other


async def test_a_session_that_cannot_be_copied_leaves_the_recap(stage: Stage) -> None:
    """Claude Code has lost it: the new session begins empty, with the recap in its first prompt."""
    async with stage.backend.client() as client:
        talk = await Talk.begin(client, "claude-code")
        await talk.ended()
        (stage.directory / f"session-{stage.row()['resume_token']}.json").unlink()
        copy = await talk.fork()
        assert (await copy.say("what?"))["state"] == "completed"
        assert (await copy.status())["how"] == "recap"
    sessions = [path.read_text() for path in stage.directory.glob("session-*")]
    assert any("remember apple" in text and "what?" in text for text in sessions)
