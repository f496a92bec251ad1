"""Codex by its ACP adapter: restores its own conversation."""

from kandev.agents.base import AgentConfig, SessionConfig

CODEX = AgentConfig(
    name="codex",
    display_name="Codex",
    command=("codex-acp",),
    session=SessionConfig(native_session_resume=True),
    env_allow=("OPENAI_*", "CODEX_*", "NO_BROWSER"),
    login_hint="codex login",
    install_hint="npm install -g @agentclientprotocol/codex-acp",
    # Seen: seven seconds from end-of-file on stdin to its exit.
    close_grace_s=8.0,
)
