"""What a board shows, in one request: each task with its newest session and that one's status."""

from conversation import Conversations
from wire_client import Client


async def test_a_board_entry_is_the_task_its_newest_session_and_that_status(
    client: Client, conversation: Conversations
) -> None:
    """A session made later takes the place of the first, and is counted; status and session are of the same one."""
    session = await conversation()
    await session.begin()
    (entry,) = (await client.call("task.board", {"task_id": session.task_id}))["entries"]
    assert entry["task"]["id"] == session.task_id
    assert (entry["session"]["id"], entry["sessions"]) == (session.id, 1)
    assert entry["status"] == await session.status()
    second = (await client.call("task.session.create", {"task_id": session.task_id}))["session"]
    (entry,) = (await client.call("task.board", {"task_id": session.task_id}))["entries"]
    assert (entry["session"]["id"], entry["status"]["session_id"], entry["sessions"]) == (second["id"], second["id"], 2)


async def test_a_board_is_read_in_pages_newest_tasks_first(client: Client, conversation: Conversations) -> None:
    """The pages together are the tasks of task.list; a task that is not there has no entry."""
    made = [(await conversation()).task_id for _ in range(3)]
    await client.call("task.delete", {"task_id": made.pop(0)})
    found: list[str] = []
    cursor = None
    while not found or cursor:
        page = await client.call("task.board", {"limit": 1, "cursor": cursor})
        found += [entry["task"]["id"] for entry in page["entries"]]
        cursor = page["next_cursor"]
    listed = [task["id"] for task in (await client.call("task.list", {"limit": 200}))["tasks"]]
    assert found == listed
    assert set(made) <= set(found)
    assert (await client.call("task.board", {"task_id": "nothing"}))["entries"] == []
