"""Where the backend is, and what opens it: `--url`, `KANDEV_URL`, or `server.json` and `token` in the home."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class NoBackend(Exception):
    """Raised when no backend answers; the text says how to start one."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """A backend's base URL without a slash at its end, and its token ('' for `--no-auth`)."""

    url: str
    token: str

    @property
    def websocket(self) -> str:
        """The address of the WebSocket."""
        return "ws" + self.url.removeprefix("http") + "/ws"


def home_directory() -> Path:
    """Return the home that the environment names; nothing is created."""
    return Path(os.environ.get("KANDEV_HOME") or "~/.kandev").expanduser()


def read_server_file(home: Path) -> dict[str, object] | None:
    """Return what `server.json` says, or None where there is none that can be read."""
    try:
        value = json.loads((home / "server.json").read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def read_token(home: Path) -> str:
    """Return the token of the home, or '' where there is none."""
    try:
        return (home / "token").read_text().strip()
    except OSError:
        return ""


def process_lives(pid: object) -> bool:
    """Return whether a process with this number exists and is no zombie."""
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[:1] != [b"Z"]


def find_backend(url: str | None) -> Address:
    """Return the address of the backend; raises NoBackend.

    The token of the home goes to the backend of that home and to loopback, never to another host: there it must be in
    the URL (`?token=`) or in `KANDEV_TOKEN`.
    """
    home = home_directory()
    given = os.environ.get("KANDEV_TOKEN", "")
    if url:
        return _from_url(url, token=given, home=home)
    server = read_server_file(home)
    if server is None or not isinstance(server.get("url"), str):
        raise NoBackend(f"No backend runs for {home}. Start one with: kandev serve")
    if not process_lives(server.get("pid")):
        raise NoBackend(
            f"The backend of {home} (process {server.get('pid')}) has ended without a goodbye. "
            "Nothing that was saved is lost. Start it again with: kandev serve"
        )
    return Address(url=str(server["url"]).rstrip("/"), token=given or read_token(home))


def _from_url(url: str, *, token: str, home: Path) -> Address:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if scheme not in {"http", "https"} or not parts.hostname:
        raise NoBackend(f"{url!r} is no address of a backend. Write it as http://HOST:PORT.")
    in_url = "".join(parse_qs(parts.query).get("token", []))
    path = parts.path.removesuffix("/ws").rstrip("/")
    token = in_url or token or (read_token(home) if parts.hostname in _LOOPBACK else "")
    return Address(url=urlunsplit((scheme, parts.netloc, path, "", "")), token=token)
