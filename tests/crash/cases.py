"""Which kill belongs to which rule: every failpoint, the play that passes it, and how often before it fires."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from crash import plays
from crash.scene import Play

SENT = "prompt.before_send:2>ingest"
"""The commit and the sending of the second prompt's line."""
TURN = "prompt.after_send:2>ingest"
"""What is read in the second turn: a commit for each chunk or so."""
ASKED = "permission.asked>ingest"
ANSWERED = "permission.before_answer>ingest"


def fires(armed: str) -> str:
    """The failpoint at which a program that is armed so is killed."""
    return armed.rpartition(">")[2].partition(":")[0]


class Case(NamedTuple):
    """One kill. `sure`: whatever was acknowledged before had not reached the agent, or had been answered by it.

    `before` is played by a backend that nobody armed, and that is then killed. `patient`: the client repeats what was
    not answered; otherwise what was stored must be enough.
    """

    rule: str
    armed: str
    play: Play
    kind: str = "native"
    sure: bool = True
    before: Play | None = None
    patient: bool = True
    runtime: str = "standalone"

    @property
    def name(self) -> str:
        """The failpoint that fires."""
        return fires(self.armed)


def _at(rule: str, play: Play, *armed: str, **more: Any) -> Iterator[Case]:
    return (Case(rule, one, play, **more) for one in armed)


def _kept(rule: str, play: Play, *armed: str) -> Iterator[Case]:
    """What was asked for is stored: nobody has to ask again."""
    return _at(rule, play, *armed, sure=False, patient=False)


def _second(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}:2" for name in names)


BEGIN = ("start.before_begin", "start.after_begin", "instance.before_spawn", "instance.after_spawn")
CONFIGURED = ("agent.before_configure", "agent.after_configure")
STARTING = (*CONFIGURED, "agent.before_start", "agent.after_start", "session.after_initialize")
OPENED = ("session.after_open", "session.after_settings", "start.before_ready", "start.after_ready")
PIPE = ("before_commit", "after_commit", "after_publish", "before_send")
READ = ("before_commit:1", "before_commit:4", "after_commit:2", "after_commit:7", "after_publish:3", "after_publish:9")
DELETED = ("delete.after_intent", "delete.after_agents", "delete.after_worktree", "delete.after_files")
EXIT = ("agent.before_exit", "agent.after_exit", "instance.before_stop", "instance.after_stop", "agent.after_discard")

