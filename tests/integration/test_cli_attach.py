"""Commands on a real terminal: typed lines, live text, questions, a restart in the middle of `kandev attach`."""

import asyncio
import json
import signal
import sys

import pytest

from backend import Backend
from terminal import Terminal
from wire_client import LIMIT


@pytest.fixture
async def session(backend: Backend) -> str:
    """A session of the demo agent that has had its first turn."""
    await backend.start()
    done = await backend.cli("new", "remember apple", "--agent", "demo", "--wait")
    return str(done.answer["session"]["id"])


def attached(backend: Backend, session: str) -> Terminal:
    return Terminal([sys.executable, "-m", "kandev", "attach", session], backend.env())


async def test_lines_are_sent_and_answers_shown(backend: Backend, session: str) -> None:
    """The last messages come first; a typed line is a prompt and its answer streams in; Ctrl-C leaves."""
    async with attached(backend, session) as terminal:
        await terminal.expect("You: remember apple")
        terminal.type("what is the word?")
        await terminal.expect("apple", times=3)
        terminal.process.send_signal(signal.SIGINT)
        assert await terminal.ended() == 0
        await terminal.expect("The agent goes on")
    assert (await backend.cli("status", session)).answer["is_agent_running"]


async def test_a_question_is_answered_by_its_number(backend: Backend, session: str) -> None:
    """The options are numbered, and a number that is typed then is the answer, not a prompt."""
    async with attached(backend, session) as terminal:
        await terminal.expect("You: remember apple")
        terminal.type("ask")
        await terminal.expect("Type its number.")
        terminal.type("1")
        await terminal.expect("allow")
        terminal.type("\x04")
    prompts = [
        one["content"]
        for one in (await backend.cli("history", session)).answer["messages"]
        if one["author_type"] == "user"
    ]
    assert prompts == ["remember apple", "ask"]


async def test_ui_6_a_restart_is_bridged_and_nothing_is_shown_twice(backend: Backend, session: str) -> None:
    """The stream is cut by SIGKILL; after the start it says so, and the next line works."""
    async with attached(backend, session) as terminal:
        await terminal.expect("You: remember apple")
        terminal.type("slow 600")
        await terminal.expect("demo: ", times=2)
        await backend.kill9()
        await terminal.expect("Connection lost")
        await backend.start()
        await terminal.expect("Connected again")
        terminal.type("what is the word?")
        await terminal.expect("apple", times=3)
        assert terminal.shown.count("You: remember apple") == 1


async def test_perm_1_a_wait_asks_the_person_at_the_terminal(backend: Backend, session: str) -> None:
    """The options are shown, a wrong answer is asked again, and the turn goes on with the right one."""
    command = [sys.executable, "-m", "kandev", "send", session, "ask", "--wait"]
    async with Terminal(command, backend.env()) as terminal:
        await terminal.expect("Your answer")
        terminal.type("7")
        await terminal.expect("is none of the options")
        terminal.type("1")
        await terminal.expect("You chose: allow")
        assert await terminal.ended() == 0


async def test_what_an_agent_writes_cannot_steer_the_terminal(backend: Backend, session: str) -> None:
    """An escape sequence that the agent repeats is taken out of its answer and of the transcript."""
    evil = "\x1b]0;a title\x07and \x1b[2Jmore"
    for command in (["send", session, evil, "--wait"], ["history", session]):
        async with Terminal([sys.executable, "-m", "kandev", *command], backend.env()) as terminal:
            await terminal.expect("and more")
            assert await terminal.ended() == 0
            assert "\x1b]0;" not in terminal.shown
            assert "\x1b[2J" not in terminal.shown


async def test_nothing_is_deleted_without_a_yes(backend: Backend, session: str) -> None:
    """A terminal is asked first; a script is not."""
    async with Terminal([sys.executable, "-m", "kandev", "rm", session], backend.env()) as terminal:
        await terminal.expect("[y/N]")
        terminal.type("n")
        assert await terminal.ended() == 130
    assert (await backend.cli("status", session)).code == 0
    assert (await backend.cli("rm", session)).code == 0


async def test_in_a_pipe_every_event_is_a_line_of_json(backend: Backend, session: str) -> None:
    """A snapshot first, then events; it ends when the session does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kandev", "attach", session, "--json"),
        env=backend.env(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(LIMIT):
            first = json.loads(await process.stdout.readline())
            assert first["action"] == "snapshot"
            assert first["payload"]["session"]["id"] == session
            await backend.cli("stop", session)
            rest = [json.loads(line) async for line in process.stdout]
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert rest[-1]["action"] == "session.state_changed"
    assert rest[-1]["payload"]["new_state"] == "CANCELLED"
