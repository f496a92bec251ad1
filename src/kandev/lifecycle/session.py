"""A session with the agent: restored or made new, set as it was, prompted.

Specification: "ACP session creation", "dispatchInitialPrompt", "History Injection".
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog

from kandev import __version__
from kandev.agentctl.failpoints import failpoint
from kandev.domain.constants import Timing
from kandev.domain.failures import LoadFailure, classify_load_failure, in_use_owner
from kandev.domain.history import Rendered
from kandev.domain.models import QueuedPrompt, Turn, fingerprint
from kandev.errors import AgentError, Invalid, RequestFailed
from kandev.lifecycle.execution import AgentExecution
from kandev.lifecycle.minute import wait_for_next_minute
from kandev.lifecycle.protocol_state import Phase
from kandev.protocols import acp

log = structlog.get_logger(__name__)

RETRY_FIRST_S = 0.25
RETRY_MOST_S = 2.0


class History(Protocol):
    """What injection needs of the SessionHistoryManager."""

    def has_history(self, session_id: str, /) -> bool:
        """Return whether anything is recorded since the last fresh start."""

    async def generate_resume_context(self, session_id: str, prompt: str, /, *, message_id: str = "") -> Rendered:
        """Return the prompt inside the resume context; `message_id` is the prompt's own, which is no history."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """How a session came to be: `how` is native or fresh; `reason` why, `lost` what, both for a person.

    `refused`: the agent offers to restore sessions, and then did not know how (TOK-8).
    """

    how: str
    reason: str = ""
    lost: str = ""
    refused: bool = False
    mode_failed: str = ""


class RestoreFailed(AgentError):
    """Raised when the agent would not load the session, and starting fresh is not ours to decide."""

    def __init__(self, message: str, *, kind: LoadFailure, owner: str = "") -> None:
        super().__init__(message, kind=str(kind), owner=owner)
        self.kind = kind
        self.owner = owner


class InitialPrompt(StrEnum):
    """The three ways of `dispatch_initial_prompt`."""

    SEND = "send"
    INJECT = "inject"
    IDLE = "idle"


async def initialize_agent_session(
    execution: AgentExecution,
    *,
    timing: Timing,
    mcp_servers: Sequence[Mapping[str, Any]],
    refuses: Callable[[str], bool],
    stage: Callable[[str], None],
) -> Restored:
    """Speak `initialize`, then load, resume, or make a session, and set mode, model and options.

    `refuses` tells of the agent's version whether it is known not to restore (TOK-8). `stage` is told when the
    restoring begins. Raises RestoreFailed, RequestFailed, AgentSilent, AgentDied.
    """
    ingest, quiet = execution.ingest, timing.rpc_inactivity_s
    answer = await ingest.request("initialize", lambda n: acp.initialize(n, __version__), inactivity_s=quiet)
    execution.info = info = acp.AgentInfo.from_initialize(answer.result)
    execution.initialized = True
    failpoint("session.after_initialize")
    if info.protocol_version > acp.PROTOCOL_VERSION:
        raise Invalid(
            f"{execution.config.display_name} speaks only version {info.protocol_version} of the Agent Client "
            f"Protocol; this Kandev speaks {acp.PROTOCOL_VERSION}. Install an older agent or a newer Kandev."
        )
    opening = _Opening(execution, timing, mcp_servers)
    if opening.restores:
        await wait_for_next_minute(execution, stage)
        stage("restoring")
    restored, setup = await opening.open(known_unsupported=refuses(info.version))
    failpoint("session.after_open")
    mode_failed = await apply_wanted(execution, setup, inactivity_s=quiet)
    failpoint("session.after_settings")
    return msgspec.structs.replace(restored, mode_failed=mode_failed)


class _Opening:
    """The choice between session/resume, session/load and session/new, for one execution."""

    def __init__(self, execution: AgentExecution, timing: Timing, mcp_servers: Sequence[Mapping[str, Any]]) -> None:
        self._execution = execution
        self._timing = timing
        self._mcp = mcp_servers
        self._cwd = execution.request.cwd

    @property
    def restores(self) -> bool:
        """True when there is a session that the agent is to restore in its protocol."""
        execution = self._execution
        return bool(execution.request.acp_session_id and execution.config.session.native_session_resume)

    async def open(self, *, known_unsupported: bool) -> tuple[Restored, acp.SessionSetup]:
        request, info = self._execution.request, self._execution.info
        if not self.restores:
            return Restored(how="fresh"), await self._new()
        methods = [m for m, offered in (("resume", info.resume_session), ("load", info.load_session)) if offered]
        if known_unsupported or not methods:
            return await self._fall_back("the agent does not offer to load sessions")
        for method in methods:
            try:
                setup = await self._restore_patiently(f"session/{method}")
            except RestoreFailed as failure:
                if failure.kind is LoadFailure.UNSUPPORTED:
                    continue
                if failure.kind is LoadFailure.UNKNOWN_SESSION and not request.token_proven:
                    # Most agents store nothing before the first prompt: nothing was lost (TOK-5).
                    return Restored(how="fresh", reason="the agent had stored nothing yet"), await self._new()
                raise
            return Restored(how="native", reason=f"session/{method}"), setup
        return await self._fall_back("the agent answered that it cannot load sessions", refused=True)

    async def _fall_back(self, reason: str, *, refused: bool = False) -> tuple[Restored, acp.SessionSetup]:
        lost = "the agent's own memory of this session" if self._execution.request.token_proven else ""
        return Restored(how="fresh", reason=reason, lost=lost, refused=refused), await self._new()

    async def _new(self) -> acp.SessionSetup:
        state = self._execution.state
        state.agent_session_id, state.restored = "", False  # behind a failed load, its answer opens the replay gate
        answer = await self._execution.ingest.request(
            "session/new",
            lambda n: acp.new_session(n, self._cwd, self._mcp),
            inactivity_s=self._timing.rpc_inactivity_s,
        )
        setup = acp.session_setup(answer.result)
        if not setup.session_id:
            raise RequestFailed("session/new: the answer has no sessionId", method="session/new", rpc_code=None)
        return setup

    async def _restore_patiently(self, method: str) -> acp.SessionSetup:
        """Restore; while the session is in use elsewhere, try again with back-off for some seconds (TOK-14)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timing.in_use_retry_s
        pause = RETRY_FIRST_S
        while True:
            try:
                return await self._restore(method)
            except RestoreFailed as failure:
                if failure.kind is not LoadFailure.IN_USE or loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_MOST_S)

    async def _restore(self, method: str) -> acp.SessionSetup:
        token = self._execution.request.acp_session_id
        state = self._execution.state
        state.phase, state.agent_session_id, state.replayed = Phase.REPLAYING, token, {}
        build: Callable[[int, str, str, Sequence[Mapping[str, Any]]], bytes] = (
            acp.resume_session if method == "session/resume" else acp.load_session
        )
        try:
            answer = await self._execution.ingest.request(
                method,
                lambda n: build(n, token, self._cwd, self._mcp),
                inactivity_s=self._timing.rpc_inactivity_s,
            )
        except RequestFailed as failure:
            error = failure.error if isinstance(failure.error, Mapping) else None
            kind = classify_load_failure(error, session_id=token)
            log.info("session.restore_refused", method=method, kind=str(kind), token=fingerprint(token))
            raise RestoreFailed(failure.message, kind=kind, owner=in_use_owner(error)) from failure
        return acp.session_setup(answer.result)


