"""What is said to a person: the fact, what was kept or lost, and the command that goes on (UI-4). All pure.

The page uses the same words for the same moments. Scripts read `--json` and the exit code, never these.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kandev.cli.plain import one_line
from kandev.errors import KandevError

STAGES: Mapping[str, str] = {
    "checking": "checking what is there",
    "workspace": "checking the workspace",
    "launching": "launching",
    "creating_container": "making a container",
    "starting_container": "starting the container",
    "creating_sandbox": "making a sandbox",
    "waking_sandbox": "waking the sandbox up",
    "waiting_for_sprites": "waiting: Sprites asks to come later",
    "carrying": "carrying the sources to the agent",
    "starting_agent": "starting the agent",
    "next_minute": "waiting for the next minute: this agent loses a session that it restores within the same one",
    "restoring": "restoring its memory",
    "ready": "ready",
}

_HOW: Mapping[str, tuple[str, str]] = {
    "native": ("The agent remembers this conversation.", ""),
    "injection": (
        "The agent started new and will get a summary of this conversation with your next message.",
        "The transcript and the files are here.",
    ),
    "recap": (
        "The agent started new and will get a summary of this conversation with your next message.",
        "The transcript and the files are here.",
    ),
    "fresh": (
        "The agent started a new conversation.",
        "The transcript and the files are here; the agent's memory of them is not.",
    ),
    "idle": (
        "The agent started new and does not know this conversation.",
        "The transcript and the files are here.",
    ),
    "attached": ("The agent had kept running and is connected again.", "Nothing was lost."),
    "already_running": ("The agent is running; nothing had to be done.", ""),
}

_NEEDS: Mapping[str, str] = {
    "permission": "waits for your answer",
    "login": "wants you to log in",
    "decision": "waits for your decision",
}

_REASONS: Mapping[str, str] = {
    "session_ended": "The transcript is kept. Bring it back with: kandev recover {id} --action resume",
    "session_completed": "Completed is final. Read it with: kandev history {id}; start another with: kandev new",
    "parked": "Nothing was deleted. See why with: kandev logs {id}; then: kandev recover {id} --action resume",
    "workspace_missing": "The transcript is kept. See the folder and its branch with: kandev show {id}",
    "in_use": "The conversation is kept. Close the other program, then: kandev resume {id}",
    "already_resolved": "See what is still open with: kandev status {id}",
    "expired": "The question was asked before a restart. Ask the agent to go on: kandev send {id} 'go on'",
    "already_sent": "See what became of it with: kandev show {id}; a turn that runs ends with: kandev cancel {id}",
    "uncommitted_changes": "Nothing was removed. Commit them, or remove them as well with: kandev rm {id} --force",
    "unmerged_commits": "Nothing was removed. To lose those commits: kandev rm {id} --delete-branch --force",
    "disk_full": "What was saved is safe. Make room, then try again.",
    "stopping": "Nothing was lost. Start the backend again with: kandev serve",
}

_ACTIONS: Mapping[str, str] = {
    "resume": "try again: kandev recover {id} --action resume",
    "recap": "go on with a summary: kandev recover {id} --action recap",
    "fresh_start": "start fresh: kandev recover {id} --action fresh_start",
    "retry_token": "try the earlier conversation again: kandev recover {id} --action retry_token",
    "queue_resume": "go on as it is: kandev queue {id} --resume",
}

_DECISIONS: Mapping[str, str] = {
    "interrupted": "kandev show {id} tells what was cut; then kandev send {id} TEXT, or kandev send-again {id}",
    "token_rejected": "kandev recover {id} --action recap, fresh_start or retry_token; or kandev send {id} TEXT",
    "parked": "kandev logs {id}; then kandev recover {id} --action resume",
    "mode_not_restored": "kandev queue {id} --resume goes on all the same; or kandev send {id} TEXT",
}
"""By why the queue is held."""

HELD: Mapping[str, str] = {
    "cancelled": "held since the turn was cancelled",
    "stopped": "held since the session was stopped",
    "interrupted": "held since a turn was cut off",
    "token_rejected": "held since the agent no longer has the conversation",
    "parked": "held since the agent kept ending",
    "login_required": "held until you log in",
    "send_failed": "held since a message could not be delivered",
    "mode_not_restored": "held since the agent came back in another mode",
}


def resume_words(outcome: Mapping[str, Any], session: str) -> list[str]:
    """Return the lines that tell how a resume went; `outcome` as in session.resume.completed or the stored outcome."""
    error = str(outcome.get("error") or "")
    if error:
        return [f"The session could not be brought back: {one_line(error)}", "Nothing was deleted."]
    how = str(outcome.get("how") or "")
    if how == "fresh" and not outcome.get("reason"):
        return ["The agent was started."]  # for the first time: there was nothing to restore
    fact, kept = _HOW.get(how, (f"The session is back ({how or 'no details'}).", ""))
    lines = [fact]
    # How a memory was restored is the agent's affair; why it could not be is a person's.
    reason = one_line(str(outcome.get("reason") or ""))
    if reason and how not in {"native", "attached", "already_running"}:
        lines.append(f"Why: {reason}")
    if lost := one_line(str(outcome.get("lost") or "")):
        lines.append(f"Lost: {lost}")
    elif kept:
        lines.append(kept)
    if how == "idle":
        lines.append(f"Send a summary with your next message: kandev recover {session} --action recap")
    return lines


def outcome_lines(outcome: Mapping[str, Any], session: str) -> list[str]:
    """Return all that is stored of a start: how and why, what was lost, the stages, and what the agent repeated."""
    first, *more = resume_words(outcome, session)
    how, reason = str(outcome.get("how") or "failed"), one_line(str(outcome.get("reason") or ""))
    lines = [f"{outcome['started_at']}  {first}", f"how: {how}" + (f" ({reason})" if reason else ""), *more]
    if stages := outcome.get("stages"):
        lines.append(f"stages: {stages_line(stages)}")
    if replayed := outcome.get("replayed"):
        counts = ", ".join(f"{count} {one_line(kind)}" for kind, count in replayed.items())
        lines.append(f"repeated while it restored, and not stored again: {counts}")
    elif how == "native":
        lines.append("repeated while it restored: nothing")
    return lines


def interrupted_lines(turn: Mapping[str, Any], session: str) -> list[str]:
    """Return what is known of a turn that was cut, and how its prompt is sent again."""
    lines = [
        f"turn {turn['turn_id']} was cut off at {turn['ended_at']}. Text up to there is kept.",
        f"you had asked: {one_line(str(turn['prompt']), 200)}",
    ]
    calls = [f"{one_line(str(call['title']), 120)} ({call['kind']})" for call in turn["tool_calls"]]
    lines.append(f"may have run, or not: {'; '.join(calls)}" if calls else "no tool call was under way")
    if sent := turn["sent_again"]:
        return [*lines, f"sent again as message {sent}"]
    return [*lines, f"not sent again by itself; send it with: kandev send-again {session} --turn {turn['turn_id']}"]


def offer_lines(messages: Sequence[Mapping[str, Any]], session: str) -> list[str]:
    """Return what the transcript offers since a person last wrote, with the commands."""
    since = max((i for i, one in enumerate(messages) if one["author_type"] == "user"), default=-1)
    lines = []
    for one in messages[since + 1 :]:
        metadata = one.get("metadata") or {}
        commands = [_ACTIONS[action].format(id=session) for action in metadata.get("actions", ()) if action in _ACTIONS]
        if one["author_type"] == "system" and commands and metadata.get("kind") != "interrupted":
            lines += [f"{one['created_at']}  {one_line(str(one['content']), 400)}", *(f"  {line}" for line in commands)]
    return lines


def stages_line(stages: Mapping[str, float]) -> str:
    """Return the durations of a resume's stages on one line; `stages` in milliseconds."""
    parts = [f"{name} {duration:.0f} ms" for name, duration in stages.items()]
    return ", ".join(parts)


