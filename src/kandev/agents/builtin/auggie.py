"""Auggie in ACP mode: restores its own conversation since 0.18.1."""

from kandev.agents.base import AgentConfig, SessionConfig

AGENT = AgentConfig(
    name="auggie",
    display_name="Auggie",
    command=("auggie", "--acp"),
    version_command=("auggie", "--version"),
    session=SessionConfig(native_session_resume=True),
    session_directory="~/.augment/sessions",
    env_allow=("AUGMENT_*",),
    credentials=("$AUGMENT_SESSION_AUTH", "~/.augment/session.json"),
    login_hint="auggie login",
    install_hint="npm install -g @augmentcode/auggie",
)
