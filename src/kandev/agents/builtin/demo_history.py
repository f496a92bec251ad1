"""The demo agent without a memory of its own: it is told the recorded conversation."""

from kandev.agents.base import AgentConfig, SessionConfig
from kandev.agents.builtin import demo

AGENT = AgentConfig(
    name="demo-history",
    display_name="Demo without memory of its own",
    command=(*demo.AGENT.command, "--no-load", "--no-resume"),
    session=SessionConfig(history_context_injection=True),
    env_allow=demo.AGENT.env_allow,
)