def next_step(error: KandevError, session: str) -> str:
    """Return what to do after `error` happened to `session` (an id as it was typed), or ''."""
    if error.reason == "login_required":
        command = one_line(str(error.details.get("command") or ""))
        return f"The conversation is kept. Log in with: {command}" if command else "The conversation is kept."
    if candidates := error.details.get("candidates"):
        return "It could be: " + ", ".join(one_line(str(candidate)) for candidate in candidates)
    if error.reason == "in_use" and (owner := error.details.get("owner")):
        return f"It is open in {one_line(str(owner))}. " + _REASONS["in_use"].format(id=session)
    if error.code == "NOT_FOUND":
        return "See what there is with: kandev ls"
    return _REASONS.get(error.reason, "").format(id=session or "ID")


def _login_command(status: Mapping[str, Any]) -> str:
    login = status.get("login") or {}
    return one_line(str(login.get("command") or "")) or "log in"


def needs_line(status: Mapping[str, Any], session: str) -> str:
    """Return what `status` (task.session.status) waits for a person to do, with the command; '' for nothing."""
    needs = str(status.get("needs") or "none")
    if needs == "none":
        return ""
    words = _NEEDS.get(needs, f"needs {one_line(needs)}")
    command = {
        "permission": f"kandev attach {session} (or: kandev answer {session} OPTION)",
        "login": f"{_login_command(status)}; then: kandev resume {session}",
        "decision": _DECISIONS.get(
            str(status.get("queue_held") or ""), "kandev logs {id}; then kandev recover {id} --action resume"
        ).format(id=session),
    }.get(needs, f"kandev attach {session}")
    return f"{words}: {command}"
