"""Claude Code by its ACP adapter: restores its own conversation. `claude-code` is its own command line."""

from kandev.agents.base import AgentConfig, SessionConfig
from kandev.agents.builtin import claude_code

AGENT = AgentConfig(
    name="claude-acp",
    display_name="Claude Code (ACP)",
    command=("claude-agent-acp",),
    version_command=("claude-agent-acp", "--version"),
    session=SessionConfig(native_session_resume=True),
    session_directory=claude_code.AGENT.session_directory,
    env_allow=claude_code.AGENT.env_allow,
    credentials=claude_code.AGENT.credentials,
    # The adapter brings the command line along, which need not be installed besides.
    login_hint="claude-agent-acp --cli auth login",
    install_hint="npm install -g @agentclientprotocol/claude-agent-acp",
)
