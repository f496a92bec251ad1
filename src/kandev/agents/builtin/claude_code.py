"""Claude Code: resumes by its command line, with the stored token (specification's table)."""

from kandev.agents.base import AgentConfig, SessionConfig

AGENT = AgentConfig(
    name="claude-code",
    display_name="Claude Code",
    command=(
        *("claude", "-p", "--output-format", "stream-json", "--input-format", "stream-json"),
        *("--permission-prompt-tool", "stdio", "--permission-mode", "default"),
        *("--verbose", "--include-partial-messages", "--replay-user-messages"),
    ),
    protocol="stream-json",
    version_command=("claude", "--version"),
    session=SessionConfig(resume_flag="--resume", resume_at_flag="--resume-session-at", fork_flag="--fork-session"),
    session_directory="${CLAUDE_CONFIG_DIR:-~/.claude}/projects",
    # Of the clouds that it can use, what names a region, a profile or a key for models alone. Credentials that open
    # more than that are for `env_allow` in the configuration.
    env_allow=(
        *("ANTHROPIC_*", "CLAUDE_*", "API_TIMEOUT_MS", "BASH_*", "DISABLE_*", "ENABLE_TOOL_SEARCH", "MAX_*", "MCP_*"),
        *("AWS_REGION", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK", "CLOUD_ML_REGION", "VERTEX_REGION_*"),
    ),
    credentials=(
        *("$ANTHROPIC_API_KEY", "$ANTHROPIC_AUTH_TOKEN", "$CLAUDE_CODE_OAUTH_TOKEN", "$AWS_BEARER_TOKEN_BEDROCK"),
        "${CLAUDE_CONFIG_DIR:-~/.claude}/.credentials.json",
    ),
    login_hint="claude auth login",
    install_hint="npm install -g @anthropic-ai/claude-code",
)
