"""A session with an agent that takes its token on the command line, and then speaks stream-json.

Claude Code says nothing before its first prompt, so a control request asks it: the answer says that it runs, and has
restored what it was to. Amp has no such request, and is ready when it runs; it tells of a lost thread at the first
prompt (`Reader.agent_ended`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from kandev.domain.constants import Timing
from kandev.domain.failures import LoadFailure, classify_load_failure
from kandev.domain.models import fingerprint
from kandev.errors import AgentDied, RequestFailed
from kandev.lifecycle.execution import AgentExecution
from kandev.lifecycle.last_words import as_error
from kandev.lifecycle.session import Restored, RestoreFailed, apply_wanted
from kandev.protocols import acp
from kandev.protocols.stream_json import StreamJson

log = structlog.get_logger(__name__)

SAID_AT_THE_END = frozenset({LoadFailure.UNKNOWN_SESSION, LoadFailure.LOGIN, LoadFailure.IN_USE})


async def open_stream_session(
    execution: AgentExecution,
    *,
    timing: Timing,
    mcp_servers: Sequence[Mapping[str, Any]],
    stage: Callable[[str], None],
) -> Restored:
    """Wait until the agent runs and has restored its session, then set tool servers, mode and model.

    Raises RestoreFailed, RequestFailed, AgentSilent, AgentDied.
    """
    token, state = execution.request.acp_session_id, execution.state
    if token or execution.request.fork_of:
        stage("restoring")
    state.agent_session_id = token  # a copy that is made by a flag has an id of its own, which it tells later
    restored = _restored(execution)
    if execution.config.protocol == "amp":
        execution.initialized, state.restored = True, bool(token)
        return restored
    answer = await _started(execution, timing)
    execution.info = acp.AgentInfo.from_initialize(answer.result)
    execution.initialized = True
    if mcp_servers:
        await _set_servers(execution, mcp_servers, timing)
    setup = acp.session_setup(answer.result)
    mode_failed = await apply_wanted(execution, setup, inactivity_s=timing.rpc_inactivity_s)
    return msgspec.structs.replace(restored, mode_failed=mode_failed)


def _restored(execution: AgentExecution) -> Restored:
    request, session = execution.request, execution.config.session
    if execution.fork_failed:
        why = f"the other one could not be copied ({execution.fork_failed})"
        return Restored(how="fresh", reason=why, lost="what the agent remembers of it")
    if request.fork_of:
        return Restored(how="native", reason=" ".join(session.fork_session_cmd) or session.fork_flag)
    if request.acp_session_id:
        return Restored(how="native", reason=" ".join(session.continue_session_cmd) or session.resume_flag)
    return Restored(how="fresh")


async def _started(execution: AgentExecution, timing: Timing) -> acp.Response:
    dialect, token = execution.dialect, execution.request.acp_session_id or execution.request.fork_of
    assert isinstance(dialect, StreamJson)
    try:
        return await execution.ingest.request("initialize", dialect.initialize, inactivity_s=timing.rpc_inactivity_s)
    except RequestFailed as failure:
        error = failure.error if isinstance(failure.error, Mapping) else {}
        if not token:
            raise
        kind = classify_load_failure(error, session_id=token)
        log.info("session.restore_refused", kind=str(kind), token=fingerprint(token))
        raise RestoreFailed(acp.error_text(error, hide=token), kind=kind) from failure
    except AgentDied as died:
        error = as_error(str(died.details.get("stderr") or ""))
        kind = classify_load_failure(error, session_id=token)
        if not token or kind not in SAID_AT_THE_END:
            raise
        raise RestoreFailed(acp.error_text(error, hide=token), kind=kind) from died


async def _set_servers(execution: AgentExecution, servers: Sequence[Mapping[str, Any]], timing: Timing) -> None:
    """Tell the agent of its tool servers. One that does not start costs its tools, not the session."""
    table = {str(server["name"]): _entry(server) for server in servers}
    setting = execution.dialect.setting
    try:
        answer = await execution.ingest.request(
            "mcp/set_servers",
            lambda n: setting(n, "", "mcp/set_servers", table),
            inactivity_s=timing.rpc_inactivity_s,
        )
    except RequestFailed as failure:
        log.warning("agent.mcp_refused", session_id=execution.ref.session_id, error=failure.message)
        return
    failed = answer.result.get("errors") if isinstance(answer.result, Mapping) else None
    if failed:
        log.warning("agent.mcp_failed", session_id=execution.ref.session_id, servers=sorted(failed))


def _entry(server: Mapping[str, Any]) -> dict[str, Any]:
    """An entry as ACP has it, with its pairs as tables."""
    entry = {key: value for key, value in server.items() if key != "name"}
    for key in ("env", "headers"):
        if key in entry:
            entry[key] = {pair["name"]: pair["value"] for pair in entry[key]}
    return entry
