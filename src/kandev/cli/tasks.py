"""Commands about tasks: new, ls, show, complete, rm, search."""

import os
from typing import Any

import click

from kandev.cli.options import id_argument, text_or_stdin, wait_options
from kandev.cli.plain import one_line
from kandev.cli.run import CANCELLED, Connected, Names, backend_command
from kandev.cli.sessions import finish_turn
from kandev.cli.words import interrupted_lines, needs_line, offer_lines, outcome_lines
from kandev.errors import KandevError

_OFFERS = 50  # messages from the end in which an offer is looked for
_SHORT = 8  # digits of an id in a table; any beginning that is not ambiguous is taken


@click.command()
@click.argument("text")
@click.option("--agent", required=True, metavar="NAME", help="See: kandev agents")
@click.option("--repo", type=click.Path(file_okay=False, exists=True), help="Work in a worktree of this repository.")
@click.option("--base-branch", metavar="NAME", help="Branch off here instead of the repository's present branch.")
@click.option("--in-place", is_flag=True, help="Work in --repo itself, without a worktree.")
@click.option("--runtime", metavar="NAME", help="Where the agent runs; see: kandev runtimes")
@click.option("--title", metavar="T")
@click.option("--model", metavar="M")
@click.option("--mode", metavar="M")
@wait_options
@backend_command
async def new(
    context: Connected,
    *,
    text: str,
    agent: str,
    repo: str | None,
    base_branch: str | None,
    in_place: bool,
    runtime: str | None,
    title: str | None,
    model: str | None,
    mode: str | None,
    wait: bool,
    timeout: float | None,
    permissions: str | None,
) -> int | None:
    """Give TEXT to an agent as a new task (`-` reads it from stdin)."""
    from kandev.cli.client import new_client_id

    if in_place and not repo:
        raise click.UsageError("--in-place needs --repo.")
    answer = await context.client.call(
        "task.create",
        description=text_or_stdin(text),
        agent=agent,
        title=title,
        runtime=runtime,
        repository_path=os.path.abspath(repo) if repo else None,
        base_branch=base_branch,
        model=model,
        mode=mode,
        in_place=in_place or None,
        client_task_id=new_client_id(),
    )
    session_id = str(answer["session"]["id"])
    names = Names(task_id=str(answer["task"]["id"]), session_id=session_id, typed=session_id)
    lines = [f"Task {names.task_id}, session {session_id}: saved, and {agent} is being started."]
    if not wait:
        context.out.result(answer, *lines, f"Follow it with: kandev attach {session_id[:_SHORT]}")
        return 0
    context.out.note(lines[0])
    from kandev.cli.wait import Call, first_message

    async def sent(call: Call) -> tuple[str, dict[str, Any]]:
        return await first_message(call, session_id), answer

    return await finish_turn(context, names, sent, timeout=timeout, permissions=permissions)


