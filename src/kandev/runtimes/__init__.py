"""Where agents run: each runtime makes, finds again and ends instances of agentctl; one client talks to all of them."""

from kandev.runtimes.agentctl_client import AgentctlClient, AgentHealth, AgentProcess, Health, JournalHealth
from kandev.runtimes.base import Instance, InstanceRequest, Named, Runtime, RuntimeReport
from kandev.runtimes.detached import DetachedRuntime
from kandev.runtimes.leftovers import Leftover, kill_leftover, kill_leftovers, read_identity
from kandev.runtimes.standalone import StandaloneRuntime

__all__ = [
    "AgentHealth",
    "AgentProcess",
    "AgentctlClient",
    "DetachedRuntime",
    "Health",
    "Instance",
    "InstanceRequest",
    "JournalHealth",
    "Leftover",
    "Named",
    "Runtime",
    "RuntimeReport",
    "StandaloneRuntime",
    "kill_leftover",
    "kill_leftovers",
    "read_identity",
]
