"""GitHub Copilot's command line in ACP mode: restores its own conversation."""

from kandev.agents.base import AgentConfig, SessionConfig

COPILOT = AgentConfig(
    name="copilot",
    display_name="GitHub Copilot",
    command=("copilot", "--acp"),
    session=SessionConfig(native_session_resume=True),
    env_allow=("COPILOT_*", "GH_TOKEN", "GITHUB_TOKEN", "GH_HOST"),
    login_hint="copilot login",
    install_hint="npm install -g @github/copilot",
)
