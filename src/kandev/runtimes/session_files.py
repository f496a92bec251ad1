"""What a runtime keeps on this machine of one session: a directory of its own, and the token for its agentctl."""

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Container
from pathlib import Path
from typing import Final

__all__ = ["EARLIER", "PRIVATE", "SessionFiles", "sessions_in", "write_private"]

PRIVATE: Final = 0o700
"""The mode of a directory that only its owner reads."""
EARLIER: Final = 1
"""How many directories of earlier instances of a session are kept, for whoever looks what went wrong."""
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")


def sessions_in(root: Path) -> list[str]:
    """Return the ids of sessions of which something is kept under `root`."""
    if not root.is_dir():
        return []
    return [path.name for path in root.iterdir() if path.is_dir() and _ID.fullmatch(path.name)]


class SessionFiles:
    """The directory of one session under `root`, the runtime's directory. Making this object touches nothing."""

    def __init__(self, root: Path, session_id: str) -> None:
        assert _ID.fullmatch(session_id), "ids are ours, and no paths (SEC-2)"
        self.session_id = session_id
        self.directory = root / session_id
        self.token_file = self.directory / "token"
        self._made = self.directory / "made"

    def instance_directory(self, instance_id: str) -> Path:
        """Return where an instance has its journal."""
        return self.directory / instance_id

    @property
    def token(self) -> str:
        """What requests to agentctl must carry; '' before the first start."""
        with contextlib.suppress(FileNotFoundError):
            return self.token_file.read_text("ascii").strip()
        return ""

    def make(self, instance_id: str, *others: Path) -> None:
        """Make the directories, `others` too, and the token. Of earlier instances only the last one's is left."""
        for directory in (self.directory, self.instance_directory(instance_id), *others):
            directory.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        if not self.token:
            write_private(self.token_file, secrets.token_hex(32))
        self._remove_earlier(besides={self.instance_directory(instance_id), *others})

    def _remove_earlier(self, *, besides: Container[Path]) -> None:
        found = [path for path in self.directory.iterdir() if path.is_dir() and path not in besides]
        found.sort(key=lambda path: path.stat().st_mtime_ns)
        for path in found[:-EARLIER]:
            shutil.rmtree(path, ignore_errors=True)

    @property
    def was_made(self) -> bool:
        """True when the session had a place before."""
        return self._made.exists()

    def note_made(self) -> None:
        """Note that the session has a place."""
        self._made.touch(mode=0o600)

    def remove(self) -> None:
        """Remove it all, the agent's own memory too where it is kept here."""
        shutil.rmtree(self.directory, ignore_errors=True)


def write_private(path: Path, text: str) -> None:
    """Put a file in its place as a whole, readable by its owner only."""
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:  # which writes all of it, or raises
        file.write(text)
    draft.replace(path)
