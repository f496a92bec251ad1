"""A durable session server for coding agents: sessions that come back after a crash, with their memory.

`Kandev` and `Session` are the library (see `kandev.library`); they are imported when they are first used, because
the command line and agentctl import this package too, and start in milliseconds.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kandev.library import Kandev, Session

__all__ = ["Kandev", "Session", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the library at its first use."""
    if name in {"Kandev", "Session"}:
        from kandev import library  # noqa: PLC0415 - the reason stands above

        return getattr(library, name)
    raise AttributeError(f"module 'kandev' has no attribute {name!r}")
