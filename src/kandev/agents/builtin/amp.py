"""Amp: threads live on its server; continued and forked by commands of their own (specification's table)."""

from kandev.agents.base import AgentConfig, SessionConfig

AGENT = AgentConfig(
    name="amp",
    display_name="Amp",
    command=("amp", "-x", "--stream-json", "--stream-json-input"),
    protocol="amp",
    version_command=("amp", "--version"),
    session=SessionConfig(
        fork_session_cmd=("amp", "threads", "fork"),
        continue_session_cmd=("amp", "threads", "continue"),
    ),
    mode_flag="--mode",
    env_allow=("AMP_*",),
    credentials=("$AMP_API_KEY",),
    login_hint="amp login",
    install_hint="npm install -g @ampcode/cli",
)
