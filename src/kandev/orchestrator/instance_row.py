"""The columns of executors_running that tell where an instance is: written at its start, and when it is attached."""

from typing import Any

from kandev.runtimes import Instance
from kandev.store.rows import to_json


def instance_columns(instance: Instance) -> dict[str, Any]:
    """Return them by name. The port is 0 where agentctl listens at a path."""
    _, _, port = instance.agentctl_url.rpartition(":")
    return {
        "instance": to_json(instance),
        "agentctl_url": instance.agentctl_url,
        "agentctl_port": int(port) if port.isdecimal() else 0,
        "agentctl_pid": instance.agentctl_pid,
        "agentctl_start_time": instance.agentctl_start_time,
        "container_id": instance.container_id,
        "boot_id": instance.boot_id,
    }
