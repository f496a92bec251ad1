"""kill -9 of the backend with sessions in every state, once for all tests here; then each is looked at and resumed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from backend import Backend
from conversation import Cast, Conversation
from wire_client import Client

Left = dict[str, Conversation]
Found = dict[str, Any]

RESUME = ["session STARTING", "session WAITING_FOR_INPUT"]
TURN = ["session RUNNING", "task IN_PROGRESS", "session WAITING_FOR_INPUT", "task REVIEW"]
HANGS = {"match": "long", "steps": [{"text": "so far"}, {"tool": "make", "end": False}, {"mark": "hangs"}, "hang"]}
NEVER = {"gate": "never"}


@pytest.fixture(scope="module")
def left() -> Left:
    """The sessions that the killed backend left, by what they were in the middle of."""
    return {}


@pytest.fixture(scope="module")
def found() -> Found:
    """What the next backend said of each session before anybody did anything: states and status."""
    return {}


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def stage(
    tmp_path_factory: pytest.TempPathFactory, cast: Cast, left: Left, found: Found
) -> AsyncIterator[Backend]:
    """The backend that was started after the kill; in place of the one that nobody kills."""
    async with Backend(tmp_path_factory.mktemp("stage"), config=cast.config) as backend:
        await backend.start()
        async with backend.client() as client:
            left |= {name: await cast.conversation(client, **script) for name, script in SCRIPTS.items()}
            for name, session in left.items():
                await PREPARE[name](session)
            await backend.kill9()
        for session in left.values():
            session.agent.update(start=[], on={})
        await backend.start()
        async with backend.client() as client:
            for name, session in left.items():
                await session.follow(client)
                found[name] = (*await session.states(), await session.status())
        yield backend


async def begin(session: Conversation) -> None:
    """WAITING_FOR_INPUT with an agent."""
    await session.begin()


async def begin_and_lose(session: Conversation) -> None:
    """WAITING_FOR_INPUT without one."""
    await session.begin()
    await session.lose_agent()


async def run(session: Conversation) -> None:
    """In the middle of its second turn, with a tool call open."""
    await session.begin()
    await session.send("long")
    await session.agent.until(session.agent.marks)
    await session.event("session.message.added", message=ToolCall())


async def start(session: Conversation) -> None:
    """STARTING: a resume whose agent does not answer initialize."""
    await begin_and_lose(session)
    session.agent.update(start=[{"mark": "starts"}, NEVER])
    await session.act("task.session.resume")
    await session.agent.until(session.agent.marks)


async def load(session: Conversation) -> None:
    """STARTING: a resume whose agent has replayed a part."""
    await begin_and_lose(session)
    session.agent.update(on={"session/load": {"steps": [{"replay": 1}, {"mark": "loads"}, NEVER]}})
    await session.act("task.session.resume")
    await session.agent.until(session.agent.marks)


async def create(session: Conversation) -> None:
    """CREATED, and never started."""


async def fail(session: Conversation) -> None:
    """FAILED before the first answer."""
    await session.act("task.session.start")
    await session.event("session.state_changed", new_state="FAILED")


async def stop(session: Conversation) -> None:
    """CANCELLED after a turn."""
    await session.begin()
    await session.act("task.session.stop")


async def complete(session: Conversation) -> None:
    """COMPLETED after a turn."""
    await session.begin()
    await session.act("task.complete")


class ToolCall:
    """Equal to a message that is a tool call."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and other["type"] == "tool_call"

    __hash__ = None  # type: ignore[assignment]  # it is compared only


