"""A kill at every failpoint, then a start; what the CRASH rules say of it, and what always holds."""

import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from crash import plays
from crash.cases import AGENTCTL, ALL, ATTACHED, ATTACHING, START_UP, TURN, Case, of
from crash.scene import FIRST, LAST, Scene
from invariants import agent_text, broken_chunks, reading, request_in, stuck_sessions
from kandev.agentctl.failpoints import FAILPOINTS

WAITS = ("WAITING_FOR_INPUT", "REVIEW")
ELSEWHERE = (
    *("sources.", "work."),
    *(f"agentctl.{when}_{what}" for when in ("before", "after") for what in ("sources", "checkout", "work")),
    *("container.", "volume."),
)
"""How these names begin: their kills need no whole backend (tests/integration/test_carrying_kills.py), or an engine

(tests/runtimes/test_container_kills.py).
"""
CONTEXT = "RESUME CONTEXT FOR CONTINUING TASK"


@contextlib.asynccontextmanager
async def killed(directory: Path, case: Case) -> AsyncIterator[Scene]:
    """The scene after the kill and the next start, with everything repeated that was not answered.

    At the end of the block all invariants are looked at.
    """
    async with Scene.prepared(directory, case.kind, case.runtime) as scene:
        if case.before is not None:
            await scene.play(case.before)
            await scene.backend.kill9()
        await scene.play_until_killed(case.play, armed=case.armed)
        async with afterwards(scene, case):
            yield scene


@contextlib.asynccontextmanager
async def afterwards(scene: Scene, case: Case) -> AsyncIterator[None]:
    """The next start, or the backend that was not killed, until nothing is wrong at the end of the block."""
    scene.agent.update(start=[])
    if not case.patient:
        scene.forget()
    died = not scene.lives
    async with scene.restarted():
        if died:
            assert await stuck_sessions(scene.backend) == [], "STATE-1: at once, when the port answers"
        await scene.repeat()
        yield
        assert await scene.wrong() == []


async def goes_on(scene: Scene, *, sure: bool = True) -> None:
    """The session takes a prompt; each one was delivered once, or at most once where a turn was cut."""
    await scene.go_on()
    assert await scene.states() == WAITS
    sent = [prompt.content for prompt in scene.prompts]
    received = [request_in(text) for text in scene.agent.prompts()]
    assert received == [text for text in sent if text in received], "each at most once, and in order"
    if sure:
        assert received == sent
    assert received[-1] == LAST


def turn_of(scene: Scene, prompt: str) -> dict[str, Any]:
    """The turn of a prompt, with what the agent said in it; {} while it has none."""
    with reading(scene.backend.home) as database:
        query = """SELECT turns.* FROM turns JOIN messages ON messages.id = turns.message_id
            WHERE messages.content = ? AND messages.session_id = ?"""
        row = database.execute(query, (prompt, scene.id)).fetchone()
        return {**row, "text": agent_text(database, row["id"])} if row else {}


def git(scene: Scene, *words: str) -> str:
    """What git says of the scene's repository."""
    return subprocess.check_output(["git", "-C", scene.repository, *words], text=True)


def test_every_failpoint_has_its_kill() -> None:
    """A failpoint that is added to the code is missed here until something is played that passes it."""
    assert {case.name for case in ALL} == {name for name in FAILPOINTS if not name.startswith(ELSEWHERE)}


@of("CRASH-1")
async def test_crash_1_a_task_is_stored_whole_and_once(tmp_path: Path, case: Case) -> None:
    """The repeated request finds the task, with everything in it; its description is sent once."""
    async with killed(tmp_path, case) as scene:
        assert scene.refusals == []
        await goes_on(scene)
        assert len((await scene.client.call("task.list"))["tasks"]) == 1


@of("CRASH-2")
async def test_crash_2_a_worktree_half_made_is_made(tmp_path: Path, case: Case) -> None:
    """One worktree on the session's branch, and the agent was never started anywhere else."""
    async with killed(tmp_path, case) as scene:
        await goes_on(scene)
        status = await scene.session.status()
        listed = git(scene, "worktree", "list", "--porcelain")
        assert listed.count("worktree ") == 2
        assert f"worktree {status['worktree_path']}\n" in listed
        assert {entry["cwd"] for entry in scene.agent.events("start")} == {status["worktree_path"]}


