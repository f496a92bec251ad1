"""The home directory: what is where in it, and whose it is (contract, "Files and environment")."""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kandev.errors import Invalid

_PRIVATE = 0o700


class Home(msgspec.Struct, frozen=True):
    """Names of files and directories under one home. Making a `Home` touches nothing; `prepare` does.

    A home that another program made is left alone: only the names below are ever written.
    """

    path: Path

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.path / "kandev.db"

    @property
    def sessions(self) -> Path:
        """History files, {session_id}.jsonl."""
        return self.path / "sessions"

    @property
    def worktrees(self) -> Path:
        """One directory per session."""
        return self.path / "worktrees"

    @property
    def run(self) -> Path:
        """Sockets and journals of agentctl."""
        return self.path / "run"

    @property
    def logs(self) -> Path:
        """Logs of the backend and of agents."""
        return self.path / "logs"

    @property
    def backups(self) -> Path:
        """Copies of the database from before a migration."""
        return self.path / "backups"

    @property
    def config_file(self) -> Path:
        """The configuration; it need not exist."""
        return self.path / "config.toml"

    @property
    def lock(self) -> Path:
        """Held by the one backend of this home."""
        return self.path / "lock"

    @property
    def token(self) -> Path:
        """The token of the API, 0600."""
        return self.path / "token"

    @property
    def server_file(self) -> Path:
        """While a backend runs: {pid, url, boot_id, started_at}, 0600."""
        return self.path / "server.json"

    @property
    def id_file(self) -> Path:
        """The random half of the home's id."""
        return self.path / "home_id"

    def prepare(self) -> None:
        """Make the home and its directories, 0700. Raises `Invalid` when it cannot be written.

        Directories that are there already become private too, unless another program uses this home; then only
        `run`, which holds sockets, is changed.
        """
        own = (self.sessions, self.worktrees, self.run, self.logs, self.backups)
        try:
            self.path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            shared = (self.path / "data").is_dir()
            for directory in own:
                directory.mkdir(mode=_PRIVATE, exist_ok=True)
            for directory in (self.run,) if shared else (self.path, *own):
                _make_private(directory)
        except OSError as error:
            raise self._not_usable(error.strerror or str(error)) from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise self._not_usable("it cannot be written")

    def identity(self) -> str:
        """The home's id, 20 hexadecimal digits: labels containers, and tells this home from a copy of it (CRASH-18).

        Made of a stored random number and the real path, so a home copied beside the old one has another id.
        """
        stored = self._stored_number()
        return hashlib.sha256(f"{stored}\0{os.path.realpath(self.path)}".encode()).hexdigest()[:20]

    def _stored_number(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            if stored := self.id_file.read_text("ascii").strip():
                return stored
            self.id_file.unlink()  # empty after a loss of power
        draft = self.path / f"home_id.{secrets.token_hex(4)}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, secrets.token_hex(16).encode() + b"\n")
            os.fsync(descriptor)
            with contextlib.suppress(FileExistsError):  # another process was first: its number counts
                os.link(draft, self.id_file)
        finally:
            os.close(descriptor)
            draft.unlink()
        return self.id_file.read_text("ascii").strip()

    def _not_usable(self, why: str) -> Invalid:
        return Invalid(
            f"The home {self.path} cannot be used: {why}. Set KANDEV_HOME to a directory of your own.",
            field="KANDEV_HOME",
        )


def home_from(environ: Mapping[str, str], given: str | None = None) -> Home:
    """The home that a flag names, else KANDEV_HOME, else ~/.kandev; absolute, and nothing is made."""
    named = given or environ.get("KANDEV_HOME") or "~/.kandev"
    if named == "~" or named.startswith("~/"):
        named = environ.get("HOME", os.path.expanduser("~")) + named[1:]
    return Home(Path(os.path.abspath(named)))


def _make_private(directory: Path) -> None:
    if directory.stat().st_mode & 0o077:
        directory.chmod(_PRIVATE)
