"""What an action is given beside its request."""

from dataclasses import dataclass
from typing import Any

from kandev.gateway.backend import Backend
from kandev.gateway.outbox import Outbox

Payload = Any
"""Whatever msgspec encodes: structs of the domain and the views, and dicts of them."""


@dataclass(frozen=True)
class Context:
    """The backend, and the outbox of the socket that asks."""

    backend: Backend
    outbox: Outbox
