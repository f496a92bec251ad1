"""Whom a session's container runs as, where that is not whoever runs the backend."""

import os
from pathlib import Path
from typing import Final

import msgspec

from kandev.config import DockerConfig
from kandev.errors import Conflict
from kandev.worktrees.workspace import find_repository

__all__ = ["ContainerUser", "user_of"]

_WRITE_AND_ENTER: Final = 0o3


class ContainerUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user by numbers: those of a container's image mean nothing here, so a name does not do."""

    uid: int
    gid: int

    @property
    def is_another(self) -> bool:
        """True for one that can do less than whoever runs the backend, so that directories must be given to it."""
        return self.uid not in {0, os.geteuid()}

    def require_place(self, cwd: str) -> None:
        """Raise Conflict where this user could not work in a session's directory.

        One without a repository is ours, and is given away by `take_over`. A repository is its owner's.
        """
        if not self.is_another:
            return
        if os.geteuid() != 0:
            raise _unfit(f"Containers run as {self.uid} only where root runs the backend: leave `user` out.")
        repository = find_repository(cwd) if cwd and os.path.exists(os.path.join(cwd, ".git")) else None
        for place in (cwd, repository.common / "objects") if repository else ():
            if not self._may_write(Path(place)):
                raise _unfit(f"Containers run as {self.uid}:{self.gid}, who may not write to {place}.")

    def take_over(self, directory: Path) -> None:
        """Become the owner of a directory with everything in it, where that needs to be."""
        if not self.is_another:
            return
        for parent, _, names in os.walk(directory):
            for path in (parent, *(os.path.join(parent, name) for name in names)):
                os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def owns(self, path: str) -> bool:
        """Tell whether a directory is this user's."""
        return os.stat(path).st_uid == self.uid

    def _may_write(self, place: Path) -> bool:
        found = place.stat()
        shift = 6 if found.st_uid == self.uid else 3 if found.st_gid == self.gid else 0
        return found.st_mode >> shift & _WRITE_AND_ENTER == _WRITE_AND_ENTER


def user_of(config: DockerConfig) -> ContainerUser:
    """Return whom containers run as: by default whoever runs the backend, so that files have the right owner.

    Raises Conflict for a user that is told by name.
    """
    if not config.user:
        return ContainerUser(uid=os.geteuid(), gid=os.getegid())
    uid, _, gid = config.user.partition(":")
    if not uid.isdecimal() or (gid and not gid.isdecimal()):
        raise _unfit(f"The user {config.user!r} is a name: set its numbers, user = UID:GID, in [runtimes.docker].")
    return ContainerUser(uid=int(uid), gid=int(gid or uid))


def _unfit(text: str) -> Conflict:
    return Conflict(text, reason="runtime_not_configured")
