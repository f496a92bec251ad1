"""A session that begins as the agent's own copy of another one, for agents that copy by a command of their own.

The command runs where the agent does, in its environment: in a container of its own it copies what the agent's server
has (Amp's threads), or what is mounted there, and says so where it finds nothing.
"""

import os

import msgspec
import structlog

from kandev.agents.base import fork_command, launch_environment
from kandev.errors import AgentError
from kandev.lifecycle.execution import AgentExecution

log = structlog.get_logger(__name__)

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
    except AgentError as error:
        execution.fork_failed = error.message
        log.info("fork.failed", session_id=request.session_id, error=execution.fork_failed)
        execution.request = msgspec.structs.replace(request, fork_of="")
    else:
        execution.request = msgspec.structs.replace(request, acp_session_id=token)


async def _copied(execution: AgentExecution) -> str:
    request, config, place = execution.request, execution.config, execution.runtime.place
    words = fork_command(config, token=request.fork_of, place=place)
    ran = await execution.client.run(
        command=words,
        env=launch_environment(config, os.environ, place),
        cwd=request.cwd,
        inherit=place.own_environment,
    )
    copied = ran.out.split()[-1] if ran.out.split() else ""
    if ran.code or not copied or copied.startswith("-") or len(copied) > TOKEN_CHARACTERS:
        said = (ran.err.strip() or ran.out.strip()).replace(request.fork_of, "…")[-400:]
        raise AgentError(f"{' '.join(words[:-1])} ended with {ran.code}: {said}")
    return copied
