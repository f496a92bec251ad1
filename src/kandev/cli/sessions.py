"""Commands about a session: status, resume, recover, send, answer, queue, cancel, stop."""

from typing import TYPE_CHECKING, Any, cast

import click

from kandev.cli.options import id_argument, text_or_stdin, wait_options
from kandev.cli.plain import one_line
from kandev.cli.run import FAILED, REFUSED, Connected, Names, backend_command
from kandev.cli.words import HELD, needs_line, resume_words, stages_line
from kandev.errors import Conflict, NotFound, TimedOut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kandev.cli.permission import Policy
    from kandev.cli.wait import Call

_WHY = {
    "already_running": "the agent is running",
    "stale_execution": "the agent was seen a moment ago",
    "agent_not_running": "the agent is not running; its own session is known, and restored where the agent can",
    "agent_not_running_fresh_start": "the agent is not running and would start new",
    "session_ended": "the session has ended",
    "parked": "the agent kept ending, so it is not started by itself",
    "never_started": "the agent was never started",
}


@click.command()
@id_argument
@backend_command
async def status(context: Connected, *, prefix: str) -> None:
    """Tell whether a session needs a resume and why, and what it waits for."""
    names = await context.names(prefix)
    answer = await context.client.call("task.session.status", **names.both)
    reason = str(answer["resume_reason"])
    lines = [
        f"{answer['state']}, {answer['agent']} on {answer['runtime']}",
        f"needs resume: {'yes' if answer['needs_resume'] else 'no'} ({reason}: {_WHY.get(reason, reason)})",
    ]
    if answer.get("interrupted"):
        lines.append("The last turn was cut off. Text up to there is kept; its last steps may or may not have run.")
    if answer.get("queued"):
        held = str(answer.get("queue_held") or "")
        lines.append(f"queued messages: {answer['queued']}" + (f" ({HELD.get(held, held)})" if held else ""))
    if answer.get("error"):
        lines.append(f"error: {one_line(str(answer['error']), 300)}")
    lines.append(needs_line(answer, prefix))
    if answer["needs_resume"]:
        lines.append(f"Bring it back with: kandev resume {prefix}; a message does it too: kandev send {prefix} TEXT")
    elif (actions := answer["recover_actions"]) and reason in {"session_ended", "parked"}:
        lines.append(f"Go on with: kandev recover {prefix} --action {'|'.join(map(str, actions))}")
    context.out.result(answer, *lines)


@click.command()
@id_argument
@click.option("--wait", is_flag=True, help="Wait until the agent is ready, or the resume has failed.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="With --wait: exit code 3 then."
)
@backend_command
async def resume(context: Connected, *, prefix: str, wait: bool, timeout: float | None) -> int:
    """Start a session's agent again, with its memory.

    An agent that cannot restore its memory gets the recorded conversation, where it is set up so.
    """
    return await _bring_back(context, await context.names(prefix), "task.session.resume", wait=wait, timeout=timeout)


@click.command()
@id_argument
@click.option(
    "--action",
    required=True,
    type=click.Choice(["resume", "fresh_start", "recap", "retry_token"]),
    help="resume: try again. fresh_start: a new conversation. recap: a new one that gets a summary. "
    "retry_token: the earlier conversation once more.",
)
@click.option("--wait", is_flag=True, help="Wait until the agent is ready, or the attempt has failed.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="With --wait: exit code 3 then."
)
@backend_command
async def recover(context: Connected, *, prefix: str, action: str, wait: bool, timeout: float | None) -> int:
    """Bring back a session that failed, was stopped or parked.

    Also one whose conversation the agent no longer has.
    """
    names = await context.names(prefix)
    return await _bring_back(context, names, "task.session.recover", wait=wait, timeout=timeout, action=action)