async def apply_wanted(execution: AgentExecution, setup: acp.SessionSetup, *, inactivity_s: float) -> str:
    """Set model, options and mode where the agent came up with others; return what could not be set, or ''.

    The mode comes last: an agent may reset it when its model changes.
    """
    wanted, session_id = execution.wanted, execution.agent_session_id
    requests = [*_model_requests(wanted.model, setup), *_option_requests(wanted.options, setup)]
    if wanted.mode and setup.modes and setup.current_mode != wanted.mode:
        requests.append(("session/set_mode", wanted.mode))
    setting = execution.dialect.setting
    for method, *values in requests:
        try:
            await execution.ingest.request(
                method,
                partial(_set, setting, session_id, method, values),
                mode=wanted.mode if method == "session/set_mode" else "",
                inactivity_s=inactivity_s,
            )
        except RequestFailed as failure:
            return f"{' '.join(map(str, values))}: {failure.message}"
    return ""


def _set(setting: Callable[..., bytes], session_id: str, method: str, values: Sequence[Any], request_id: int) -> bytes:
    return setting(request_id, session_id, method, *values)


def _model_requests(model: str, setup: acp.SessionSetup) -> list[tuple[Any, ...]]:
    if not model:
        return []
    for option in setup.config_options:
        if option.get("category") == "model":
            same = option.get("currentValue") == model
            return [] if same else [("session/set_config_option", option["id"], model)]
    if setup.models and setup.current_model != model:
        return [("session/set_model", model)]
    return []


