"""What is played until a kill: each way through the code, with agents that tell apart what must be told apart."""

import json
import subprocess
from typing import Any

from crash.scene import FIRST, Scene
from fakes import end
from wire_client import CallFailed

CHUNKS = {"match": "^second$", "steps": [{"chunks": 12, "delay": 0.03}]}
ASKS = {"match": "^second$", "steps": [{"permission": "Edit?"}, {"text": "went on"}]}
HANGS = {"match": "^second$", "steps": [{"text": "so far"}, {"mark": "hangs"}, "hang"]}
WAITS = {"match": f"^{FIRST}$", "steps": [{"mark": "waits"}, {"gate": "open"}]}
DIES = {"match": "^second$", "times": 1, "steps": [{"text": "so far"}, {"tool": "make", "end": False}, {"die": 3}]}
LATE = [
    {"update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "old"}}},
    {"delay": 0.1},
]
GONE = {"error": {"code": -32002, "message": "Session not found"}}
FAILURE = {"error": {"code": -32603, "message": "service failure"}}


# ---- starts


async def launch(scene: Scene) -> None:
    """A task is made, its agent started, its description sent and answered."""
    await scene.create()
    await scene.turn_ended(FIRST)


async def launch_by_hand(scene: Scene) -> None:
    """The same, where a person starts the session."""
    await scene.create(start=False)
    await scene.ask("task.session.start")
    await scene.turn_ended(FIRST)


async def launch_in_vain(scene: Scene) -> None:
    """The agent ends before it says anything."""
    scene.agent.update(start=[{"die": 1}])
    await scene.create()
    await scene.settled()


async def launch_with_memory(scene: Scene) -> None:
    """A launch of an agent that stores its session as soon as it is made."""
    scene.agent.update(store_when="new")
    await launch(scene)


async def lose_agent(scene: Scene) -> None:
    """The agent is killed while nothing runs."""
    end(scene.agent.pids()[-1])

    async def lost() -> bool:
        return not (await scene.session.status())["is_agent_running"]

    while not await lost():
        await scene.agent.until(lambda: True)


async def resume(scene: Scene) -> None:
    """An agent that was lost is resumed, and answers a second prompt."""
    scene.agent.update(on={"session/prompt": {"match": "second", "steps": [{"text": "answered"}]}})
    await launch(scene)
    await lose_agent(scene)
    await scene.ask("task.session.resume", open_queue=True)
    await scene.say("second")


async def resume_by_load(scene: Scene) -> None:
    """The same by session/load, which replays."""
    scene.agent.update(resume=False)
    await resume(scene)


async def say(scene: Scene) -> None:
    """A prompt brings a session back that an earlier backend had."""
    await scene.say("second")


async def resume_with_a_gap(scene: Scene) -> None:
    """The same, where the history file lacks its first entry."""
    await launch(scene)
    await lose_agent(scene)
    path = scene.backend.home / "sessions" / f"{scene.id}.jsonl"
    await scene.backend.until(lambda: path.read_bytes().count(b"\n") == 2)
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    await scene.say("second")


async def rejected(scene: Scene) -> None:
    """The agent says that it does not know the session any more."""
    await launch(scene)
    scene.agent.update(on={"session/resume": GONE, "session/load": GONE})
    await lose_agent(scene)
    await scene.ask_once("task.session.resume")
    await scene.settled()


async def not_restored(scene: Scene) -> None:
    """The agent says nothing definite, twice."""
    await launch(scene)
    scene.agent.update(on={"session/resume": FAILURE, "session/load": FAILURE})
    await lose_agent(scene)
    await scene.ask_once("task.session.resume")
    await scene.settled()


async def fresh_start(scene: Scene) -> None:
    """A person chooses to go on without the agent's memory."""
    await launch(scene)
    await lose_agent(scene)
    await scene.ask("task.session.recover", action="fresh_start")
    await scene.say("second")


# ---- turns


async def second(scene: Scene) -> None:
    """A second prompt, whose answer is a stream of chunks."""
    scene.agent.update(on={"session/prompt": CHUNKS})
    await launch(scene)
    await scene.say("second")


async def second_of_a_stubborn_agent(scene: Scene) -> None:
    """The same with an agent that outlives whoever held its stdin and its stdout."""
    scene.agent.update(ignore_eof=True, ignore_sigterm=True, on={"session/prompt": HANGS})
    await launch(scene)
    await scene.say("second")


async def long_line(scene: Scene) -> None:
    """A second prompt of a megabyte, which no pipe takes at once."""
    await launch(scene)
    await scene.say("x" * (1 << 20))


async def queue(scene: Scene) -> None:
    """Two prompts are queued behind a turn that runs."""
    scene.agent.update(on={"session/prompt": WAITS})
    await scene.create()
    await scene.agent.until(scene.agent.marks)
    await scene.add("second")
    await scene.add("third")
    scene.agent.open_gate("open")
    await scene.turn_ended("third")


async def withdraw(scene: Scene) -> None:
    """The last of two queued prompts is taken back."""
    scene.agent.update(on={"session/prompt": WAITS})
    await scene.create()
    await scene.agent.until(scene.agent.marks)
    await scene.add("second")
    message_id = (await scene.session.call("message.add", content="taken back"))["message"]["id"]
    await scene.ask("message.queue.cancel", message_id=message_id)
    scene.agent.open_gate("open")
    await scene.turn_ended("second")


async def open_queue(scene: Scene) -> None:
    """A cancel has held the queue; a person opens it."""
    scene.agent.update(on={"session/prompt": {**WAITS, "steps": [{"mark": "waits"}, "hang"]}})
    await scene.create()
    await scene.agent.until(scene.agent.marks)
    await scene.add("second")
    await scene.ask("task.session.cancel")
    await scene.turn_ended(FIRST)
    await scene.ask("message.queue.resume")
    await scene.turn_ended("second")


async def agent_dies(scene: Scene) -> None:
    """The agent ends in the middle of a turn."""
    scene.agent.update(on={"session/prompt": DIES})
    await launch(scene)
    await scene.say("second")
    await scene.settled()


async def unsent(scene: Scene) -> None:
    """An agent that was resumed ends while the second prompt waits for the end of its replay; the next one takes it."""
    await _ends_during_replay(scene, times=1)
    await scene.say("second")


async def unsent_twice(scene: Scene) -> None:
    """So does the next one: the queue is held."""
    await _ends_during_replay(scene, times=2)
    await scene.add("second")
    await scene.settled()


async def _ends_during_replay(scene: Scene, *, times: int) -> None:
    scene.agent.update(resume=False, on={"session/load": {"times": times, "after": [*LATE * 5, LATE[0], {"die": 1}]}})
    await launch(scene)
    await lose_agent(scene)


# ---- what a person does


async def permission(scene: Scene) -> None:
    """The agent asks, a person answers, the turn goes on."""
    scene.agent.update(on={"session/prompt": ASKS})
    await launch(scene)
    session = await scene.follow()
    await scene.add("second")
    asked = await session.event("permission.requested")
    await scene.ask("permission.respond", request_id=asked["request"]["id"], option_id="allow_once")
    await scene.turn_ended("second")


async def cancel(scene: Scene) -> None:
    """A turn that would go on for ever is cancelled while another prompt waits."""
    scene.agent.update(on={"session/prompt": HANGS})
    await launch(scene)
    await scene.add("second")
    await scene.agent.until(scene.agent.marks)
    await scene.add("third")
    await scene.ask("task.session.cancel")
    await scene.turn_ended("second")


async def cancel_unsent(scene: Scene) -> None:
    """A turn is cancelled while its prompt waits for the end of a replay."""
    scene.agent.update(resume=False, on={"session/load": {"after": LATE * 20}})
    await launch(scene)
    await lose_agent(scene)
    session = await scene.follow()
    await scene.add("second")
    await session.event("session.turn.started")
    await scene.ask("task.session.cancel")
    await scene.turn_ended("second")


async def set_mode(scene: Scene) -> None:
    """The agent's mode is set, and wanted from then on."""
    scene.agent.update(modes=["default", "plan"])
    await launch(scene)
    await scene.ask("session.set_mode", mode_id="plan")


async def rename(scene: Scene) -> None:
    """The task gets another title."""
    await launch(scene)
    await scene.ask("task.update", title="Another title")


async def another_session(scene: Scene) -> None:
    """The task gets another session."""
    await launch(scene)
    await scene.ask_once("task.session.create")


async def stop(scene: Scene) -> None:
    """The session is stopped in the middle of a turn."""
    scene.agent.update(on={"session/prompt": HANGS})
    await launch(scene)
    await scene.add("second")
    await scene.agent.until(scene.agent.marks)
    await scene.ask("task.session.stop")


async def complete(scene: Scene) -> None:
    """The task is completed in the middle of a turn."""
    scene.agent.update(on={"session/prompt": HANGS})
    await launch(scene)
    await scene.add("second")
    await scene.agent.until(scene.agent.marks)
    await scene.ask("task.complete")


async def delete_session(scene: Scene) -> None:
    """The session is deleted."""
    await launch(scene)
    await scene.ask("task.session.delete", force=True)


async def delete_task(scene: Scene) -> None:
    """The task is deleted."""
    await launch(scene)
    await scene.ask("task.delete", force=True)


async def launch_in_repository(scene: Scene) -> None:
    """A launch in a worktree of a repository."""
    make_repository(scene)
    await launch(scene)


async def delete_with_branch(scene: Scene) -> None:
    """A task with a worktree is deleted, its branch too."""
    make_repository(scene)
    await launch(scene)
    await scene.ask("task.delete", force=True, delete_branch=True)


def make_repository(scene: Scene) -> None:
    """A repository with one commit."""
    directory = scene.directory / "repository"
    directory.mkdir()
    (directory / "file").write_text("content")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        names = {"user.name": "Tester", "user.email": "tester@localhost"}
        options = [part for key, value in names.items() for part in ("-c", f"{key}={value}")]
        subprocess.run(["git", *options, "-C", str(directory), *words], check=True)
    scene.repository = str(directory)


# ---- looking


async def refused(scene: Scene, action: str, **payload: Any) -> CallFailed:
    """The refusal of a request about the session."""
    try:
        answer = await scene.ask_once(action, **payload)
    except CallFailed as refusal:
        return refusal
    raise AssertionError(f"{action} was answered: {json.dumps(answer)}")