@of("CRASH-3")
async def test_crash_3_starting_without_an_instance_that_is_known(tmp_path: Path, case: Case) -> None:
    """Nothing of the start is left, and the prompt or the next resume starts the agent, with its memory."""
    async with killed(tmp_path, case) as scene:
        await goes_on(scene)
        assert (await scene.session.texts("agent"))[-1] == f"heard: {LAST} | memory: {len(scene.prompts) - 1}"


@of("CRASH-4")
async def test_crash_4_an_agent_that_was_not_ready_is_stopped(tmp_path: Path, case: Case) -> None:
    """It is not adopted; the token is kept, so that the next start remembers."""
    async with killed(tmp_path, case) as scene:
        await goes_on(scene)
        assert (await scene.session.texts("agent"))[-1] == f"heard: {LAST} | memory: {len(scene.prompts) - 1}"


@of("CRASH-5")
async def test_crash_5_the_journal_gives_the_token(tmp_path: Path, case: Case) -> None:
    """The agent had named its session and nobody had stored that name: it is asked for this session again."""
    async with killed(tmp_path, case) as scene:
        await goes_on(scene)
        assert len(scene.agent.requests("session/new")) == 1


@of("CRASH-6")
async def test_crash_6_killed_while_the_session_is_opened(tmp_path: Path, case: Case) -> None:
    """Status and state are one commit: the next start opens the session again, and no replay is stored."""
    async with killed(tmp_path, case) as scene:
        await goes_on(scene)
        assert await scene.session.texts("user") == [prompt.content for prompt in scene.prompts]
        said = await scene.session.texts("agent")
        assert len(said) == len(set(said)), "what was replayed is stored once more"
        if case.kind == "native" and case.play is not plays.launch:
            assert len(scene.agent.requests("session/new")) == 1


@of("CRASH-7")
async def test_crash_7_a_prompt_on_its_way(tmp_path: Path, case: Case) -> None:
    """Acknowledged prompts are delivered; those that certainly reached nobody go out by themselves, others never."""
    async with killed(tmp_path, case) as scene:
        await goes_on(scene, sure=case.sure)
        turn = turn_of(scene, "second")
        assert turn["state"] == ("completed" if case.sure else turn["state"])
        if turn["state"] == "interrupted":
            assert (await scene.session.notice("interrupted"))["metadata"]["turn_id"] == turn["id"]


@of("CRASH-8")
async def test_crash_8_in_the_middle_of_a_turn(tmp_path: Path, case: Case) -> None:
    """Chunks have neither gap nor duplicate; a turn whose end was in the journal is complete; the history is too."""
    async with killed(tmp_path, case) as scene:
        await goes_on(scene, sure=case.sure)
        if case.play is plays.second:
            turn = turn_of(scene, "second")
            assert broken_chunks(turn["text"], expected=12 if turn["state"] == "completed" else None) == []
            assert turn["state"] == "completed" or not case.sure
        if case.kind == "history":
            check_context(scene)


@of("CRASH-9")
async def test_crash_9_between_two_turns(tmp_path: Path, case: Case) -> None:
    """The turn has ended, and the prompts behind it are sent by the next backend, in order."""
    async with killed(tmp_path, case) as scene:
        await goes_on(scene)
        assert [turn_of(scene, text)["state"] for text in (FIRST, "second", "third")] == ["completed"] * 3


@of("CRASH-10")
async def test_crash_10_a_permission_that_was_asked_for(tmp_path: Path, case: Case) -> None:
    """It is expired with its agent, and says so to who answers it; no answer reaches an agent twice."""
    async with killed(tmp_path, case) as scene:
        assert (await scene.client.call("permission.list", {"session_id": scene.id}))["permissions"] == []
        assert set(scene.refusals) <= {"expired", "already_resolved"}
        asked = [one for one in await scene.session.transcript() if one["type"] == "permission_request"]
        assert [one["metadata"]["state"] for one in asked] in ([], ["expired"], ["answered"])
        answers = [one for one in scene.agent.received() if "outcome" in (one.get("result") or {})]
        assert len(answers) <= 1
        await goes_on(scene, sure=False)