def _option_requests(options: Mapping[str, str | bool], setup: acp.SessionSetup) -> list[tuple[Any, ...]]:
    current = {option["id"]: option.get("currentValue") for option in setup.config_options}
    return [
        ("session/set_config_option", name, value)
        for name, value in options.items()
        if name in current and current[name] != value
    ]


def should_inject_resume_context(execution: AgentExecution, history: History, *, how: str) -> bool:
    """Tell whether the recorded conversation goes with the next prompt.

    The flag is on, something is recorded, and this agent's session is new, so that it knows nothing of it.
    """
    return execution.history_enabled and how == "fresh" and history.has_history(execution.ref.session_id)


def dispatch_initial_prompt(execution: AgentExecution, history: History, *, how: str) -> InitialPrompt:
    """Choose among the three ways (specification, "dispatchInitialPrompt"). The queue sends what is to be sent."""
    if execution.request.task_description:
        return InitialPrompt.SEND
    if should_inject_resume_context(execution, history, how=how):
        execution.state.needs_resume_context = True
        return InitialPrompt.INJECT
    return InitialPrompt.IDLE


async def build_effective_prompt(execution: AgentExecution, prompt: QueuedPrompt, history: History) -> tuple[str, str]:
    """Return what is sent for a prompt, and what went with it: 'history' or ''.

    The injection counts only once the agent accepted it, so a failed first prompt injects again (PROMPT-6).
    """
    if execution.history_enabled and execution.needs_resume_context and not execution.resume_context_injected:
        context = await history.generate_resume_context(
            execution.ref.session_id, prompt.content, message_id=prompt.message_id
        )
        return context.text, "history"
    return prompt.content, ""


async def send_prompt(execution: AgentExecution, turn: Turn, text: str, *, injected: str) -> None:
    """Send the prompt of a turn that is stored; return once agentctl wrote it. The turn's end is an effect.

    The turn is in flight before this first waits: a cancel finds it there. Raises ExecutionNotFoundError when the
    prompt provably reached nobody.
    """
    execution.require_live()
    execution.ingest.reader.begin_turn(turn.id, injected=injected)
    session_id = execution.agent_session_id
    prompt = execution.dialect.prompt
    await execution.ingest.post("session/prompt", lambda n: prompt(n, session_id, text), turn_id=turn.id)


async def replay_quiet(execution: AgentExecution, timing: Timing) -> None:
    """Wait, behind a load, until nothing came for a moment: some agents answer first and replay then (HIST-1)."""
    if execution.state.phase is not Phase.REPLAYING:
        return
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timing.replay_quiet_max_s
    while True:
        left = min(execution.ingest.last_heard + timing.replay_quiet_s, deadline) - loop.time()
        if left <= 0:
            return
        await asyncio.sleep(left)  # the absence of an update is no event to wait for
