"""What the gateway calls: the services of the backend, which `kandev.app` builds."""

from collections.abc import Mapping
from typing import Any, Protocol

from kandev.gateway.hub import Hub
from kandev.orchestrator.agent_list import AgentList
from kandev.orchestrator.catalog import Catalog
from kandev.orchestrator.deletion import Deletion
from kandev.orchestrator.messages import MessageService
from kandev.orchestrator.permissions import PermissionService
from kandev.orchestrator.recovery import Recovery
from kandev.orchestrator.search import Search
from kandev.orchestrator.session_settings import SessionSettings
from kandev.orchestrator.task_operations import TaskOperations
from kandev.orchestrator.tasks import TaskService


class Backend(Protocol):
    """The backend as seen from outside."""

    boot_id: str
    hub: Hub
    tasks: TaskService
    deletion: Deletion
    operations: TaskOperations
    recovery: Recovery
    settings: SessionSettings
    agents: AgentList
    catalog: Catalog
    messages: MessageService
    permissions: PermissionService
    search: Search

    def snapshot(self, session_id: str) -> Mapping[str, Any]:
        """Return what a subscriber must know of a session now. Synchronous, so that it fits the hub's number."""