SCRIPTS: dict[str, Any] = {
    "waiting": {},
    "prompted": {},
    "ordered": {},
    "history": {"kind": "history"},
    "plain": {"kind": "plain"},
    "dormant": {},
    "running": {"on": {"session/prompt": HANGS}},
    "starting": {},
    "loading": {"resume": False},
    "created": {},
    "failed": {"start": [{"die": 1}]},
    "cancelled": {},
    "completed": {},
}
PREPARE = {
    **dict.fromkeys(("waiting", "prompted", "ordered", "history", "plain"), begin),
    "dormant": begin_and_lose,
    "running": run,
    "starting": start,
    "loading": load,
    "created": create,
    "failed": fail,
    "cancelled": stop,
    "completed": complete,
}
AFTERWARDS = {
    **dict.fromkeys(
        ("waiting", "history", "plain", "dormant", "running", "starting", "loading"),
        ("WAITING_FOR_INPUT", "REVIEW", True, "agent_not_running"),
    ),
    "created": ("CREATED", "CREATED", False, "never_started"),
    "failed": ("FAILED", "FAILED", False, "session_ended"),
    "cancelled": ("CANCELLED", "REVIEW", False, "session_ended"),
    "completed": ("COMPLETED", "COMPLETED", False, "session_ended"),
}


@pytest.mark.parametrize("name", AFTERWARDS)
def test_state_1_what_the_kill_left(found: Found, name: str) -> None:
    """None is STARTING or RUNNING without an agent; finished ones are as they were; the status says what to do."""
    session_state, task_state, status = found[name]
    decision = (status["needs_resume"], status["resume_reason"])
    assert (session_state, task_state, *decision) == AFTERWARDS[name]


def test_nothing_is_started_by_itself(found: Found) -> None:
    """Recovery is lazy: the start of the backend starts no agent."""
    assert [name for name, (*_, status) in found.items() if status["is_agent_running"] or status["stage"]] == []


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("waiting", "native"),
        ("dormant", "native"),
        ("starting", "native"),
        ("loading", "native"),
        ("history", "injection"),
        ("plain", "idle"),
    ],
)
async def test_the_resume_after_a_kill(client: Client, left: Left, name: str, how: str) -> None:
    """STARTING, WAITING_FOR_INPUT; then a message, RUNNING and in progress, and back again."""
    session = left[name]
    await session.follow(client)
    before = await session.transcript()
    assert (await session.resume())["how"] == how
    assert session.moves() == RESUME
    assert "session/prompt" not in session.methods()
    assert [one for one in await session.transcript() if one["author_type"] != "system"] == before
    await session.say("second")
    await session.event("task.state_changed", new_state="REVIEW")
    assert session.moves() == TURN


async def test_state_1_a_turn_that_was_cut(client: Client, left: Left, found: Found) -> None:
    """The turn is interrupted, its partial text kept once, its open tool call unknown, and nothing is sent again."""
    session = left["running"]
    await session.follow(client)
    *_, status = found["running"]
    assert status["last_turn"]["state"] == "interrupted"
    assert (status["interrupted"], status["queue_held"], status["needs"]) == (True, "interrupted", "decision")
    told = await session.transcript()
    assert [message["content"] for message in told[2:5]] == ["long", "so far", "make"]
    assert told[4]["metadata"]["status"] == "unknown"
    assert (await session.notice("interrupted"))["metadata"]["actions"] == ["send_again"]
    assert (await session.resume())["how"] == "native"
    assert session.moves() == RESUME
    assert session.agent.prompts() == ["first", "long"]
    await session.say("third")
    assert session.agent.prompts() == ["first", "long", "third"]
    assert (await session.status())["interrupted"] is False


async def test_a_message_brings_the_session_back(client: Client, left: Left) -> None:
    """ensureSessionRunning: nobody resumed it; the prompt does, and is answered by an agent that remembers."""
    session = left["prompted"]
    await session.follow(client)
    await session.say("second")
    await session.event("task.state_changed", new_state="REVIEW")
    assert session.moves() == [*RESUME, *TURN]
    assert session.methods() == ["initialize", "session/resume", "session/prompt"]
    assert (await session.texts("agent"))[-1] == "heard: second | memory: 1"


async def test_prompt_3_messages_that_come_at_once_keep_their_order(client: Client, left: Left) -> None:
    """Prompts for a session without an agent wait for it together, and each is sent when the one before has ended."""
    session = left["ordered"]
    await session.follow(client)
    words = ["second", "third", "fourth"]
    for word in words:
        await session.call("message.add", content=word)
    await session.agent.until(lambda: len(session.agent.prompts()) == 4)
    assert session.agent.prompts() == ["first", *words]
    assert len(session.agent.pids()) == 2