@of("CRASH-11")
async def test_crash_11_a_token_is_set_aside_with_all_that_goes_with_it(tmp_path: Path, case: Case) -> None:
    """Either nothing of it is stored, or token, state, message and hold are; the session goes on fresh at last."""
    async with killed(tmp_path, case) as scene:
        with reading(scene.backend.home) as database:
            row = database.execute("SELECT resume_token, metadata FROM executors_running").fetchone()
        status = await scene.session.status()
        if case.play is not plays.fresh_start:
            told = "rejected" in await scene.session.notices()
            assert told == (row["resume_token"] == "") == (status["queue_held"] == "token_rejected")
            assert told == ("previous_token" in row["metadata"])
            assert await scene.states() == WAITS
        await goes_on(scene)


@of("CRASH-12")
async def test_crash_12_a_cancel_on_its_way(tmp_path: Path, case: Case) -> None:
    """The turn is over, the queue waits for a person; a prompt that nobody got waits in it."""
    async with killed(tmp_path, case) as scene:
        await scene.settled()
        ended = turn_of(scene, "second").get("state", "put back")
        expected = {"cancel.before_store": "interrupted", "prompt.before_unsent": "put back"}
        assert ended == expected.get(case.armed, "cancelled")
        assert (await scene.session.status())["queue_held"] == "cancelled", "by the stored request, or the repeated one"
        await goes_on(scene, sure=False)


@of("CRASH-13")
async def test_crash_13_a_promise_is_kept(tmp_path: Path, case: Case) -> None:
    """Stop, complete and delete are carried out by the next start, without being asked for again."""
    async with killed(tmp_path, case) as scene:
        await check_promise(scene, case)


async def check_promise(scene: Scene, case: Case) -> None:
    await scene.settled()
    states = await scene.states()
    if case.play is plays.stop:
        assert states == ("CANCELLED", "REVIEW")
        await goes_on(scene, sure=False)
    elif case.play is plays.complete:
        assert states == ("COMPLETED", "COMPLETED")
        assert (await plays.refused(scene, "message.add", content=LAST)).reason == "session_completed"
    else:
        assert states == ("", "")
        assert list((scene.backend.home / "sessions").iterdir()) == []
        assert [path for path in (scene.backend.home / "worktrees").iterdir() if not path.name.startswith(".")] == []
    if case.play is plays.delete_with_branch:
        assert git(scene, "branch").count("\n") == git(scene, "worktree", "list").count("\n") == 1


@of("CRASH-14")
async def test_crash_14_injected_context_that_nobody_accepted(tmp_path: Path, case: Case) -> None:
    """The next prompt carries the context again, once, and no context is recorded as something a person said."""
    async with killed(tmp_path, case) as scene:
        await goes_on(scene, sure=case.sure)
        check_context(scene)


def check_context(scene: Scene) -> None:
    """The newest process was told, with its first prompt and once, all that was said before."""
    pid = scene.agent.pids()[-1]
    lines = [entry["message"] for entry in scene.agent.entries() if entry["pid"] == pid and "message" in entry]
    sent = [one["params"]["prompt"][0]["text"] for one in lines if one.get("method") == "session/prompt"]
    assert [text.count(CONTEXT) for text in sent] == [1, *[0] * (len(sent) - 1)]
    before = [prompt.content for prompt in scene.prompts][: -len(sent)]
    assert [sent[0].count(f"[USER]: {text}\n") for text in before] == [1] * len(before)
    answers = [answer for text in before if (answer := turn_of(scene, text)["text"])]
    assert [sent[0].count(answer) for answer in answers] == [1] * len(answers)


@of("STATE-4")
async def test_state_4_killed_when_the_agent_has_died(tmp_path: Path, case: Case) -> None:
    """The turn is cut once: its text is kept, its tool call unknown, and it is said once."""
    async with killed(tmp_path, case) as scene:
        await goes_on(scene, sure=False)
        turn = turn_of(scene, "second")
        assert (turn["state"], turn["text"]) == ("interrupted", "so far")
        told = await scene.session.transcript()
        assert [one["metadata"]["status"] for one in told if one["type"] == "tool_call"] == ["unknown"]
        assert (await scene.session.notice("interrupted"))["metadata"]["turn_id"] == turn["id"]


