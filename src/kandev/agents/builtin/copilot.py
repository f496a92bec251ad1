"""GitHub Copilot's command line in ACP mode: restores its own conversation."""

from kandev.agents.base import AgentConfig, SessionConfig

AGENT = AgentConfig(
    name="copilot",
    display_name="GitHub Copilot",
    command=("copilot", "--acp"),
    version_command=("copilot", "--version"),
    session=SessionConfig(native_session_resume=True),
    session_directory="${COPILOT_HOME:-~/.copilot}/session-state",
    env_allow=("COPILOT_*", "GH_TOKEN", "GITHUB_TOKEN", "GH_HOST"),
    # Its own login is in the system's keyring, where it has one, which nobody else can look into.
    credentials=("$COPILOT_GITHUB_TOKEN", "$GH_TOKEN", "$GITHUB_TOKEN", "$COPILOT_PROVIDER_BASE_URL"),
    login_hint="copilot login",
    install_hint="npm install -g @github/copilot",
)
