"""OpenCode in ACP mode: restores its own conversation."""

from kandev.agents.base import AgentConfig, SessionConfig

OPENCODE = AgentConfig(
    name="opencode",
    display_name="OpenCode",
    command=("opencode", "acp"),
    session=SessionConfig(native_session_resume=True),
    env_allow=("OPENCODE_*", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"),
    login_hint="opencode auth login",
    install_hint="npm install -g opencode-ai",
)
