"""What the server itself says in a transcript: what happened, what was kept, what to do next (UI-4)."""

import re
from typing import Any

import msgspec

from kandev.domain.constants import PARK_FAILURES
from kandev.domain.failures import FailureCause, PromptFailure, classify_prompt_failure
from kandev.domain.known_agents import LoginView
from kandev.domain.models import Event, Message, SessionId, TurnId, new_message_id, now
from kandev.lifecycle.batch import message_event
from kandev.lifecycle.effects import AgentExited, CompleteStreamEvent, Notice, PromptFailed
from kandev.protocols.acp import error_text
from kandev.protocols.jsonrpc import clean_text
from kandev.store.database import Tx
from kandev.store.rows import message_args
from kandev.store.store import Store

ON_PURPOSE = {
    "idle": "The agent was idle and was ended to free memory.",
    "stopping": "The backend was stopped in the middle of this turn.",
    "stopped": "The session was stopped in the middle of this turn.",
    "backend_killed": "The backend was killed in the middle of this turn, and the agent with it.",
    "agent_lost": "The agent did not outlive its backend, and this turn ended with it.",
    "not_responding": "What watches over the agent did not answer any more, and was ended together with it.",
    "cancel_by_end": "This agent has no way to be asked for that, so it was ended; the next message brings it back.",
    "cancel_forced": "The agent did not end the turn when asked, and was ended by force.",
}
NEWEST = 1 << 62
KEPT_TIMES = 20
LAST_WORDS = 200
SENTENCE_ENDS = (".", "!", "?", "…")
_NOT_PRINTED = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f]")
_AFTER_REJECTION = (
    "The transcript here is complete; the agent's own memory of it is not available. Your next message starts a new "
    "agent session; or continue with a summary, or try the old session again."
)


def write_notice(tx: Tx, message: Message, task_id: str) -> Event:
    """Store a notice in its place, or what it says now; return what is published."""
    if tx.run("message_update", **message_args(message)):
        return message_event("session.message.updated", message, task_id)
    tx.run("message_insert", **message_args(message))
    return message_event("session.message.added", message, task_id)


def placed_notice(store: Store, session_id: str, notice: Notice, *, turn_id: str = "") -> Message:
    """Give a notice its place in the transcript. Call it in the loop, just before the job that writes it."""
    stamp = now()
    return Message(
        id=new_message_id(),
        session_id=SessionId(session_id),
        turn_id=TurnId(turn_id) if turn_id else None,
        seq=store.next_seq(session_id),
        author_type="system",
        type=notice.type,
        content=notice.content,
        metadata=notice.metadata,
        created_at=stamp,
        updated_at=stamp,
    )


def placed_or_counted(store: Store, session_id: str, notice: Notice) -> Message:
    """The same, where a start that fails again and again says so once: the last message, if it is of the same kind.

    `metadata.at` has the times, the last twenty; `metadata.times` how many there were. Content and details are the
    newest ones. Each start has its own outcome besides.
    """
    last = next(iter(store.messages_before(session_id, before=NEWEST, limit=1)), None)
    return counted(last, notice) or placed_notice(store, session_id, notice)


def counted(last: Message | None, notice: Notice) -> Message | None:
    """Return `last` with one more of what it tells, or None where it tells something else."""
    if last is None or last.author_type != "system" or last.metadata.get("kind") != notice.metadata.get("kind"):
        return None
    stamp = now()
    times = last.metadata.get("times", 1) + 1
    at = [*last.metadata.get("at", [last.created_at]), stamp][-KEPT_TIMES:]
    return msgspec.structs.replace(
        last,
        content=f"{notice.content} That happened {times} times in a row, first at {last.created_at}.",
        metadata={**notice.metadata, "times": times, "at": at},
        updated_at=stamp,
    )


def status(kind: str, content: str, *actions: str, **details: Any) -> Notice:
    """Return a status message; `actions` are what a client offers with it."""
    metadata = {"kind": kind, **details, **({"actions": list(actions)} if actions else {})}
    return Notice(type="status", content=content, metadata=metadata)


def of_exit(exited: AgentExited, *, unsent: bool, cancelled: bool, parked: bool) -> list[Notice]:
    """Return what is said when an agent ended: nothing when it was idle, or ended on purpose between turns.

    `unsent`: a turn had taken a prompt that was not on its way yet. `cancelled`: a person had cancelled the turn.
    """
    said: list[Notice] = []
    if unsent or (exited.turn_id and not exited.delivered):
        text = f"{_how_it_ended(exited)} It had not taken the prompt yet; the prompt is first in the queue again."
        said.append(status("not_delivered", text))
    elif exited.turn_id and cancelled:
        text = f"The turn was cancelled. {ON_PURPOSE.get(exited.why) or _how_it_ended(exited)}"
        said.append(status("cancelled", text, turn_id=exited.turn_id))
    elif exited.turn_id:
        text = (
            f"{ON_PURPOSE.get(exited.why) or _how_it_ended(exited)} What it said until then is kept; tool calls "
            "without a result may have run. The next message brings the agent back; nothing is sent again by itself."
        )
        details = {"exit_code": exited.exit_code, "signal": exited.signal, "stderr": exited.stderr[-2000:]}
        said.append(
            status("interrupted", text, "send_again", turn_id=exited.turn_id, ended_by=_ended_by(exited), **details)
        )
    if parked:
        said.append(parked_notice(exited.stderr))
    return said


