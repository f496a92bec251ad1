"""What was promised before a crash and not finished: stop, complete, delete (CRASH-13)."""

import contextlib

from kandev.agentctl.failpoints import failpoint
from kandev.domain.models import Task
from kandev.errors import KandevError
from kandev.orchestrator.deletion import BY_TASK, Deletion, delete_flags
from kandev.orchestrator.task_operations import TaskOperations
from kandev.orchestrator.tasks import TaskService
from kandev.store.store import Store


async def carry_out_intentions(
    store: Store, operations: TaskOperations, tasks: TaskService, deletion: Deletion
) -> None:
    """Finish it. What cannot be deleted as it was asked stays, without the intent, and a person sees it."""
    failpoint("intentions.before")
    for row in store.database.all("sessions_with_intent"):
        if row["intent"].startswith("delete "):
            force, _ = delete_flags(row["intent"])
            with contextlib.suppress(KandevError):
                await deletion.delete_session(row["task_id"], row["id"], force=force)
        elif row["intent"] != BY_TASK:
            await operations.finish_stop(row["id"])
    for task in store.tasks_with_intent():
        await _of_task(task, tasks, deletion)
    failpoint("intentions.after")


async def _of_task(task: Task, tasks: TaskService, deletion: Deletion) -> None:
    if task.intent == "complete":
        await tasks.finish_complete(task.id)
        return
    force, delete_branch = delete_flags(task.intent)
    with contextlib.suppress(KandevError):
        await deletion.delete_task(task.id, force=force, delete_branch=delete_branch)
