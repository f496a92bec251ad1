"""What an agent wrote to stderr in its last run, kept after its instance is gone: logs/agents/{session_id}.log."""

import contextlib
import os
import shutil
from pathlib import Path


class AgentLogs:
    """One file for each session, 0600, of at most what agentctl keeps (WIRE-7)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, session_id: str, instance_directory: str) -> None:
        """Take over the file of an instance that ended. A full disk loses the log, never the session."""
        with contextlib.suppress(OSError):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.move(os.path.join(instance_directory, "stderr.log"), self._path(session_id))

    def tail(self, session_id: str, limit: int) -> str:
        """Return the last `limit` bytes as text, '' where there is nothing."""
        try:
            with self._path(session_id).open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - limit))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def delete(self, session_id: str) -> None:
        """Remove the session's file."""
        with contextlib.suppress(OSError):
            self._path(session_id).unlink()

    def _path(self, session_id: str) -> Path:
        return self._directory / f"{session_id}.log"
