"""What a session's container shares with this machine: one directory for each session, at the same path inside.

SESSION/            mounted
    token           what every request to agentctl must carry, 0600
    arguments       of agentctl, for the next start of the container; one on each line
    home/           the agent's home: its sessions last as long as this session, its login comes from the user's,
                    and who the user is for git
    INSTANCE/       journal and socket of one instance
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kandev.agents.home_files import locate
from kandev.runtimes.session_files import PRIVATE, SessionFiles, write_private

__all__ = ["ContainerFiles", "port_inside"]

_PATH_LIMIT: Final = 106  # and one more for the name that a socket has until it is listened at
_PORT: Final = 8765


def port_inside() -> str:
    """Return agentctl's port in a container, as the engine names it."""
    return f"{_PORT}/tcp"


class ContainerFiles(SessionFiles):
    """What a session's container is given."""

    def __init__(self, root: Path, session_id: str) -> None:
        super().__init__(root, session_id)
        self.home = self.directory / "home"
        self.arguments = self.directory / "arguments"

    def socket(self, instance_id: str) -> str:
        """Return the path of an instance's socket; '' where it would be too long for one."""
        path = str(self.instance_directory(instance_id) / "sock")
        return path if len(os.fsencode(path)) <= _PATH_LIMIT else ""

    @property
    def instance_id(self) -> str:
        """The instance that the container was last started for; '' before the first start."""
        with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
            words = self.arguments.read_text().splitlines()
            return words[words.index("--instance-id") + 1]
        return ""

    def instances(self) -> list[str]:
        """Return the ids of the instances that have a directory, those that have ended too."""
        with contextlib.suppress(FileNotFoundError):
            return [path.name for path in self.directory.iterdir() if path.is_dir() and path != self.home]
        return []

    def prepare(self, instance_id: str, *, cap_bytes: int, idle_s: float, listens_on_network: bool) -> None:
        """Make the directory ready for the start of an instance."""
        self.make(instance_id, self.home)
        path = self.socket(instance_id)
        listens = [*(["--listen", f"unix:{path}"] if path else [])]
        listens += ["--listen", f"tcp:0.0.0.0:{_PORT}"] if listens_on_network else []
        words = [
            *("--instance-id", instance_id, "--dir", str(self.instance_directory(instance_id)), *listens),
            *("--token-file", str(self.token_file), "--cap", str(cap_bytes), "--idle", str(idle_s), "--log"),
        ]
        write_private(self.arguments, "\n".join(words))

    def bring_login(self, places: Iterable[str], environ: Mapping[str, str]) -> None:
        """Copy the files by which the agent is logged in, and nothing else of the user's home.

        A copy that is newer than the user's own stays: an agent may have renewed its login in the container.
        """
        inside = {"HOME": str(self.home)}
        for place in places:
            if place.startswith("$") and not place.startswith("${"):
                continue  # a variable, which comes with the agent's environment
            source, target = locate(place, environ), locate(place, inside)
            if not source.is_file() or not target.is_relative_to(self.home):
                continue
            if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
                continue
            target.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            shutil.copy2(source, target)
            target.chmod(0o600)

    def bring_identity(self, name: str, email: str) -> None:
        """Tell git in there who commits, where an earlier start, or the agent, has not told it."""
        target = self.home / ".gitconfig"
        told = {key: value for key, value in (("name", name), ("email", email)) if value and value.isprintable()}
        if told and not target.exists():
            lines = [f"\t{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in told.items()]
            write_private(target, "\n".join(["[user]", *lines, ""]))
