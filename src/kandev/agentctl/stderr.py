"""The agent's stderr: always drained (WIRE-7), into a ring in memory and a bounded file."""

import asyncio
import os
from typing import Final

from kandev.agentctl.platform import PIPE_BYTES

__all__ = ["StderrDrain", "stored_tail"]

_FILE: Final = "stderr.log"
_RING_BYTES: Final = 64 * 1024
_FILE_BYTES: Final = 1 << 20
_READ_BYTES: Final = 64 * 1024


class StderrDrain:
    """Owns the read end of the agent's stderr. The file is rotated once, so two files of 1 MiB are the most."""

    def __init__(self, fd: int, *, directory: str, loop: asyncio.AbstractEventLoop) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._path = os.path.join(directory, _FILE)
        self._loop = loop
        self._ring = bytearray()
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
        self._open = True
        loop.add_reader(fd, self._read)

    def tail(self, limit: int) -> bytes:
        """Return the last `limit` bytes, 64 KiB at most."""
        return bytes(self._ring[-limit:]) if limit > 0 else b""

    def finish(self) -> None:
        """Take what is there and close; what a grandchild writes later goes nowhere."""
        taken = 0
        while self._open and taken < PIPE_BYTES and (count := self._read()):
            taken += count
        self._close()

    def _read(self) -> int:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._close()
            return 0
        self._ring += data
        del self._ring[:-_RING_BYTES]
        self._store(data)
        return len(data)

    def _store(self, data: bytes) -> None:
        try:
            if self._size + len(data) > _FILE_BYTES:
                self._rotate()
            self._size += os.write(self._file, data)
        except OSError:
            pass  # a full disk must not stop the agent; the ring has the last lines

    def _rotate(self) -> None:
        os.rename(self._path, self._path + ".1")
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.close(self._file)
        self._file, self._size = fd, 0

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            os.close(self._file)


def stored_tail(directory: str, limit: int) -> bytes:
    """Return the last bytes that the files of an instance have, when its agentctl is gone; b'' when there are none."""
    text = b""
    for name in (_FILE, _FILE + ".1"):
        try:
            with open(os.path.join(directory, name), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - (limit - len(text))))
                text = file.read() + text
        except FileNotFoundError:
            break
        if len(text) >= limit:
            break
    return text[-limit:] if limit > 0 else b""