async def _bring_back(
    context: Connected, names: Names, call: str, *, wait: bool, timeout: float | None, **payload: Any
) -> int:
    resumes = call == "task.session.resume"
    if resumes:
        payload["open_queue"] = True  # a person asks; a page that is opened does not
    if not wait:
        answer = await context.client.call(call, **names.both, **payload)
        lines = [f"The agent is being started (session {names.session_id}). You can send messages already."]
        if answer["already_running"]:
            lines = resume_words({"how": "already_running"}, names.typed)
        context.out.result(answer, *lines, f"Follow it with: kandev attach {names.typed}")
        return 0
    from kandev.cli.wait import time_limit, wait_for_resume

    waits = {"wait": True} if resumes else {}
    async with time_limit(timeout, names), context.follower(names) as follower:
        answer, outcome = await wait_for_resume(follower, call, names, context.out, **waits, **payload)
    lines = resume_words(outcome, names.typed)
    if outcome.get("stages"):
        lines.append(stages_line(outcome["stages"]))
    context.out.result({**answer, "outcome": outcome}, *lines)
    return FAILED if outcome.get("error") else 0


@click.command()
@id_argument
@click.argument("text")
@wait_options
@backend_command
async def send(
    context: Connected, *, prefix: str, text: str, wait: bool, timeout: float | None, permissions: str | None
) -> int:
    """Send TEXT to a session (`-` reads it from stdin). Its agent is started again if it does not run."""
    from kandev.cli.client import new_client_id

    content = text_or_stdin(text)
    names = await context.names(prefix)
    prompt = {"content": content, "client_message_id": new_client_id()}
    if not wait:
        answer = await context.client.call("message.add", **names.both, **prompt)
        saved = answer["message"]["id"]
        context.out.result(answer, f"Saved as message {saved}. Follow it with: kandev attach {prefix}")
        return 0

    async def add(call: "Call") -> tuple[str, dict[str, Any]]:
        answer = await call("message.add", **names.both, **prompt)
        added.append(str(answer["message"]["id"]))
        return added[0], answer

    added: list[str] = []
    try:
        return await finish_turn(context, names, add, timeout=timeout, permissions=permissions)
    except TimedOut:
        if added:
            raise
        look = f"kandev history {names.typed}"
        raise TimedOut(f"No answer came in time: your message may be saved, or not. Look with: {look}") from None


@click.command("send-again")
@id_argument
@click.option("--turn", "turn_id", metavar="TURN", help="Which turn; see: kandev show. Default: the newest.")
@wait_options
@backend_command
async def send_again(
    context: Connected, *, prefix: str, turn_id: str | None, wait: bool, timeout: float | None, permissions: str | None
) -> int:
    """Send the prompt of a turn that was cut off once more.

    Never done by itself: the agent may have carried out a part of it. A turn that was sent again already is refused.
    """
    names = await context.names(prefix)
    turn = turn_id or await _newest_turn(context, names)
    answer = await context.client.call("turn.send_again", session_id=names.session_id, turn_id=turn)
    saved = str(answer["message"]["id"])
    if not wait:
        context.out.result(answer, f"Saved as message {saved}. Follow it with: kandev attach {prefix}")
        return 0

    async def begun(_call: "Call") -> tuple[str, dict[str, Any]]:
        return saved, answer

    return await finish_turn(context, names, begun, timeout=timeout, permissions=permissions)


async def _newest_turn(context: Connected, names: Names) -> str:
    status = await context.client.call("task.session.status", **names.both)
    if status["last_turn"] is None:
        raise NotFound("This session has no turn yet.")
    return str(status["last_turn"]["id"])


async def finish_turn(
    context: Connected,
    names: Names,
    begin: "Callable[[Call], Awaitable[tuple[str, dict[str, Any]]]]",
    *,
    timeout: float | None,
    permissions: str | None,
) -> int:
    """Wait for the turn of a message and write what the agent said.

    `begin` returns the message's id and what the JSON value has beside the turn; its calls may be repeated after a
    restart of the backend.
    """
    from kandev.cli.wait import PermissionWaits, TurnWaiter, time_limit

    policy = cast("Policy", permissions or ("ask" if context.out.interactive else "deny"))
    try:
        async with time_limit(timeout, names), context.follower(names) as follower:
            message_id, begun = await begin(follower.call)
            end = await TurnWaiter(follower, names, policy=policy, out=context.out).wait(message_id)
            login = await _login_line(follower.call, names) if end.exit_code else ""
    except PermissionWaits as error:
        context.out.failure(dict(error.payload()), error.message)
        return REFUSED
    turn = {"turn_id": end.turn_id, "state": end.state, "stop_reason": end.stop_reason, "why": end.why}
    context.out.result({**begun, "turn": turn, "text": end.text}, end.text)
    if end.exit_code and not context.out.as_json:
        context.out.note(_end_words(end.state, end.why, names))
        context.out.note(login)
    return end.exit_code


