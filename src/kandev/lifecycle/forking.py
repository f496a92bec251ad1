"""A session that begins as the agent's own copy of another one, for agents that copy by a command of their own.

The command runs beside the backend, whatever the runtime: what it copies does not lie where the agent runs.
"""

import asyncio
import contextlib
import os

import msgspec
import structlog

from kandev.agents.base import fork_command, launch_environment
from kandev.errors import AgentError
from kandev.lifecycle.execution import AgentExecution

log = structlog.get_logger(__name__)

LIMIT_S = 60.0
TOKEN_CHARACTERS = 200


async def fork_by_command(execution: AgentExecution) -> None:
    """Have the agent copy the session that the request names; the copy's id becomes the token of this start.

    Does nothing where no copy is asked for, or the agent copies by a flag of its own start. A copy that fails is no
    failed start: the session begins empty, `fork_failed` says why, and the recap of the other one is still there.
    """
    request, config = execution.request, execution.config
    if not request.fork_of or not config.session.fork_session_cmd:
        return
    try:
        token = await _copied(execution)
    except (AgentError, OSError) as error:
        execution.fork_failed = str(error)
        log.info("fork.failed", session_id=request.session_id, error=execution.fork_failed)
        execution.request = msgspec.structs.replace(request, fork_of="")
    else:
        execution.request = msgspec.structs.replace(request, acp_session_id=token)


async def _copied(execution: AgentExecution) -> str:
    request, config = execution.request, execution.config
    words = fork_command(config, token=request.fork_of)
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=request.cwd,
        env=launch_environment(config, os.environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        raise AgentError(f"{' '.join(words[:-1])} did not end within {LIMIT_S:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    said = errors.decode(errors="replace").strip() or output.decode(errors="replace").strip()
    copied = output.split()[-1].decode(errors="replace") if output.split() else ""
    if process.returncode or not copied or copied.startswith("-") or len(copied) > TOKEN_CHARACTERS:
        text = said.replace(request.fork_of, "…")[-400:]
        raise AgentError(f"{' '.join(words[:-1])} ended with {process.returncode}: {text}")
    return copied
