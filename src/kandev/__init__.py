"""A durable session server for coding agents: sessions that come back after a crash, with their memory."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kandev.library import Kandev, Session

__all__ = ["Kandev", "Session", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the library when somebody asks for it: the command line and agentctl start without it."""
    if name not in {"Kandev", "Session"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kandev import library  # noqa: PLC0415 - see above

    return getattr(library, name)
