"""[hooks]: the user's command runs for what it was asked for, and knows which session it is."""

from typing import Any

from backend import Backend

CONFIG = """
[hooks]
on = ["waiting", "permission"]
command = "echo $KANDEV_EVENT $KANDEV_TASK_ID $KANDEV_SESSION_ID >> hooks.txt"
"""


async def _answer_when_asked(client: Any, session_id: str) -> None:
    asked = await client.wait_event("permission.requested")
    request = asked["request"]
    option = request["options"][0]["option_id"]
    await client.call(
        "permission.respond", {"session_id": session_id, "request_id": request["id"], "option_id": option}
    )


async def test_hooks_run_when_a_session_asks_and_when_it_waits(backend: Backend) -> None:
    """A session that asked and then waited has run the command for both, with its ids."""
    backend.config = CONFIG
    await backend.start()
    async with backend.client() as client:
        await client.call("task.subscribe", {})
        created = await client.call("task.create", {"description": "ask", "agent": "demo"})
        task_id, session_id = created["task"]["id"], created["session"]["id"]
        await _answer_when_asked(client, session_id)
        written = backend.home / "hooks.txt"
        wanted = f"permission {task_id} {session_id}"
        await backend.until(lambda: written.exists() and wanted in written.read_text().splitlines())
        await backend.until(lambda: f"waiting {task_id} {session_id}" in written.read_text().splitlines())