BACKEND = [
    *_at("CRASH-1", plays.launch, "task.before_create", "task.after_create"),
    *_at("CRASH-2", plays.launch_in_repository, "worktree.before_add", "worktree.after_add"),
    *_at("CRASH-2", plays.launch_in_repository, "worktree.before_setup", "worktree.after_setup"),
    *_at("CRASH-2", plays.launch_in_repository, "start.before_workspace", "start.after_workspace"),
    *_at("CRASH-3", plays.launch, *BEGIN, "start.after_instance"),
    *_at("CRASH-3", plays.launch_by_hand, "launch.before_open", "launch.after_open"),
    *_at("CRASH-3", plays.resume, *_second(*BEGIN, "start.after_instance")),
    *_at("CRASH-3", plays.resume, "resume.before_open", "resume.after_open"),
    *_at("CRASH-4", plays.launch, "start.after_persist", *STARTING),
    *_at("CRASH-4", plays.launch_in_vain, "start.before_failure", "start.after_failure"),
    *_at("CRASH-4", plays.resume, *_second("start.after_persist", *STARTING)),
    *_at("CRASH-5", plays.launch_with_memory, "token.answered", "token.in_commit"),
    *_at("CRASH-6", plays.launch, *OPENED),
    *_at("CRASH-6", plays.resume, *_second(*OPENED)),
    *_at("CRASH-6", plays.resume_by_load, "session.after_initialize:2>ingest.after_send", *_second(*OPENED)),
    *_at("CRASH-6", plays.resume, *_second(*OPENED), kind="history"),
    *_at("CRASH-7", plays.second, "message.before_add", "message.after_add"),
    *_at("CRASH-7", plays.second, *_second("prompt.before_claim", "prompt.after_claim", "prompt.before_send")),
    *_at("CRASH-7", plays.second, *(f"{SENT}.{name}" for name in PIPE)),
    *_at("CRASH-7", plays.second, f"{SENT}.after_send", "prompt.after_send:2", sure=False),
    *_at("CRASH-7", plays.unsent, "prompt.before_undo", "prompt.after_undo"),
    *_at("CRASH-7", plays.unsent_twice, "prompt.before_give_up", "prompt.after_give_up"),
    *_at("CRASH-8", plays.second, *(f"{TURN}.{name}" for name in READ), sure=False),
    *_at("CRASH-8", plays.second, f"{TURN}.before_ack", f"{TURN}.after_ack", sure=False),
    *_at("CRASH-8", plays.second, "turn.answered:2"),
    *_at("CRASH-8", plays.second, "history.before_append:4", "history.after_append:4", kind="history"),
    *_at("CRASH-8", plays.resume, "history.before_complete", "history.after_complete", kind="history"),
    *_at("CRASH-8", plays.resume_with_a_gap, "history.before_replace", kind="history"),
    *_at("CRASH-9", plays.queue, "turn.answered", "turn.ended", "turn.ended:2"),
    *_at("CRASH-10", plays.permission, "permission.asked", *(f"{ASKED}.{name}" for name in PIPE[:3]), sure=False),
    *_at("CRASH-10", plays.permission, "permission.before_answer", "permission.after_answer", sure=False),
    *_at("CRASH-10", plays.permission, *(f"{ANSWERED}.{name}" for name in (*PIPE, "after_send")), sure=False),
    *_at("CRASH-11", plays.rejected, "token.set_aside", "start.before_failure", "start.after_failure"),
    *_at("CRASH-11", plays.not_restored, "start.before_second_try", "start.after_second_try"),
    *_at("CRASH-11", plays.fresh_start, "recover.before_store", "recover.after_store", "recover.after_boundary"),
    *_at("CRASH-12", plays.cancel, "cancel.before_store", sure=False),
    *_kept("CRASH-12", plays.cancel, "cancel.after_store", "cancel.before_send", "cancel.after_send"),
    *_kept("CRASH-12", plays.cancel_unsent, "prompt.before_unsent", "prompt.after_unsent"),
    *_at("CRASH-13", plays.stop, "stop.before_intent", sure=False),
    *_kept("CRASH-13", plays.stop, "stop.after_intent", "agent.before_stop", "agent.after_stop"),
    *_kept("CRASH-13", plays.stop, "stop.before_finish", "stop.after_finish"),
    *_at("CRASH-13", plays.complete, "complete.before_intent", sure=False),
    *_kept("CRASH-13", plays.complete, "complete.after_intent", "complete.before_finish", "complete.after_finish"),
    *_at("CRASH-13", plays.delete_session, "delete.before_intent"),
    *_kept("CRASH-13", plays.delete_session, *DELETED, "delete.before_session", "delete.after_session"),
    *_kept("CRASH-13", plays.delete_task, *DELETED, "delete.before_task", "delete.after_task"),
    *_kept("CRASH-13", plays.delete_with_branch, "worktree.before_move", "worktree.after_move"),
    *_kept("CRASH-13", plays.delete_with_branch, "worktree.before_forget", "worktree.after_forget"),
    *_kept("CRASH-13", plays.delete_with_branch, "worktree.before_branch", "worktree.after_branch"),
    *_at("CRASH-14", plays.resume, *_second("prompt.after_claim", "prompt.before_send"), kind="history"),
    *_at("CRASH-14", plays.resume, f"{SENT}.after_commit", f"{SENT}.before_send", kind="history"),
    *_at("CRASH-14", plays.resume, f"{SENT}.after_send", kind="history", sure=False),
    *_at("STATE-4", plays.agent_dies, *EXIT, sure=False),
    *_at("asked", plays.rename, "task.before_rename", "task.after_rename"),
    *_at("asked", plays.another_session, "task.before_session", "task.after_session"),
    *_at("asked", plays.set_mode, "settings.before_store", "settings.after_store"),
    *_at("asked", plays.withdraw, "queue.before_withdraw", "queue.after_withdraw", sure=False),
    *_at("asked", plays.open_queue, "queue.before_open", "queue.after_open", sure=False),
]
"""Kills of a backend that serves."""

