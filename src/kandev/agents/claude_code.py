"""Claude Code: resumes by its command line, with the stored token (specification's table)."""

from kandev.agents.base import AgentConfig, SessionConfig

CLAUDE_CODE = AgentConfig(
    name="claude-code",
    display_name="Claude Code",
    command=(
        *("claude", "-p", "--output-format", "stream-json", "--input-format", "stream-json"),
        *("--permission-prompt-tool", "stdio", "--permission-mode", "default"),
        *("--verbose", "--include-partial-messages", "--replay-user-messages"),
    ),
    protocol="stream-json",
    session=SessionConfig(resume_flag="--resume", resume_at_flag="--resume-session-at"),
    env_allow=("ANTHROPIC_*", "CLAUDE_*", "DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER"),
    login_hint="claude auth login",
    install_hint="npm install -g @anthropic-ai/claude-code",
)