@click.command()
@click.option("--state", metavar="STATE", help="Only tasks in this state, such as REVIEW.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True)
@click.option("--cursor", metavar="C", help="Go on behind an earlier page (next_cursor of --json).")
@backend_command
async def ls(context: Connected, *, state: str | None, limit: int, cursor: str | None) -> None:
    """List tasks with their newest session and what it needs, newest first."""
    import asyncio

    state = state.upper() if state else None
    page = await context.client.call("task.list", state=state, limit=limit, cursor=cursor)
    rows = await asyncio.gather(*(_with_session(context, task) for task in page["tasks"]))
    context.out.table(
        {"tasks": rows, "next_cursor": page.get("next_cursor")},
        ("TASK", "STATE", "SESSION", "AGENT", "NEEDS", "TITLE"),
        [_row(row) for row in rows],
        empty="No tasks yet. Make one with: kandev new TEXT --agent demo",
    )
    if page.get("next_cursor"):
        context.out.note(f"There are more: kandev ls --cursor {page['next_cursor']}")


async def _with_session(context: Connected, task: dict[str, Any]) -> dict[str, Any]:
    """Return the task with its newest session and that one's status; a task deleted meanwhile comes without."""
    try:
        listed = await context.client.call("task.session.list", task_id=task["id"])
        newest = max(listed["sessions"], key=lambda one: str(one["created_at"]), default=None)
        if newest is None:
            return {**task, "session": None, "status": None}
        status = await context.client.call("task.session.status", task_id=task["id"], session_id=newest["id"])
    except KandevError:
        return {**task, "session": None, "status": None}
    return {**task, "session": newest, "status": status}


def _row(task: dict[str, Any]) -> tuple[str, ...]:
    session, status = task["session"] or {}, task["status"] or {}
    needs = str(status.get("needs") or "none")
    marks = [] if needs == "none" else [needs]
    marks += ["interrupted"] if status.get("interrupted") else []
    return (
        str(task["id"])[:_SHORT],
        str(task["state"]),
        f"{str(session.get('id', ''))[:_SHORT]} {session.get('state', '')}".strip(),
        str(session.get("agent", "")),
        ", ".join(marks),
        one_line(str(task["title"]), 120),
    )


@click.command()
@id_argument
@backend_command
async def show(context: Connected, *, prefix: str) -> None:
    """Show a task, its session, how each resume went, and which turns were cut off."""
    import asyncio

    names = await context.names(prefix)
    task, got, status = await asyncio.gather(
        context.client.call("task.get", task_id=names.task_id),
        context.client.call("task.session.get", session_id=names.session_id),
        context.client.call("task.session.status", **names.both),
    )
    newest = await context.client.call("message.list", session_id=names.session_id, limit=_OFFERS)
    offers = [f"  {line}" for line in offer_lines(newest["messages"], names.typed)]
    context.out.result({**task, **got, "status": status}, *_show_lines(task["task"], got, status, names), *offers)


def _show_lines(task: dict[str, Any], got: dict[str, Any], status: dict[str, Any], names: Names) -> list[str]:
    session = got["session"]
    running = "running" if status["is_agent_running"] else "not running"
    lines = [
        one_line(str(task["title"]), 200),
        f"  task       {task['id']}  {task['state']}",
        f"  session    {session['id']}  {session['state']}",
        f"  agent      {session['agent']} ({session['runtime']}), {running}",
    ]
    if status.get("worktree_path"):
        branch = status.get("worktree_branch")
        lines.append(f"  workspace  {status['worktree_path']}" + (f"  (branch {branch})" if branch else ""))
    if status.get("error"):
        lines.append(f"  error      {one_line(str(status['error']), 300)}")
    if need := needs_line(status, names.typed):
        lines.append(f"  {need}")
    blocks = [outcome_lines(outcome, names.typed) for outcome in got["resumes"]]
    blocks += [interrupted_lines(turn, names.typed) for turn in got["interrupted_turns"]]
    for first, *more in blocks:
        lines += [f"  {first}", *(f"    {line}" for line in more)]
    return lines


@click.command()
@id_argument
@backend_command
async def complete(context: Connected, *, prefix: str) -> None:
    """Mark a task as completed. Its agent ends; the transcript and the branch stay."""
    names = await context.task_names(prefix)
    answer = await context.client.call("task.complete", task_id=names.task_id)
    context.out.result(answer, f"Task {names.task_id} is completed. The transcript and the branch are kept.")


@click.command()
@id_argument
@click.option("--force", is_flag=True, help="Also with uncommitted changes.")
@click.option("--delete-branch", is_flag=True, help="Delete the branch too; it is kept otherwise.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@backend_command
async def rm(context: Connected, *, prefix: str, force: bool, delete_branch: bool, yes: bool) -> int:
    """Delete a task with its sessions, or one session of several. The branch is kept unless told otherwise."""
    names = await context.task_names(prefix)
    listed = await context.client.call("task.session.list", task_id=names.task_id)
    one_of_several = not names.task_id.startswith(prefix) and len(listed["sessions"]) > 1
    kind, identity = ("session", names.session_id) if one_of_several else ("task", names.task_id)
    asked = context.out.interactive and not (yes or force)
    if asked and not click.confirm(f"Delete {kind} {identity} and its transcript?", err=True):
        context.out.note("Nothing was deleted.")
        return CANCELLED
    if one_of_several:
        await context.client.call("task.session.delete", **names.both)
    else:
        await context.client.call("task.delete", task_id=names.task_id, force=force, delete_branch=delete_branch)
    kept = "" if delete_branch or one_of_several else " Its branch, if it had one, is kept."
    context.out.result({"deleted": identity, "kind": kind}, f"Deleted {kind} {identity}.{kept}")
    return 0


@click.command()
@click.argument("text")
@click.option("--task", "prefix", metavar="ID", help="Only in this task.")
@backend_command
async def search(context: Connected, *, text: str, prefix: str | None) -> None:
    """Search the transcripts."""
    task_id = (await context.task_names(prefix)).task_id if prefix else None
    answer = await context.client.call("message.search", text=text, task_id=task_id)
    rows = [
        (
            str(hit["session_id"])[:_SHORT],
            str(hit["created_at"]),
            str(hit["author_type"]),
            str(hit["excerpt"]),
        )
        for hit in answer.get("hits", [])
    ]
    context.out.table(answer, ("SESSION", "WHEN", "WHO", "TEXT"), rows, empty=f"Nothing has {text!r} in it.")
