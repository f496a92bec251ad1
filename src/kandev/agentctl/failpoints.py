"""Named failpoints: places where a test has this program end itself by SIGKILL (the CRASH rules).

A program reads its own `KANDEV_FAILPOINT` when it starts:

    prompt.after_claim                        the first time that it comes there
    prompt.after_claim:3                      the third time
    permission.asked>ingest.after_commit:2    the second time after it was at the first place

`KANDEV_FAILPOINT_LOG` names a file that gets a line for each place that is passed, "PID NAME"; the last one of a
program that was killed here ends with "killed". Within one such file only one failpoint fires, so that whatever is
started in place of the killed program goes on. The backend arms agentctl by `KANDEV_AGENTCTL_FAILPOINT`, and passes on
nothing else; agents get none of these variables. With neither variable a failpoint costs one test of a global.
"""

import os
import signal
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["FAILPOINTS", "environment_of_agentctl", "failpoint"]

FAILPOINTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Tasks, messages and the queue: orchestrator/tasks.py, messages.py.
        "task.before_create": "Task, session, row and first prompt are about to be stored.",
        "task.after_create": "They are stored; nobody was told.",
        "task.before_session": "Another session of a task is about to be stored.",
        "task.after_session": "It is stored; nobody was told.",
        "task.before_rename": "A title is about to be stored.",
        "task.after_rename": "It is stored; nobody was told.",
        "message.before_add": "A prompt and its place in the queue are about to be stored.",
        "message.after_add": "They are stored, not acknowledged.",
        "queue.before_withdraw": "A queued prompt is about to be deleted.",
        "queue.after_withdraw": "It is deleted; nobody was told.",
        "queue.before_open": "A held queue is about to be opened.",
        "queue.after_open": "It is open; nobody serves it yet.",
        # A start, whether launch or resume: orchestrator/start_steps.py, outcomes.py, lifecycle/manager.py, session.py.
        "launch.before_open": "A person starts a session; its queue is about to be opened.",
        "launch.after_open": "The queue is open; the start has not begun.",
        "resume.before_open": "A person resumes a session; its queue is about to be opened.",
        "resume.after_open": "The queue is open; the resume has not begun.",
        "start.before_workspace": "The directory is ready; what was done to it is about to be stored.",
        "start.after_workspace": "That is stored.",
        "attach.before_store": "An agent of an earlier backend runs; that this one has it is about to be stored.",
        "attach.after_store": "It is stored; nobody reads from the agent.",
        "start.before_begin": "STARTING and the new ids are about to be stored.",
        "start.after_begin": "STARTING is stored; there is no instance.",
        "start.after_instance": "The instance is made; its address is not stored.",
        "start.after_persist": "The row is complete; the caller was not answered.",
        "start.before_ready": "The agent can take prompts; `ready` and WAITING_FOR_INPUT are about to be stored.",
        "start.after_ready": "They are stored; nobody was told.",
        "start.before_second_try": "The agent could not restore; that is about to be counted.",
        "start.after_second_try": "It is counted; the second process is not started.",
        "start.before_failure": "A start failed; what became of the session is about to be stored.",
        "start.after_failure": "It is stored; nobody was told.",
        "instance.before_fork_server": "The process that forks agentctls is about to be started.",
        "instance.after_fork_server": "It runs; nothing was asked of it.",
        "instance.before_spawn": "The instance has directory and socket; agentctl is about to be started.",
        "instance.after_spawn": "agentctl runs; nobody knows its address.",
        "agent.before_configure": "agentctl answers; it is about to be told what to start.",
        "agent.after_configure": "agentctl knows it.",
        "agent.before_start": "agentctl is about to be asked to start the agent.",
        "agent.after_start": "The agent runs; its process is not stored.",
        "session.after_initialize": "The agent answered `initialize`.",
        "session.after_open": "The agent's session is loaded, resumed or new; mode, model and options are not set.",
        "session.after_settings": "They are set.",
        # Token and turn, as the agent's lines are read: lifecycle/reader.py, orchestrator/event_handlers.py.
        "token.answered": "The agent's answer with its session id is read, not stored.",
        "token.in_commit": "The token is written in a transaction that is not committed.",
        "token.set_aside": "The token is set aside in a transaction that is not committed.",
        "permission.asked": "The agent's request for a permission is read, not stored.",
        "turn.answered": "The end of a turn is read, not stored.",
        "turn.ended": "The end of a turn is stored and told; the next prompt is not taken.",
        "agent.before_exit": "The agent ended; what that means is about to be stored.",
        "agent.after_exit": "It is stored; the instance is still there.",
        "instance.before_stop": "agentctl is about to be told that it is not needed any more.",
        "instance.after_stop": "It was told; its directory is there.",
        "agent.after_discard": "The instance and its journal are removed.",
        # The pipe: lifecycle/ingest.py.
        "ingest.before_commit": "Content and position are about to be stored.",
        "ingest.after_commit": "They are stored, not published.",
        "ingest.after_publish": "They are published, not acknowledged to agentctl; stored lines are not sent.",
        "ingest.before_send": "A stored line is about to be given to agentctl.",
        "ingest.after_send": "agentctl says that it is written.",
        "ingest.before_ack": "A position is about to be acknowledged to agentctl.",
        "ingest.after_ack": "It is acknowledged.",
        # Prompts: orchestrator/prompt_queue.py.
        "prompt.before_claim": "The head of the queue is about to become a turn.",
        "prompt.after_claim": "The turn is stored; nothing was sent.",
        "prompt.before_send": "The prompt has its text; its line has no number yet.",
        "prompt.after_send": "The prompt was sent; it is not in the history file.",
        "prompt.before_unsent": "A turn was cancelled before its prompt was sent; its end is about to be stored.",
        "prompt.after_unsent": "That end is stored.",
        "prompt.before_undo": "A prompt could not be sent; its turn is about to be undone.",
        "prompt.after_undo": "The turn is undone.",
        "prompt.before_give_up": "Sending failed twice; the hold of the queue is about to be stored.",
        "prompt.after_give_up": "The hold is stored.",
        # What a person does: orchestrator/permissions.py, task_operations.py, recovery.py, session_settings.py.
        "permission.before_answer": "An answer and its line are about to be stored.",
        "permission.after_answer": "They are stored; the caller was not answered.",
        "settings.before_store": "The agent took a mode or an option; it is about to be stored.",
        "settings.after_store": "It is stored; nobody was told.",
        "recover.before_store": "What stands in a session's way is about to be reset.",
        "recover.after_boundary": "A fresh start has its boundary in the history; nothing is reset yet.",
        "recover.after_store": "It is reset; nothing is started.",
        "cancel.before_store": "The request to cancel and the hold are about to be stored.",
        "cancel.after_store": "They are stored; the agent was not asked.",
        "cancel.before_send": "The answers to open permissions are ready; session/cancel is about to be sent.",
        "cancel.after_send": "It was sent; the turn has not ended.",
        "stop.before_intent": "The intention to stop is about to be stored.",
        "stop.after_intent": "It is stored; the agent still runs.",
        "stop.before_finish": "The agent ended; CANCELLED is about to be stored.",
        "stop.after_finish": "It is stored; nobody was told.",
        "agent.before_stop": "An agent is about to be ended.",
        "agent.after_stop": "It is proven dead.",
        "complete.before_intent": "The intention to complete is about to be stored.",
        "complete.after_intent": "It is stored; the agents still run.",
        "complete.before_finish": "The agents ended; COMPLETED is about to be stored.",
        "complete.after_finish": "It is stored; nobody was told.",
        # Deletion: orchestrator/deletion.py, worktrees/manager.py.
        "delete.before_intent": "The intention to delete is about to be stored.",
        "delete.after_intent": "It is stored; the agents still run.",
        "delete.after_agents": "The agents ended; everything is still there.",
        "delete.after_worktree": "The directory is gone; history and logs are there.",
        "delete.after_files": "All files are gone; the rows are there.",
        "delete.before_task": "The task's rows are about to be deleted.",
        "delete.after_task": "They are deleted; nobody was told.",
        "delete.before_session": "The session's rows are about to be deleted.",
        "delete.after_session": "They are deleted; nobody was told.",
        # Worktrees: worktrees/manager.py.
        "worktree.before_add": "git is about to make a worktree.",
        "worktree.after_add": "git made it; it is not prepared.",
        "worktree.before_setup": "Files are about to be copied and the setup command is about to run.",
        "worktree.after_setup": "The setup ended; that is not stored.",
        "worktree.before_move": "A directory is about to be moved out of the way.",
        "worktree.after_move": "It was moved; its files are not removed.",
        "worktree.before_forget": "git is about to forget a worktree.",
        "worktree.after_forget": "git forgot it; its branch is there.",
        "worktree.before_branch": "A branch is about to be deleted.",
        "worktree.after_branch": "It is deleted.",
        # Branches that are carried elsewhere and home: worktrees/carrying.py, orchestrator/carrying.py.
        "sources.before_pack": "A branch is about to be put into a bundle.",
        "sources.after_pack": "It is in a bundle; nothing was sent.",
        "sources.before_send": "The bundle is about to be sent.",
        "sources.after_send": "It was sent; no directory is made from it.",
        "sources.before_checkout": "agentctl is about to be asked to make the directory.",
        "sources.after_checkout": "It is made; the agent is not started.",
        "work.before_collect": "agentctl is about to be asked for the agent's work.",
        "work.after_collect": "It has the work in a bundle; nothing came.",
        "work.before_receive": "The bundle is about to come.",
        "work.after_receive": "It came; git does not know it.",
        "work.before_fetch": "git is about to take the work in.",
        "work.after_fetch": "It has it; the branch has not.",
        "work.before_branch": "The session's branch is about to follow.",
        "work.after_branch": "It followed; the files of the session's directory did not.",
        "work.before_files": "These files are about to follow.",
        "work.after_files": "They followed; that is not noted.",
        "work.before_note": "What came or went is about to be noted.",
        "work.after_note": "It is noted.",
        # Containers of an engine here or on another host: runtimes/docker_engine.py, remote_engine.py.
        "container.before_create": "The engine is about to be asked to make a container.",
        "container.after_create": "It is made; it has nothing in it and does not run.",
        "container.before_start": "The engine is about to be asked to start a container.",
        "container.after_start": "It runs; nobody asked whether agentctl answers.",
        "container.before_stop": "The engine is about to be asked to end a container's processes.",
        "container.after_stop": "They are dead.",
        "container.before_remove": "The engine is about to be asked to remove a container.",
        "container.after_remove": "It is gone; what it shared with this machine, or its volume, is there.",
        "container.before_put": "agentctl and what it needs are about to be brought into a container.",
        "container.after_put": "They are there; that is not noted.",
        "volume.before_create": "The engine is about to be asked to make a volume.",
        "volume.after_create": "It is made, and empty.",
        "volume.before_remove": "The engine is about to be asked to remove a volume.",
        "volume.after_remove": "It is gone; what is kept of the session here is there.",
        # The history file: lifecycle/recording.py, history_file.py.
        "history.before_append": "An entry is about to be appended.",
        "history.after_append": "It is appended, not synced.",
        "history.before_complete": "What the file lacks is about to be put in.",
        "history.before_replace": "The file is written anew beside the old one.",
        "history.after_complete": "The file has all that the store has.",
        # Start-up: orchestrator/reconcile.py, intentions.py.
        "reconcile.before_kill": "What a killed backend left is about to be killed.",
        "reconcile.after_kill": "It is dead; its journals are not read.",
        "reconcile.before_commit": "What a journal still had is about to be stored.",
        "reconcile.after_commit": "It is stored.",
        "reconcile.before_discard": "An execution is settled; its directory is about to be removed.",
        "reconcile.after_discard": "The directory is gone.",
        "intentions.before": "What was promised before the crash is about to be carried out.",
        "intentions.after": "It is carried out; the port is closed.",
        # agentctl: fork_server.py, server.py, sidecar.py, process.py, stdin.py, output.py.
        "agentctl.before_spare": "The fork server is about to fork an agentctl that waits to be needed.",
        "agentctl.after_spare": "It did; the fork server does not know it yet.",
        "agentctl.before_fork": "The fork server is about to hand a start over.",
        "agentctl.after_fork": "It did; the backend has no answer.",
        "agentctl.before_listen": "agentctl owns its directory; its identity is stored; it answers nobody.",
        "agentctl.before_configure": "A command is taken; it is not kept.",
        "agentctl.after_configure": "It is kept; the backend has no answer.",
        "agentctl.before_spawn": "The agent is about to be started.",
        "agentctl.after_spawn": "It runs; the journal has no record of it.",
        "agentctl.after_start": "The start is recorded; the agent's identity is not stored.",
        "agentctl.after_identity": "It is stored; the backend has no answer.",
        "agentctl.before_line": "A line is taken; the record that announces it is not written.",
        "agentctl.announced": "The line is announced; nothing of it is in the pipe.",
        "agentctl.half_written": "A part of the line is in the pipe.",
        "agentctl.before_written": "The line is in the pipe as a whole; that is not recorded.",
        "agentctl.after_written": "It is recorded; the backend has no answer.",
        "agentctl.before_journal": "Output of the agent is read, not journalled: it is lost.",
        "agentctl.after_journal": "It is in the journal.",
        "agentctl.before_ack": "A position is about to be noted.",
        "agentctl.after_ack": "It is noted; segments before it are gone.",
        "agentctl.before_sources": "Sources are about to come; nothing is kept of them.",
        "agentctl.after_sources": "They are whole; the backend has no answer.",
        "agentctl.before_checkout": "A directory is about to be made from them, beside its place.",
        "agentctl.after_checkout": "It is in its place; the sources lie there still.",
        "agentctl.before_work": "What the agent did is about to be collected.",
        "agentctl.after_work": "It is in a bundle; the backend has no answer.",
        "agentctl.before_stop": "A stop is asked for; the agent runs.",
        "agentctl.after_stop": "The agent's tree is dead; the backend has no answer.",
        "agentctl.before_exit": "The agent ended and was drained; that is not recorded.",
        "agentctl.after_exit": "It is recorded.",
    }
)
"""Every failpoint and its place. Each name stands once in the code."""