@of("asked")
async def test_what_was_asked_for_is_done_or_not_done(tmp_path: Path, case: Case) -> None:
    """A request that changes one thing has changed it whole, or can be repeated."""
    async with killed(tmp_path, case) as scene:
        await goes_on(scene, sure=case.sure)
        found = await scene.client.call("task.get", {"task_id": scene.task_id})
        if case.play is plays.rename:
            assert found["task"]["title"] == "Another title"
        if case.play is plays.another_session:
            assert len(found["sessions"]) == (2 if "after" in case.armed else 1)
        if case.play is plays.set_mode:
            modes = [one["params"]["modeId"] for one in scene.agent.requests("session/set_mode")]
            assert modes == ["plan"] * len(scene.agent.pids())
        if case.play is plays.withdraw:
            assert "taken back" not in await scene.session.texts("user")


@of("STATE-1", START_UP)
async def test_state_1_killed_while_it_settles_what_a_kill_left(tmp_path: Path, case: Case) -> None:
    """The start after that settles the rest, once: the turn is cut, its text whole, and it is said once."""
    async with Scene.prepared(tmp_path, case.kind) as scene:
        await scene.play_until_killed(case.play, armed=f"{TURN}.after_commit:4")
        await scene.start_and_die(case.armed)
        async with afterwards(scene, case):
            turn = turn_of(scene, "second")
            assert turn["state"] == "interrupted"
            assert broken_chunks(turn["text"]) == []
            assert (await scene.session.notice("interrupted"))["metadata"]["turn_id"] == turn["id"]
            await goes_on(scene, sure=False)


@of("CRASH-13", START_UP)
async def test_crash_13_killed_while_a_promise_is_kept(tmp_path: Path, case: Case) -> None:
    """The start after that carries it out."""
    async with Scene.prepared(tmp_path, case.kind) as scene:
        await scene.play_until_killed(case.play, armed="stop.after_intent")
        await scene.start_and_die(case.armed)
        async with afterwards(scene, case):
            await check_promise(scene, case)


@of("CONT-1", ATTACHED)
async def test_cont_1_killed_while_its_agent_lives_on(tmp_path: Path, case: Case) -> None:
    """The next backend attaches: every prompt reached the same process once, each chunk is there once."""
    async with killed(tmp_path, case) as scene:
        await check_nothing_was_lost(scene)


@of("CONT-1", ATTACHING)
async def test_cont_1_killed_while_it_attaches(tmp_path: Path, case: Case) -> None:
    """The start after that attaches."""
    async with Scene.prepared(tmp_path, case.kind, case.runtime) as scene:
        await scene.play_until_killed(case.play, armed=f"{TURN}.after_commit:4")
        await scene.start_and_die(case.armed)
        async with afterwards(scene, case):
            await check_nothing_was_lost(scene)


async def check_nothing_was_lost(scene: Scene) -> None:
    """Whatever was sent was answered, by the one process there was; then its session ends, and it with it."""
    for request in (await scene.client.call("permission.list", {}))["permissions"]:
        answer = {"request_id": request["id"], "option_id": "allow_once"}
        await scene.client.call("permission.respond", scene.named(**answer))
    await goes_on(scene)
    assert len(scene.agent.pids()) == 1
    for prompt in scene.prompts:
        turn = turn_of(scene, prompt.content)
        assert turn["state"] == "completed"
        assert broken_chunks(turn["text"]) == []
    chunks = [text for text in turn_of(scene, "second")["text"].split("chunk ") if text]
    assert len(chunks) in {0, 1, 12}, "a stream has its 12 chunks; other plays have none"
    await scene.client.call("task.session.stop", scene.named())


@of("CRASH-15", AGENTCTL)
async def test_crash_15_agentctl_is_killed(tmp_path: Path, case: Case) -> None:
    """Its agent does not outlive it; a prompt that was not announced goes out again, another one is cut."""
    async with killed(tmp_path, case) as scene:
        await goes_on(scene, sure=case.sure)
        assert scene.agent.alive() == scene.agent.pids()[-1:]
