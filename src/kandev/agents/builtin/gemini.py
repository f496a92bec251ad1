"""Gemini in ACP mode: boots idle, restores nothing (specification's table).

It offers session/load. Version 0.61.0 lost sessions by it in two ways, so restoring is a choice of the configuration,
`native_session_resume = true`; then `load_next_minute` keeps the one away, and a setting of its own the other.
"""

from kandev.agents.base import AgentConfig, SessionConfig, SettingNeeded

AGENT = AgentConfig(
    name="gemini",
    display_name="Gemini",
    command=("gemini", "--acp"),
    version_command=("gemini", "--version"),
    session=SessionConfig(load_next_minute=True),
    session_directory="${GEMINI_CLI_HOME:-~}/.gemini/tmp",
    env_allow=("GEMINI_*", "GOOGLE_*"),
    credentials=(
        *("$GEMINI_API_KEY", "$GOOGLE_API_KEY", "$GOOGLE_APPLICATION_CREDENTIALS"),
        "${GEMINI_CLI_HOME:-~}/.gemini/oauth_creds.json",
    ),
    restore_needs=SettingNeeded(
        file="${GEMINI_CLI_HOME:-~}/.gemini/settings.json",
        key=("general", "sessionRetention", "enabled"),
        value=False,
        why="its clean-up deletes a session at the second start after a restore",
    ),
    login_hint="gemini",
    install_hint="npm install -g @google/gemini-cli",
)
