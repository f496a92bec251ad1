"""Claude Code and Amp by their own command lines, as stand-ins that speak what these do, through the whole server.

The commands are those of the built-in agents; only the PATH leads to other programs. The real Claude Code is in
tests/real_agents/test_claude_code.py; Amp cannot run without an account.
"""

import contextlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

import fakes.stream_agent
from backend import Backend
from wire_client import CallFailed, Client

Json = dict[str, Any]
NOBODYS = "T-11111111-2222-4333-8444-555555555555"


class Stage:
    """A backend whose claude-code and amp are stand-ins that keep everything in `directory`."""

    def __init__(self, backend: Backend, directory: Path) -> None:
        self.backend = backend
        self.directory = directory
        commands = directory / "bin"
        commands.mkdir(parents=True)
        for program in ("claude", "amp"):
            script = commands / program
            script.write_text(
                f'#!/bin/sh\nexec {sys.executable} {fakes.stream_agent.__file__} {directory} {program} "$@"\n'
            )
            script.chmod(0o755)
        path = json.dumps(f"{commands}:/usr/bin:/bin")
        backend.config = f"[agents.claude-code.env]\nPATH = {path}\n[agents.amp.env]\nPATH = {path}\n"

    def set(self, name: str) -> None:
        """Makes the stand-ins behave in one way."""
        (self.directory / name).touch()

    def starts(self) -> list[list[str]]:
        """The arguments of each start, oldest first."""
        lines = (self.directory / "log.jsonl").read_text().splitlines()
        return [json.loads(line)["arguments"] for line in lines]

    def row(self) -> Json:
        """The only row in executors_running."""
        with contextlib.closing(sqlite3.connect(self.backend.home / "kandev.db")) as database:
            database.row_factory = sqlite3.Row
            return dict(database.execute("SELECT * FROM executors_running").fetchone())

    def change(self, column: str, value: str) -> None:
        with contextlib.closing(sqlite3.connect(self.backend.home / "kandev.db")) as database, database:
            database.execute(f"UPDATE executors_running SET {column} = ?", [value])


class Talk:
    """One session, and the client that looks at it."""

    def __init__(self, client: Client, ids: Json) -> None:
        self.client = client
        self.ids = ids

    @classmethod
    async def begin(cls, client: Client, agent: str, text: str = "remember apple") -> "Talk":
        await client.call("task.subscribe")
        created = await client.call("task.create", {"agent": agent, "description": text})
        talk = cls(client, {"task_id": created["task"]["id"], "session_id": created["session"]["id"]})
        await talk.follow(client)
        return talk

    async def follow(self, client: Client) -> Json:
        self.client = client
        snapshot: Json = await client.call("session.subscribe", {"session_id": self.ids["session_id"]})
        return snapshot

    async def call(self, action: str, **payload: Any) -> Json:
        answer: Json = await self.client.call(action, {**self.ids, **payload})
        return answer

    async def status(self) -> Json:
        return await self.call("task.session.status")

    async def ended(self, *, after: int = 0) -> Json:
        turn: Json = await self.client.wait_event("session.turn.completed", after=after)
        return turn

    async def send(self, text: str) -> int:
        """Sends a prompt; the number of events before."""
        seen = len(self.client.events)
        await self.call("message.add", content=text)
        return seen

    async def say(self, text: str) -> Json:
        return await self.ended(after=await self.send(text))

    async def transcript(self) -> list[Json]:
        page = await self.client.call("message.list", {"session_id": self.ids["session_id"], "limit": 200})
        messages: list[Json] = page["messages"]
        return messages

    async def said(self) -> list[str]:
        """What user and agent said, in order."""
        return [
            m["content"] for m in await self.transcript() if m["author_type"] != "system" and m["type"] == "message"
        ]

    async def notices(self) -> list[str]:
        return [m["metadata"]["kind"] for m in await self.transcript() if m["author_type"] == "system"]


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


# ---- Amp

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