async def _login_line(call: "Call", names: Names) -> str:
    """Return how to log in where that is what a prompt waits for, else ''."""
    status = await call("task.session.status", **names.both)
    return needs_line(status, names.typed) if status["needs"] == "login" else ""


def _end_words(state: str, why: str, names: Names) -> str:
    because = f": {one_line(why, 300).rstrip('.')}" if why else ""
    words = {
        "cancelled": "The turn was cancelled; what was said up to there is kept.",
        "interrupted": "The turn was cut off; what was said is kept. Its last steps may or may not have run.",
        "failed": f"The turn failed{because}. What was said up to there is kept.",
        "held": f"Your message is saved and was not sent{because}.",
        "ended": f"The session has ended{because}. Your message is kept.",
    }
    return words.get(state, f"The turn ended ({state}){because}.") + f" See: kandev status {names.typed}"


@click.command()
@id_argument
@click.argument("option")
@click.option("--request", "request_id", metavar="REQUEST", help="Which request, if several wait. Default: the oldest.")
@backend_command
async def answer(context: Connected, *, prefix: str, option: str, request_id: str | None) -> None:
    """Answer a permission request.

    OPTION is its number, id or name, or `cancel`.
    """
    from kandev.cli.permission import choose

    names = await context.names(prefix)
    listed = await context.client.call("permission.list", session_id=names.session_id)
    pending = [one for one in listed["permissions"] if request_id in {None, str(one["id"])}]
    if not pending:
        raise NotFound("No permission request of this session waits for an answer.")
    request = min(pending, key=lambda one: str(one["created_at"]))
    if request.get("state", "pending") != "pending":
        raise Conflict("This request has its answer already, or expired.", reason="already_resolved")
    chosen = choose(request, option)
    choice: dict[str, Any] = {"option_id": chosen} if chosen else {"cancelled": True}
    result = await context.client.call(
        "permission.respond", session_id=names.session_id, request_id=request["id"], **choice
    )
    context.out.result(result, f"Answered {chosen!r}; the agent goes on." if chosen else "Cancelled the request.")


@click.command()
@id_argument
@click.option("--drop", metavar="MESSAGE", help="Take this message out of the queue.")
@click.option("--resume", "open_again", is_flag=True, help="Open a queue that is held.")
@backend_command
async def queue(context: Connected, *, prefix: str, drop: str | None, open_again: bool) -> None:
    """Show the messages that wait to be sent.

    With --drop or --resume, change that first.
    """
    names = await context.names(prefix)
    if drop:
        await context.client.call("message.queue.cancel", session_id=names.session_id, message_id=drop)
        context.out.note(f"Message {drop} was taken out; it leaves no trace in the transcript.")
    if open_again:
        await context.client.call("message.queue.resume", session_id=names.session_id)
        context.out.note("The queue is open.")
    listed = await context.client.call("message.queue.list", session_id=names.session_id)
    rows = [(str(one["message_id"]), str(one["created_at"]), str(one["content"])) for one in listed["queue"]]
    context.out.table(listed, ("MESSAGE", "SINCE", "TEXT"), rows, empty="The queue is empty.")
    if held := str(listed.get("held") or ""):
        context.out.note(f"The queue is {HELD.get(held, held)}. Open it with: kandev queue {prefix} --resume")


@click.command()
@id_argument
@backend_command
async def cancel(context: Connected, *, prefix: str) -> None:
    """Cancel the present turn. The agent stays; queued messages are kept and wait for you."""
    names = await context.names(prefix)
    result = await context.client.call("task.session.cancel", **names.both)
    context.out.result(
        result,
        "The turn is being cancelled. What was said up to there is kept, and so are queued messages.",
        f"Go on with: kandev send {prefix} TEXT",
    )


@click.command()
@id_argument
@backend_command
async def stop(context: Connected, *, prefix: str) -> None:
    """Stop a session: its agent ends. The transcript, the workspace and the agent's memory are kept."""
    names = await context.names(prefix)
    result = await context.client.call("task.session.stop", **names.both)
    context.out.result(
        result,
        f"Session {names.session_id} is stopped. The transcript, the files and the agent's memory are kept.",
        f"Bring it back with: kandev recover {prefix} --action resume",
    )