def _ended_by(exited: AgentExited) -> str:
    """Return what cut the turn: backend, agent (by itself), or why it was ended on purpose."""
    by_itself = "agent" if exited.exit_code is not None or exited.signal else "backend"
    return "backend" if exited.why in {"backend_killed", "stopping"} else exited.why or by_itself


def parked_notice(said: str) -> Notice:
    """STATE-5: a person tries again, nobody else. `said` is what the agent, or the start of it, said in the end."""
    words = last_words(said)
    content = (
        f"The agent ended {PARK_FAILURES} times within a minute, so it is not started again by itself."
        f"{f' Its last words: {words}' if words else ''} Everything is kept. Look at `kandev logs`, mend the cause, "
        "then recover."
    )
    return status("parked", content, "resume", "fresh_start", "recap", last_words=words)


def last_words(said: str) -> str:
    """Return the last line of a text that says something, cut after 200 characters, as a sentence; '' for none."""
    plain = (_NOT_PRINTED.sub(" ", clean_text(line)).strip() for line in said.splitlines())
    lines = [line for line in plain if any(map(str.isalnum, line))]
    if not lines:
        return ""
    line = lines[-1]
    cut = line if len(line) <= LAST_WORDS else line[:LAST_WORDS].rstrip() + "…"
    return cut if cut.endswith(SENTENCE_ENDS) else f"{cut}."


def _how_it_ended(exited: AgentExited) -> str:
    if exited.exit_code is not None:
        return f"The agent ended in the middle of this turn (exit code {exited.exit_code})."
    if exited.signal:
        return f"The agent was killed in the middle of this turn (signal {exited.signal})."
    return "The backend was killed in the middle of this turn, and the agent with it."


def of_prompt_failure(failed: PromptFailed, *, token: str, login: LoginView) -> list[Notice]:
    """Return what is said when a prompt was answered with an error."""
    text = error_text(failed.error, hide=token)
    cause = prompt_cause(failed, token=token)
    if cause is FailureCause.UNKNOWN_SESSION:
        return [rejected_notice(text, turn_id=failed.turn_id)]
    if cause is FailureCause.LOGIN_NEEDED:
        return [login_notice(text, login)]
    content = f"The agent ended the turn with an error: {text}"
    return [Notice(type="error", content=content, metadata={"kind": "turn_failed", "turn_id": failed.turn_id})]


def prompt_cause(failed: PromptFailed, *, token: str) -> FailureCause | None:
    """Return what a prompt's error means for the session, None: nothing beyond this turn (WIRE-9)."""
    kind = classify_prompt_failure(failed.error, session_id=token)
    if kind is PromptFailure.UNKNOWN_SESSION and failed.restored:
        return FailureCause.UNKNOWN_SESSION
    return FailureCause.LOGIN_NEEDED if kind is PromptFailure.LOGIN else None


def rejected_notice(text: str, *, turn_id: str = "") -> Notice:
    """TOK-1: the agent does not know the session any more."""
    said = f"The agent does not know this session any more ({text})."
    return status("rejected", f"{said} {_AFTER_REJECTION}", "recap", "fresh_start", "retry_token", turn_id=turn_id)


def not_restored_notice(text: str) -> Notice:
    """TOK-16: the agent said nothing definite, and said it again in a fresh process; so trying again comes first."""
    said = f"The agent could not restore this session, also not in a second try ({text})."
    return status("rejected", f"{said} {_AFTER_REJECTION}", "retry_token", "recap", "fresh_start")


def login_notice(text: str, login: LoginView) -> Notice:
    """TOK-13: nothing is wrong with the session. The agent's own ways to log in go with it."""
    names = ", ".join(method.name or method.id for method in login.methods)
    how = f"Run `{login.command}` in a terminal" if login.command else f"Log in{f' ({names})' if names else ''}"
    return status(
        "login",
        f"The agent asks for a login: {text.rstrip('.')}. The session is kept. {how}, then resume.",
        "resume",
        command=login.command,
        methods=[msgspec.to_builtins(method) for method in login.methods],
    )


def of_completion(done: CompleteStreamEvent) -> list[Notice]:
    """Return what is said at a turn's end: an unknown stop reason, or a turn without a word."""
    said: list[Notice] = []
    if not done.known:
        said.append(status("stop_reason", f"The agent ended the turn with {done.stop_reason or 'no reason'!r}."))
    if done.silent and done.stop_reason != "cancelled":
        text = "The agent ended the turn without a word."
        if done.restored:
            text += " It was just restored and may have lost its memory; you can continue with a summary."
            said.append(status("empty_turn", text, "recap"))
        else:
            said.append(status("empty_turn", text))
    return said
