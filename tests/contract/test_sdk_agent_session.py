"""An agent that the official SDK built, through the whole product: asked, killed with the backend, restored."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from backend import Backend
from wire_client import Client

AGENT = Path(__file__).parent.parent / "fakes" / "sdk_agent.py"

Json = dict[str, Any]


@pytest.fixture
async def sdk_backend(backend: Backend, tmp_path: Path) -> Backend:
    """A backend that knows the agent twice: as `sdk`, and as `sdk-load`, which does not offer session/resume."""
    store = tmp_path / "agent-sessions"
    store.mkdir()
    command = [sys.executable, str(AGENT), str(store)]
    backend.config = "".join(
        f"[agents.{name}]\ncommand = {json.dumps([*command, *options])}\nnative_session_resume = true\n"
        for name, options in (("sdk", []), ("sdk-load", ["--load-only"]))
    )
    await backend.start()
    return backend


async def create(client: Client, agent: str, description: str) -> Json:
    """A new task whose first prompt is under way; its two ids. The client follows it."""
    created = await client.call("task.create", {"agent": agent, "description": description, "start": False})
    ids = {"task_id": created["task"]["id"], "session_id": created["session"]["id"]}
    await client.call("session.subscribe", {"session_id": ids["session_id"]})
    await client.call("task.session.start", ids)
    return ids


async def prompt(client: Client, ids: Json, text: str) -> Json:
    """Sends a prompt; the payload of its turn's end."""
    seen = len(client.events)
    await client.call("message.add", {**ids, "content": text})
    done: Json = await client.wait_event("session.turn.completed", after=seen)
    return done


async def transcript(client: Client, ids: Json) -> list[Json]:
    page = await client.call("message.list", {"session_id": ids["session_id"], "limit": 200})
    messages: list[Json] = page["messages"]
    return messages


async def said(client: Client, ids: Json) -> list[tuple[str, str]]:
    """(author, text) of what was said, oldest first."""
    return [(m["author_type"], m["content"]) for m in await transcript(client, ids) if m["type"] == "message"]


@pytest.mark.parametrize(("agent", "method"), [("sdk", "session/resume"), ("sdk-load", "session/load")])
async def test_hist_1_an_sdk_agent_is_killed_with_the_backend_and_restored(
    sdk_backend: Backend, agent: str, method: str
) -> None:
    """New, prompt, kill -9, prompt: the agent remembers, and what a load replays stands in the transcript once."""
    async with sdk_backend.client() as client:
        ids = await create(client, agent, "one")
        await client.wait_event("session.turn.completed")
        await prompt(client, ids, "two")
        await sdk_backend.kill9()
    await sdk_backend.start()

    async with sdk_backend.client() as client:
        snapshot = await client.call("session.subscribe", {"session_id": ids["session_id"]})
        assert snapshot["gap"]
        assert snapshot["status"]["resume_reason"] == "agent_not_running"
        assert (await prompt(client, ids, "three"))["stop_reason"] == "end_turn"

        outcome = (await client.call("task.session.get", ids))["resumes"][0]
        assert (outcome["how"], outcome["reason"]) == ("native", method)
        assert bool(outcome["replayed"]) == (method == "session/load")
        answers = ["1: one", "2: one | two", "3: one | two | three"]
        pairs = zip(["one", "two", "three"], answers, strict=True)
        assert await said(client, ids) == [line for q, a in pairs for line in (("user", q), ("agent", a))]
        kinds = [message["type"] for message in await transcript(client, ids)]
        assert kinds.count("thinking") == 3


@pytest.mark.parametrize(
    ("answer", "heard", "state"),
    [
        ({"option_id": "yes"}, "chose yes", "answered"),
        ({"option_id": "no"}, "chose no", "answered"),
        ({"cancelled": True}, "chose nothing", "cancelled"),
    ],
)
async def test_perm_1_an_sdk_agent_asks_and_hears_the_answer(
    sdk_backend: Backend, answer: Json, heard: str, state: str
) -> None:
    """The request waits for a person, the answer reaches the agent once, and both stand in the transcript."""
    async with sdk_backend.client() as client:
        ids = await create(client, "sdk", "ask before it")
        request = (await client.wait_event("permission.requested"))["request"]
        assert [option["option_id"] for option in request["options"]] == ["yes", "no"]
        status = await client.call("task.session.status", ids)
        assert (status["state"], status["needs"], status["pending_permissions"]) == ("RUNNING", "permission", 1)

        responded = {"session_id": ids["session_id"], "request_id": request["id"], **answer}
        assert (await client.call("permission.respond", responded))["permission"]["state"] == state
        await client.wait_event("session.turn.completed")
        assert await said(client, ids) == [("user", "ask before it"), ("agent", heard)]
        assert (await client.call("permission.list", {}))["permissions"] == []

        messages = {message["type"]: message for message in await transcript(client, ids)}
        assert messages["permission_request"]["metadata"]["state"] == state
        assert messages["tool_call"]["metadata"]["status"] == "completed"


async def test_an_sdk_agent_asks_again_after_a_restart(sdk_backend: Backend) -> None:
    """Answered before the kill, restored after it, asked once more: a permission lasts as long as its request."""
    async with sdk_backend.client() as client:
        ids = await create(client, "sdk-load", "ask first")
        await answer_with(client, ids, "yes")
        await client.wait_event("session.turn.completed")
        await sdk_backend.kill9()
    await sdk_backend.start()

    async with sdk_backend.client() as client:
        await client.call("session.subscribe", {"session_id": ids["session_id"]})
        await client.call("message.add", {**ids, "content": "ask second"})
        await answer_with(client, ids, "no")
        await client.wait_event("session.turn.completed")
        lines = ["ask first", "chose yes", "ask second", "chose no"]
        assert [text for _, text in await said(client, ids)] == lines
        tools = [message for message in await transcript(client, ids) if message["type"] == "tool_call"]
        assert [tool["content"] for tool in tools] == ["ask first", "ask second"]


async def answer_with(client: Client, ids: Json, option: str) -> None:
    request = (await client.wait_event("permission.requested"))["request"]
    chosen = {"session_id": ids["session_id"], "request_id": request["id"], "option_id": option}
    await client.call("permission.respond", chosen)
