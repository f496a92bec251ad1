"""Claude Code by its ACP adapter: restores its own conversation. `claude-code` is its own command line."""

from kandev.agents.base import AgentConfig, SessionConfig
from kandev.agents.builtin import claude_code

AGENT = AgentConfig(
    name="claude-acp",
    display_name="Claude Code (ACP)",
    command=("claude-agent-acp",),
    session=SessionConfig(native_session_resume=True),
    session_directory=claude_code.AGENT.session_directory,
    env_allow=claude_code.AGENT.env_allow,
    credentials=claude_code.AGENT.credentials,
    login_hint=claude_code.AGENT.login_hint,
    install_hint="npm install -g @agentclientprotocol/claude-agent-acp",
)
