"""The demo agent that comes with this package."""

from kandev.agents.base import AgentConfig, SessionConfig

AGENT = AgentConfig(
    name="demo",
    display_name="Demo",
    # No site and no user packages: it is standard library only, and starts faster so.
    command=("{python}", "-I", "-S", "{kandev}/demo/agent.py"),
    session=SessionConfig(native_session_resume=True),
    session_directory="${KANDEV_DEMO_AGENT_HOME:-~/.kandev-demo-agent}",
    env_allow=("KANDEV_DEMO_AGENT_HOME",),
)