_VARIABLE: Final = "KANDEV_FAILPOINT"
_LOG_VARIABLE: Final = "KANDEV_FAILPOINT_LOG"
_AGENTCTL_VARIABLE: Final = "KANDEV_AGENTCTL_FAILPOINT"


def failpoint(name: str) -> None:
    """End this program here, by SIGKILL, when the environment armed the place."""
    if _watched:
        _pass(name)


def environment_of_agentctl(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that arm agentctl, from the backend's environment; none outside of tests."""
    armed = {_VARIABLE: environ.get(_AGENTCTL_VARIABLE, ""), _LOG_VARIABLE: environ.get(_LOG_VARIABLE, "")}
    return {name: value for name, value in armed.items() if value}


def _parse(text: str) -> list[tuple[str, int]]:
    steps = []
    for step in text.split(">") if text else ():
        name, _, times = step.partition(":")
        if name not in FAILPOINTS:
            raise ValueError(f"{_VARIABLE}: there is no failpoint {name!r}")
        steps.append((name, int(times or 1)))
    return steps


_steps: Final = _parse(os.environ.get(_VARIABLE, ""))
_log: Final = os.environ.get(_LOG_VARIABLE, "")
_watched: Final = bool(_steps or _log)


def _pass(name: str) -> None:
    if name not in FAILPOINTS:
        raise ValueError(f"there is no failpoint {name!r}")
    fires = _fires(name)
    _note(f"{os.getpid()} {name} killed" if fires else f"{os.getpid()} {name}")
    if fires:
        os.kill(os.getpid(), signal.SIGKILL)


def _fires(name: str) -> bool:
    """Count a visit; True at the last step, unless a failpoint has fired in this log before."""
    if not _steps or _steps[0][0] != name:
        return False
    left = _steps[0][1] - 1
    if left:
        _steps[0] = (name, left)
        return False
    del _steps[0]
    return not _steps and not _has_fired()


def _has_fired() -> bool:
    if not _log:
        return False
    try:
        with open(_log, encoding="ascii") as file:
            return any(line.endswith(" killed\n") for line in file)
    except FileNotFoundError:
        return False


def _note(line: str) -> None:
    if not _log:
        return
    descriptor = os.open(_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode("ascii") + b"\n")
    finally:
        os.close(descriptor)
