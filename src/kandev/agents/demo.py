"""The demo agent that comes with this package, once with its own memory and once without."""

from kandev.agents.base import AgentConfig, SessionConfig

# No site and no user packages: it is standard library only, and starts faster so.
_COMMAND = ("{python}", "-I", "-S", "{kandev}/demo/agent.py")
_ENVIRONMENT = ("KANDEV_DEMO_AGENT_HOME",)

DEMO = AgentConfig(
    name="demo",
    display_name="Demo",
    command=_COMMAND,
    session=SessionConfig(native_session_resume=True),
    env_allow=_ENVIRONMENT,
)

DEMO_HISTORY = AgentConfig(
    name="demo-history",
    display_name="Demo without memory of its own",
    command=(*_COMMAND, "--no-load", "--no-resume"),
    session=SessionConfig(history_context_injection=True),
    env_allow=_ENVIRONMENT,
)