RECONCILE = ("kill", "commit", "discard")
START_UP = [
    *_at("STATE-1", plays.second, *(f"reconcile.{when}_{what}" for what in RECONCILE for when in ("before", "after"))),
    *_at("STATE-1", plays.second, "instance.before_fork_server", "instance.after_fork_server"),
    *_kept("CRASH-13", plays.stop, "intentions.before", "intentions.after"),
]
"""Kills of a backend that starts on what an earlier kill left."""

LASTING = {"runtime": "detached"}
SECOND = ("prompt.before_claim", "prompt.after_claim", "prompt.before_send")
ATTACHED = [
    *_at("CONT-1", plays.second, *_second(*SECOND), **LASTING),
    *_at("CONT-1", plays.second, *(f"{SENT}.{name}" for name in (*PIPE, "after_send")), **LASTING),
    *_at("CONT-1", plays.second, *(f"{TURN}.{name}" for name in (*READ, "before_ack", "after_ack")), **LASTING),
    *_at("CONT-1", plays.second, "turn.answered:2", "turn.ended:2", **LASTING),
    *_at("CONT-1", plays.queue, "turn.answered", "turn.ended", **LASTING),
    *_at("CONT-1", plays.permission, "permission.asked", *(f"{ASKED}.{name}" for name in PIPE[:3]), **LASTING),
    *_at("CONT-1", plays.permission, *(f"{ANSWERED}.{name}" for name in (*PIPE, "after_send")), **LASTING),
]
"""Kills of a backend whose agent outlives it: the next one goes on as if nothing had been."""
ATTACHING = [*_at("CONT-1", plays.second, "attach.before_store", "attach.after_store", **LASTING)]
"""Kills of a backend that attaches to such an agent."""

LINE = ("before_line", "announced", "before_written", "after_written")
AGENTCTL = [
    *_at("CRASH-15", plays.launch, "agentctl.before_fork", "agentctl.after_fork", "agentctl.before_listen"),
    *_at("CRASH-15", plays.say, *_second("agentctl.before_spare", "agentctl.after_spare"), before=plays.launch),
    *_at("CRASH-15", plays.say, "agentctl.before_spare", "agentctl.after_spare", before=plays.launch, sure=False),
    *_at("CRASH-15", plays.launch, "agentctl.before_configure", "agentctl.after_configure"),
    *_at("CRASH-15", plays.say, "agentctl.before_configure", "agentctl.after_configure", before=plays.launch),
    *_at("CRASH-15", plays.launch, *(f"agentctl.{name}" for name in ("before_spawn", "after_spawn", "after_start"))),
    *_at("CRASH-15", plays.say, "agentctl.before_spawn", "agentctl.after_spawn", before=plays.launch),
    *_at("CRASH-15", plays.say, "agentctl.after_start", "agentctl.after_identity", before=plays.launch),
    *_at("CRASH-15", plays.second, *(f"agentctl.{name}:4" for name in LINE[:1])),
    *_at("CRASH-15", plays.second, *(f"agentctl.{name}:4" for name in LINE[1:]), sure=False),
    *_at("CRASH-15", plays.second_of_a_stubborn_agent, "agentctl.announced:4", "agentctl.after_written:4", sure=False),
    *_at("CRASH-15", plays.long_line, "agentctl.half_written", sure=False),
    *_at("CRASH-15", plays.second, "agentctl.before_journal:7", "agentctl.after_journal:7", sure=False),
    *_at("CRASH-15", plays.second, "agentctl.before_ack:2", "agentctl.after_ack:2", sure=False),
    *_at("CRASH-15", plays.stop, "agentctl.before_stop", "agentctl.after_stop", sure=False),
    *_at("CRASH-15", plays.agent_dies, "agentctl.before_exit", "agentctl.after_exit", sure=False),
]
"""Kills of agentctl, or of the fork server that makes it."""

ALL = (*BACKEND, *START_UP, *ATTACHED, *ATTACHING, *AGENTCTL)


def of(rule: str, cases: list[Case] = BACKEND) -> pytest.MarkDecorator:
    """Runs a test for every kill that belongs to a rule."""
    chosen = [case for case in cases if case.rule == rule]
    assert chosen, f"no kill belongs to {rule}"
    names = [f"{case.armed} in {case.play.__name__}, {case.kind}" for case in chosen]
    return pytest.mark.parametrize("case", chosen, ids=names)
