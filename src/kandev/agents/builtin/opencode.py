"""OpenCode in ACP mode: restores its own conversation."""

from kandev.agents.base import AgentConfig, SessionConfig

_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY")

AGENT = AgentConfig(
    name="opencode",
    display_name="OpenCode",
    command=("opencode", "acp"),
    version_command=("opencode", "--version"),
    session=SessionConfig(native_session_resume=True),
    session_directory="${XDG_DATA_HOME:-~/.local/share}/opencode",
    env_allow=("OPENCODE_*", *_KEYS),
    credentials=(*(f"${name}" for name in _KEYS), "${XDG_DATA_HOME:-~/.local/share}/opencode/auth.json"),
    login_hint="opencode auth login",
    install_hint="npm install -g opencode-ai",
)
