"""A durable session server for coding agents: sessions that come back after a crash, with their memory."""

__all__ = ["__version__"]

__version__ = "0.1.0"
