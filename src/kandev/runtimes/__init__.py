"""Where agents run: each runtime makes, finds again and ends instances of agentctl; one client talks to all of them."""

from kandev.runtimes.agentctl_client import AgentctlClient, AgentHealth, AgentProcess, Health, JournalHealth
from kandev.runtimes.base import Instance, InstanceRequest, Runtime
from kandev.runtimes.leftovers import Leftover, kill_leftover, kill_leftovers, read_identity
from kandev.runtimes.standalone import StandaloneRuntime

__all__ = [
    "AgentHealth",
    "AgentProcess",
    "AgentctlClient",
    "Health",
    "Instance",
    "InstanceRequest",
    "JournalHealth",
    "Leftover",
    "Runtime",
    "StandaloneRuntime",
    "kill_leftover",
    "kill_leftovers",
    "read_identity",
]
