"""Keeps a sandbox awake that would fall asleep: its service is told that something goes on, while something does."""

import asyncio
import json
from typing import Final

__all__ = ["EVERY_S", "hold"]

EVERY_S: Final = 60.0
"""How often that is told, at most."""
_FOR: Final = "5m"
_ANSWER_S: Final = 5.0


async def hold(path: str) -> bool:
    """Tell the service at the Unix socket `path` that the sandbox is needed for five minutes; False where that fails.

    A task of one name is held; telling it again takes the place of what was told before.
    """
    body = json.dumps({"expire": _FOR}).encode()
    head = "PUT /v1/tasks/kandev HTTP/1.1\r\nhost: sprite\r\ncontent-type: application/json\r\nconnection: close"
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False
    return status.startswith(b"HTTP/1.1 2")
