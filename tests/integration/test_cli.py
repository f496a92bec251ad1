"""The command line against a real backend: what scripts rely on, across crashes."""

import asyncio
import contextlib
import json
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from wire_client import LIMIT


@pytest.fixture
async def running(backend: Backend) -> Backend:
    """A backend that runs."""
    await backend.start()
    return backend


async def new(backend: Backend, text: str = "remember apple", *options: str) -> str:
    """Make a task and wait for its first turn; the session's id."""
    done = await backend.cli("new", text, "--agent", "demo", "--wait", *options)
    assert done.code == 0, done
    return str(done.answer["session"]["id"])


async def spawn(backend: Backend, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kandev", *arguments, "--json"),
        env=backend.env(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ending(process: asyncio.subprocess.Process) -> tuple[int, dict[str, Any]]:
    """Wait for a command; its exit code and JSON."""
    try:
        async with asyncio.timeout(LIMIT):
            out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    assert out, errors
    return process.returncode, json.loads(out)


async def started(backend: Backend, session: str, text: str, *options: str) -> asyncio.subprocess.Process:
    """Start `send --wait`; returns once the agent speaks, so that the prompt has certainly reached it."""
    async with backend.client() as client:
        await client.call("session.subscribe", {"session_id": session})
        process = await spawn(backend, "send", session, text, "--wait", *options)
        await client.wait_event("session.message.delta")
    return process


async def test_a_task_is_made_waited_for_and_read(running: Backend) -> None:
    """`new --wait` says what the agent said; ls, show, status and history tell the rest."""
    done = await running.cli("new", "hello there", "--agent", "demo", "--title", "Greeting", "--wait")
    assert (done.code, done.answer["turn"]["state"]) == (0, "completed")
    assert "hello there" in done.answer["text"]
    session, task = done.answer["session"]["id"], done.answer["task"]["id"]

    listed = (await running.cli("ls")).answer["tasks"]
    assert [(one["id"], one["title"], one["session"]["id"], one["state"]) for one in listed] == [
        (task, "Greeting", session, "REVIEW")
    ]
    status = (await running.cli("status", session)).answer
    assert (status["state"], status["needs_resume"], status["resume_reason"]) == (
        "WAITING_FOR_INPUT", False, "already_running",
    )  # fmt: skip
    shown = (await running.cli("show", task)).answer
    assert (shown["task"]["title"], shown["session"]["id"], shown["interrupted_turns"]) == ("Greeting", session, [])
    messages = (await running.cli("history", session[:6])).answer["messages"]
    assert [one["author_type"] for one in messages][:2] == ["user", "agent"]
    assert (await running.cli("history", session, "--limit", "1")).answer["messages"] == messages[-1:]


async def test_records_are_searched_and_exported(running: Backend, tmp_path: Path) -> None:
    """`search` finds the text, export writes JSON lines to stdout or a file, logs answers."""
    session = await new(running, "a very special word")
    hits = (await running.cli("search", "special")).answer["hits"]
    assert session in {hit["session_id"] for hit in hits}
    exported = await running.cli("export", session)
    assert exported.code == 0
    assert len(exported.answer) > 1
    target = tmp_path / "export.jsonl"
    assert (await running.cli("export", session, "--output", str(target))).code == 0
    assert [json.loads(line) for line in target.read_text().splitlines()] == exported.answer
    assert (await running.cli("logs", session)).code == 0


async def test_what_there_is_can_be_listed(running: Backend) -> None:
    """Agents with their flags, one agent's check, runtimes."""
    agents = {one["name"] for one in (await running.cli("agents")).answer["agents"]}
    assert {"claude-code", "codex", "demo", "demo-history"} <= agents
    assert (await running.cli("agents", "check", "demo")).code == 0
    assert (await running.cli("agents", "check", "nobody")).code == 4
    runtimes = {one["name"] for one in (await running.cli("runtimes")).answer["runtimes"]}
    assert "standalone" in runtimes


async def test_what_an_agent_let_know_when_it_ran_is_listed(running: Backend) -> None:
    """Its version, how its sessions come back, where they are, and that its login works."""
    assert (await running.cli("new", "hello", "--agent", "demo", "--wait")).code == 0
    agents = {one["name"]: one for one in (await running.cli("agents", "--versions")).answer["agents"]}
    demo = agents["demo"]
    assert (demo["resumes"], demo["login"]["state"]) == ("session/resume", "worked")
    assert {"session/load", "session/resume"} <= set(demo["offers"])
    assert demo["version"]
    assert demo["session_directory"].endswith("demo-agent")
    assert (agents["codex"]["resumes"], agents["codex"]["offers"]) == ("restores its own session", [])
    assert all(one["installed_version"] == "" for one in agents.values() if not one["found"])


async def test_a_session_is_brought_back_after_a_kill_and_remembers(running: Backend) -> None:
    """`status` says why, resume --wait says how, and the agent still knows the word."""
    session = await new(running)
    await running.kill9()
    await running.start()
    status = (await running.cli("status", session)).answer
    assert (status["needs_resume"], status["resume_reason"]) == (True, "agent_not_running")
    resumed = await running.cli("resume", session, "--wait")
    assert (resumed.code, resumed.answer["outcome"]["how"]) == (0, "native")
    assert "ready" in resumed.answer["outcome"]["stages"] or resumed.answer["outcome"]["stages"]
    again = await running.cli("resume", session, "--wait")
    assert again.code == 0
    asked = await running.cli("send", session, "what is the word?", "--wait")
    assert "apple" in asked.answer["text"]
    shown = (await running.cli("show", session)).answer
    assert "native" in {one["how"] for one in shown["resumes"]}


async def test_a_message_alone_brings_a_session_back(running: Backend) -> None:
    """`send --wait` to a session whose agent is gone starts it, with its memory."""
    session = await new(running)
    await running.kill9()
    await running.start()
    asked = await running.cli("send", session, "-", "--wait", stdin="what is the word?\n")
    assert asked.code == 0
    assert "apple" in asked.answer["text"]


async def test_a_wait_goes_on_across_a_restart_and_tells_the_interruption(running: Backend) -> None:
    """The backend dies in the middle of a turn: the command reconnects to the next one and ends with 1."""
    session = await new(running)
    process = await started(running, session, "slow 600")
    await running.kill9()
    await running.start()
    code, answer = await ending(process)
    assert (code, answer["turn"]["state"]) == (1, "interrupted")
    shown = (await running.cli("show", session)).answer
    assert [one["turn_id"] for one in shown["interrupted_turns"]] == [answer["turn"]["turn_id"]]


async def test_a_wait_that_times_out_ends_with_3_and_the_turn_goes_on(running: Backend) -> None:
    """Then it is cancelled, and what was queued is held, dropped and opened again."""
    session = await new(running)
    process = await started(running, session, "slow 600", "--timeout", "3")
    code, late = await ending(process)
    assert (code, "It goes on" in late["error"]["message"]) == (3, True)
    assert (await running.cli("status", session)).answer["state"] == "RUNNING"
    queued = (await running.cli("send", session, "first")).answer["message"]["id"]
    kept = (await running.cli("send", session, "second")).answer["message"]["id"]
    dropped = (await running.cli("queue", session, "--drop", queued)).answer
    assert [one["message_id"] for one in dropped["queue"]] == [kept]
    async with running.client() as client:
        await client.call("session.subscribe", {"session_id": session})
        assert (await running.cli("cancel", session)).code == 0
        await client.wait_event("session.turn.completed")
    assert (await running.cli("queue", session)).answer["held"] == "cancelled"
    assert (await running.cli("queue", session, "--resume")).code == 0


async def test_a_wait_that_times_out_before_its_message_is_saved_does_not_say_that_it_goes_on(running: Backend) -> None:
    """Another program has locked the database, so nobody can tell yet; the message is saved as soon as that ends."""
    session = await new(running)
    with contextlib.closing(sqlite3.connect(running.home / "kandev.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        late = await running.cli("send", session, "hello", "--wait", "--timeout", "0.5")
    assert (late.code, "may be saved, or not" in late.answer["error"]["message"]) == (3, True)


async def test_ctrl_c_while_waiting_ends_with_130_and_the_turn_goes_on(running: Backend) -> None:
    """The signal reaches the command only."""
    session = await new(running)
    process = await started(running, session, "slow 600")
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(LIMIT):
        assert await process.wait() == 130
    assert (await running.cli("status", session)).answer["state"] == "RUNNING"


@pytest.mark.parametrize(("options", "kind"), [((), "reject"), (("--permissions", "allow-once"), "allow")])
async def test_perm_a_wait_answers_questions_by_its_policy(
    running: Backend, options: tuple[str, ...], kind: str
) -> None:
    """Without a terminal they are denied, unless told otherwise."""
    session = await new(running)
    done = await running.cli("send", session, "ask", "--wait", *options)
    assert done.code == 0
    assert kind in done.answer["text"].lower()


async def test_perm_1_a_question_that_nobody_can_be_asked_ends_with_5_and_is_answered_later(running: Backend) -> None:
    """`answer` takes the option's number; a second answer is refused."""
    session = await new(running)
    done = await running.cli("send", session, "ask", "--wait", "--permissions", "ask")
    assert done.code == 5
    assert "kandev answer" in done.answer["error"]["message"]
    assert (await running.cli("answer", session, "99")).code == 2
    async with running.client() as client:
        await client.call("session.subscribe", {"session_id": session})
        assert (await running.cli("answer", session, "1")).code == 0
        await client.wait_event("session.turn.completed")
    assert (await running.cli("answer", session, "1")).code == 4


async def test_ends_of_a_session_and_their_exit_codes(running: Backend) -> None:
    """stop, resume refused, recover, complete, recover refused, rm; unknown and ambiguous ids."""
    session = await new(running)
    assert (await running.cli("stop", session)).code == 0
    refused = await running.cli("resume", session)
    assert (refused.code, refused.answer["error"]["details"]["reason"]) == (5, "session_ended")
    recovered = await running.cli("recover", session, "--action", "resume", "--wait")
    assert recovered.code == 0
    assert "apple" in (await running.cli("send", session, "what is the word?", "--wait")).answer["text"]
    assert (await running.cli("complete", session)).answer["task"]["state"] == "COMPLETED"
    refused = await running.cli("recover", session, "--action", "resume")
    assert (refused.code, refused.answer["error"]["details"]["reason"]) == (5, "session_completed")
    assert (await running.cli("rm", session)).code == 0
    assert (await running.cli("ls")).answer["tasks"] == []
    assert (await running.cli("show", session)).code == 4
    assert (await running.cli("new", "x", "--agent", "nobody")).code == 4


async def test_race_8_a_second_backend_refuses_and_a_taken_port_is_named(running: Backend, tmp_path: Path) -> None:
    """The first one's pid is in the message, and the first one goes on."""
    second = await running.cli("serve", "--port", "0")
    assert second.code != 0
    assert str(running.pid) in second.answer["error"]["message"]
    async with Backend(tmp_path / "other") as other:
        port = running.url.rpartition(":")[2]
        taken = await other.cli("serve", "--port", port)
        assert taken.code != 0
        assert port in taken.answer["error"]["message"]
    assert (await running.cli("ls")).code == 0


async def test_doctor_is_content_while_a_backend_runs(running: Backend) -> None:
    """Nothing of what belongs to the running backend is called a leftover."""
    await new(running)
    done = await running.cli("doctor", "--fix")
    assert done.code == 0, done
    assert not [one for one in done.answer["findings"] if one["level"] == "problem" or one["fixed"]]
    backend = next(one for one in done.answer["findings"] if one["check"] == "backend")
    assert str(running.pid) in backend["text"]


async def test_a_killed_backend_is_told_from_one_that_never_ran(running: Backend) -> None:
    """Its clients say that it ended without a goodbye, and the exit code is 6."""
    await running.kill9()
    done = await running.cli("ls")
    assert done.code == 6
    assert "without a goodbye" in done.answer["error"]["message"]


async def test_demo_shows_both_strategies_and_leaves_nothing_behind(backend: Backend) -> None:
    """A word survives SIGKILL by native resume and by history injection; home and processes are gone."""
    done = await backend.cli("demo")
    assert done.code == 0, done
    assert [(one["agent"], one["how"], one["remembered"]) for one in done.answer["results"]] == [
        ("demo", "native", True), ("demo-history", "injection", True),
    ]  # fmt: skip
    home = next(step["detail"] for step in done.answer["steps"] if step["step"] == "home").split()[0]
    assert not Path(home).exists()
