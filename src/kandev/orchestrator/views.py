"""What clients are shown of sessions, and what they ask for. No view holds a token or an environment."""

from typing import Any

import msgspec

from kandev.domain.known_agents import LoginView
from kandev.domain.models import ExecutorRunning, TaskSession, Turn


class CreateTask(msgspec.Struct, frozen=True, kw_only=True):
    """The request `task.create`. Without a repository the session works in an empty directory of its own (WORK-7).

    Without a runtime the agent's own is taken, else the default of the configuration.
    """

    description: str
    agent: str
    title: str = ""
    runtime: str = ""
    repository_path: str = ""
    base_branch: str = ""
    model: str = ""
    mode: str = ""
    start: bool = True
    client_task_id: str | None = None
    in_place: bool = False


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session as clients see it."""

    id: str
    task_id: str
    agent: str
    runtime: str
    state: str
    model: str
    mode: str
    config_options: dict[str, Any]
    repository_path: str
    worktree_path: str
    worktree_branch: str
    error_message: str
    interrupted: bool
    queue_held: str
    parked_reason: str
    created_at: str
    updated_at: str


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `task.session.status`. `acp_session_id` is a fingerprint of the token (TOK-9).

    `turn` is the one that runs; `last_turn` the newest one, also when it has ended: so a client that was away
    learns how. `login` is there while one is needed. `stalled_s` is how long the agent has said nothing in its turn,
    once that is worth a notice, else 0.
    """

    session_id: str
    task_id: str
    state: str
    is_agent_running: bool
    is_resumable: bool
    needs_resume: bool
    resume_reason: str
    recover_actions: list[str]
    acp_session_id: str
    agent: str
    runtime: str
    worktree_path: str
    worktree_branch: str
    updated_at: str
    interrupted: bool
    turn: Turn | None
    last_turn: Turn | None
    stalled_s: float
    stage: str
    queued: int
    queue_held: str
    pending_permissions: int
    needs: str
    login: LoginView | None
    how: str
    error: str


class ResumeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `task.session.resume`, given once the instance is made and stored."""

    success: bool
    task_id: str
    session_id: str
    agent_execution_id: str
    state: str
    worktree_path: str = ""
    worktree_branch: str = ""
    already_running: bool = False


class UnknownToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that was begun in a turn that was cut: it may have run, or not. `message_id` has all of it."""

    message_id: str
    title: str
    kind: str


class InterruptedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that was cut: what was asked, what may have run, and the message that repeated it ('' if none did).

    `prompt` is the text of the message, cut after 500 characters.
    """

    turn_id: str
    started_at: str
    ended_at: str
    message_id: str
    prompt: str
    tool_calls: list[UnknownToolCall]
    sent_again: str


def session_view(session: TaskSession, row: ExecutorRunning | None) -> SessionView:
    """Return the view of a session and its row."""
    return SessionView(
        id=session.id,
        task_id=session.task_id,
        agent=session.agent,
        runtime=session.runtime,
        state=session.state,
        model=session.model,
        mode=session.mode,
        config_options=session.config_options,
        repository_path=session.repository_path,
        worktree_path=row.worktree_path if row else "",
        worktree_branch=row.worktree_branch if row else "",
        error_message=session.error_message,
        interrupted=session.interrupted,
        queue_held=session.queue_held,
        parked_reason=session.parked_reason,
        created_at=session.created_at,
        updated_at=session.updated_at,
    )


def resume_answer(
    session: TaskSession, row: ExecutorRunning | None, execution_id: str, *, already_running: bool = False
) -> ResumeAnswer:
    """Return the answer to a resume that goes on, or to one of a session whose agent lives."""
    return ResumeAnswer(
        success=True,
        task_id=session.task_id,
        session_id=session.id,
        agent_execution_id=execution_id,
        state=session.state,
        worktree_path=row.worktree_path if row else "",
        worktree_branch=row.worktree_branch if row else "",
        already_running=already_running,
    )
