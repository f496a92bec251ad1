"""The words that start an agent, with what it is told on its command line: token, copy, mode."""

from kandev.agents.base import launch_command
from kandev.lifecycle.execution import AgentExecution


def command_of(execution: AgentExecution) -> list[str]:
    """Return the command of this start, as it stands where the agent runs."""
    request, config = execution.request, execution.config
    # An ACP agent with such an option might not start over a token that nothing has proven (TOK-5).
    token = request.acp_session_id if request.token_proven or config.protocol != "acp" else ""
    copies = [config.session.fork_flag] if request.fork_of and not token else []
    words = launch_command(
        config,
        token=token or request.fork_of,
        last_message_uuid=request.last_message_uuid,
        place=execution.runtime.place,
    )
    mode = [config.mode_flag, execution.wanted.mode] if config.mode_flag and execution.wanted.mode else []
    return [*words, *copies, *mode]
