"""`kandev attach`: follow a session live, type to prompt, answer its questions; leaving does not stop the agent."""

import click

from kandev.cli.options import id_argument
from kandev.cli.run import Connected, backend_command


@click.command()
@id_argument
@click.option(
    "--last", type=click.IntRange(0, 50), default=20, show_default=True, help="How many messages to show first."
)
@backend_command
async def attach(context: Connected, *, prefix: str, last: int) -> int:
    """Follow a session. On a terminal, type to send; a number answers a question; Ctrl-C leaves.

    The agent goes on when you leave. A restart of the backend is bridged: nothing is shown twice.
    """
    import asyncio

    from kandev.cli.live import LiveView

    names = await context.names(prefix)
    got = await context.client.call("task.session.get", session_id=names.session_id)
    view = LiveView(context, names, agent=str(got["session"]["agent"]), last=last)
    try:
        await view.run()
    except asyncio.CancelledError:
        # Ctrl-C: asyncio.run cancels this task. Leaving is what was asked for, so it is no failure.
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        context.out.note("")
        context.out.note(f"Left. The agent goes on; come back with: kandev attach {prefix}")
    return 0
