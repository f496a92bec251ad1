"""Another session of a task, from one that is there."""

from typing import Any

import click

from kandev.cli.options import id_argument
from kandev.cli.run import Connected, backend_command


@click.command()
@id_argument
@click.option("--agent", metavar="NAME", help="Another agent, which gets a summary: only the same one can copy.")
@backend_command
async def fork(context: Connected, *, prefix: str, agent: str | None) -> None:
    """Make another session that begins where this one stands, in a worktree of its own.

    It begins as the agent's own copy, where the agent can copy, else with a summary in its first message.
    """
    names = await context.names(prefix)
    request: dict[str, Any] = {"task_id": names.task_id, "from_session_id": names.session_id}
    answer = await context.client.call("task.session.create", **request, **({"agent": agent} if agent else {}))
    made = str(answer["session"]["id"])
    context.out.result(answer, f"Session {made} is made, not started.", f"Begin with: kandev send {made} TEXT")
