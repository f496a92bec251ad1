"""Agents: what each is called, how it is started, and what it can restore."""

from kandev.agents.base import (
    AgentConfig,
    AgentOverride,
    McpServer,
    SessionConfig,
    fork_command,
    launch_command,
    launch_environment,
    mcp_servers_for_launch,
    missing_environment,
)
from kandev.agents.registry import BUILT_IN, AgentCheck, AgentRegistry, find_program

__all__ = [
    "BUILT_IN",
    "AgentCheck",
    "AgentConfig",
    "AgentOverride",
    "AgentRegistry",
    "McpServer",
    "SessionConfig",
    "find_program",
    "fork_command",
    "launch_command",
    "launch_environment",
    "mcp_servers_for_launch",
    "missing_environment",
]
