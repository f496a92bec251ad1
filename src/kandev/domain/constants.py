"""Every constant of the design with its unit, and `Timing`, the ones that a configuration may change.

Durations are seconds (`_S`), sizes bytes (`_BYTES`) or characters (`_CHARS`). agentctl runs on its own and has its
own copies of the few that it needs.
"""

from typing import Annotated, Final

import msgspec

# Starting, resuming, stopping (design, section 5).
AGENTCTL_READY_S: Final = 60.0  # until agentctl's HTTP server answers
ENSURE_RUNNING_S: Final = 90.0  # until a prompt that woke a session has its agent
RECENTLY_SEEN_S: Final = 30.0  # case 2 of task.session.status
RPC_INACTIVITY_S: Final = 120.0  # initialize, new, load, resume: any message resets it (WIRE-10)
REPLAY_QUIET_S: Final = 0.15  # without an update, before the first prompt after a load (HIST-1)
REPLAY_QUIET_MAX_S: Final = 2.0
IN_USE_RETRY_S: Final = 15.0  # TOK-14
STALL_NOTICE_S: Final = 60.0  # silence in a turn (STATE-11)
CANCEL_FORCE_S: Final = 10.0  # from session/cancel to force (STATE-11)
STOP_GRACE_S: Final = 8.0  # a gentle stop of one agent (PROC-6)
LIFELINE_KILL_S: Final = 2.0  # from the backend's death to the kill of a standalone agent
BACKEND_STOP_S: Final = 20.0  # the whole of an orderly stop
RECOVER_S: Final = 5.0  # one runtime's answer at start; none is "unknown"
PARK_FAILURES: Final = 5  # STATE-5: so many ends
PARK_WINDOW_S: Final = 60.0  # in so long
AGENTCTL_SILENT_S: Final = 10.0  # no answer in a silent turn is shown as not responding (CRASH-16)
REACH_S: Final = 60.0  # an agent elsewhere that is out of reach for so long is not waited for any more (CONT-5)
EXIT_DRAIN_S: Final = 0.2  # stdout is drained so long after an exit (CRASH-17)
RESTART_PARALLEL: Final = 4  # open queues served at once after a restart

# Limits.
COMMIT_GAP_S: Final = 0.016  # between commits of a streaming session
INGEST_YIELD_BYTES: Final = 32 * 1024  # read between two chances for other requests
MESSAGE_PART_BYTES: Final = 32 * 1024  # one row of message_parts
LINE_BYTES: Final = 64 * 1024 * 1024  # one line of an agent (WIRE-2)
JOURNAL_CAP_BYTES: Final = 256 * 1024 * 1024  # unacknowledged, then agentctl stops reading the agent
FRAME_BYTES: Final = 16 * 1024 * 1024  # one WebSocket frame
EVENT_BUFFER_COUNT: Final = 10_000  # events kept per session for reconnecting subscribers
EVENT_BUFFER_BYTES: Final = 8 * 1024 * 1024
CONTEXT_CHARS: Final = 24_000  # the whole injected context (HIST-7)
ENTRY_CHARS: Final = 2_000  # a user's or agent's message in it
TOOL_RESULT_CHARS: Final = 500  # a tool's result in it
IDLE_MINUTES: Final = 30.0
UNATTENDED_MINUTES: Final = 60.0  # a silent agent that outlived its backend, and no backend came
MAX_LIVE_AGENTS: Final = 8
SOCKET_PATH_BYTES: Final = 107  # the kernel's bound on a Unix socket's path
BACKUPS_KEPT: Final = 2

# Git worktrees.
GIT_S: Final = 30.0  # a question to git
GIT_CHECKOUT_S: Final = 600.0  # git writes a whole tree; its hooks and filters run in this time too
GIT_LOCK_S: Final = 60.0  # waiting for a git that an earlier backend left behind
SETUP_S: Final = 900.0  # the command of [worktrees] setup

_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class Timing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The durations above that may be changed, in seconds; `KANDEV__TIMING__RECENTLY_SEEN_S=1` shrinks one."""

    agentctl_ready_s: _Positive = AGENTCTL_READY_S
    ensure_running_s: _Positive = ENSURE_RUNNING_S
    recently_seen_s: _Seconds = RECENTLY_SEEN_S
    rpc_inactivity_s: _Positive = RPC_INACTIVITY_S
    replay_quiet_s: _Seconds = REPLAY_QUIET_S
    replay_quiet_max_s: _Seconds = REPLAY_QUIET_MAX_S
    in_use_retry_s: _Seconds = IN_USE_RETRY_S
    stall_notice_s: _Positive = STALL_NOTICE_S
    cancel_force_s: _Seconds = CANCEL_FORCE_S
    stop_grace_s: _Seconds = STOP_GRACE_S
    backend_stop_s: _Positive = BACKEND_STOP_S
    recover_s: _Positive = RECOVER_S
    agentctl_silent_s: _Positive = AGENTCTL_SILENT_S
    reach_s: _Positive = REACH_S
    commit_gap_s: _Seconds = COMMIT_GAP_S
    git_s: _Positive = GIT_S
    git_checkout_s: _Positive = GIT_CHECKOUT_S
    git_lock_s: _Seconds = GIT_LOCK_S
    setup_s: _Positive = SETUP_S
