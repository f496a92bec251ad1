"""What the gateway calls: the services of the backend, which `kandev.app` builds."""

from collections.abc import Mapping
from typing import Any, Protocol

from kandev.gateway.hub import Hub


class Backend(Protocol):
    """The backend as seen from outside. The services are those of kandev.orchestrator."""

    boot_id: str
    hub: Hub
    tasks: Any
    operations: Any
    messages: Any
    permissions: Any

    def snapshot(self, session_id: str) -> Mapping[str, Any]:
        """Return what a subscriber must know of a session now. Synchronous, so that it fits the hub's number."""
