"""Codex by its ACP adapter: restores its own conversation."""

from kandev.agents.base import AgentConfig, SessionConfig

AGENT = AgentConfig(
    name="codex",
    display_name="Codex",
    command=("codex-acp",),
    version_command=("codex-acp", "--version"),
    session=SessionConfig(native_session_resume=True),
    # Besides the sessions there, it needs the databases beside them.
    session_directory="${CODEX_HOME:-~/.codex}/sessions",
    env_allow=("OPENAI_*", "CODEX_*", "NO_BROWSER", "RUST_LOG"),
    credentials=("$OPENAI_API_KEY", "$CODEX_API_KEY", "$CODEX_ACCESS_TOKEN", "${CODEX_HOME:-~/.codex}/auth.json"),
    login_hint="codex login",
    install_hint="npm install -g @agentclientprotocol/codex-acp",
    # Seen: seven seconds from end-of-file on stdin to its exit.
    close_grace_s=8.0,
)
