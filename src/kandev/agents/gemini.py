"""Gemini in ACP mode: boots idle, restores nothing (specification's table).

It advertises session/load, but 0.61.0 was seen to destroy a session that is loaded twice, so the default stays
without it.
"""

from kandev.agents.base import AgentConfig

GEMINI = AgentConfig(
    name="gemini",
    display_name="Gemini",
    command=("gemini", "--acp"),
    env_allow=("GEMINI_*", "GOOGLE_*"),
    login_hint="gemini",
    install_hint="npm install -g @google/gemini-cli",
)
