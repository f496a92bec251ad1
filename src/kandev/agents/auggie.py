"""Auggie in ACP mode: restores its own conversation since 0.18.1."""

from kandev.agents.base import AgentConfig, SessionConfig

AUGGIE = AgentConfig(
    name="auggie",
    display_name="Auggie",
    command=("auggie", "--acp"),
    session=SessionConfig(native_session_resume=True),
    env_allow=("AUGMENT_*",),
    login_hint="auggie login",
    install_hint="npm install -g @augmentcode/auggie",
)
