"""Who may use the server: token, Host and Origin, checked before anything else sees a request (SEC-1).

A page on another origin can make a browser send requests here; Origin stops it. A name that an attacker points at
127.0.0.1 makes his page the same origin; Host stops that. The token stops everybody else. Neither tokens nor query
strings are logged (SEC-3).
"""

import contextlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

import msgspec

from kandev.errors import Forbidden, Unauthorized
from kandev.home import Home

_HOST = re.compile(r"^(?P<name>\[[0-9a-fA-F:.]+\]|[^\[\]:/@?#\s]+)(?::[0-9]{1,5})?\Z")
_TOKEN = re.compile(r"^[0-9A-Za-z_-]{20,200}\Z")


def load_or_make_token(home: Home) -> str:
    """Return the token of the home; made at the first start, readable by its owner only."""
    with contextlib.suppress(FileNotFoundError):
        if os.stat(home.token).st_mode & 0o077:
            os.chmod(home.token, 0o600)
        token = home.token.read_text("ascii", "replace").strip()
        if _TOKEN.match(token):
            return token
    token = secrets.token_urlsafe(32)
    draft = home.path / f"token.{secrets.token_hex(4)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, token.encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(draft, home.token)
    return token


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's own and reaches nobody else."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says about who sends it. A header that is not there is ''."""

    host: str = ""
    origin: str = ""
    authorization: str = ""
    cookie: str = ""
    query: str = ""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one server. `token` is '' for --no-auth; `host` is what it listens on."""

    token: str
    host: str
    cookie_name: str = "kandev_token"

    def check_place(self, caller: Caller) -> None:
        """Raise Forbidden unless Host is ours and Origin, if any, is the very page that Host names."""
        match = _HOST.match(caller.host)
        if match is None or not self._is_ours(match["name"].rstrip(".").lower()):
            raise Forbidden("This server does not answer under this host name.", reason="host")
        host = caller.host.lower()
        if caller.origin and caller.origin.lower() not in {f"http://{host}", f"https://{host}"}:
            raise Forbidden("This server does not answer pages of another origin.", reason="origin")

    def check_token(self, caller: Caller) -> None:
        """Raise Unauthorized unless one of header, cookie and query carries the token."""
        if not self.token:
            return
        given = (_bearer(caller.authorization), self._from_cookie(caller.cookie), token_in_query(caller.query))
        if not any(self.accepts(token) for token in given):
            raise Unauthorized(
                "A token is needed. `kandev open` brings it along; programs find it in the file `token` of the home."
            )

    def accepts(self, token: str) -> bool:
        """Return whether this is the token; the time it takes tells nothing of it."""
        return bool(self.token) and hmac.compare_digest(self.token.encode(), token.encode())

    def cookie(self) -> str:
        """Return the Set-Cookie header that replaces a token in an address."""
        return f"{self.cookie_name}={self.token}; Path=/; HttpOnly; SameSite=Strict; Max-Age=31536000"

    def _from_cookie(self, header: str) -> str:
        # By hand: one cookie of another program on this host that breaks the rules must not hide ours.
        pairs = (part.strip().partition("=") for part in header.split(";"))
        return next((value for name, _, value in pairs if name == self.cookie_name), "")

    def _is_ours(self, name: str) -> bool:
        if is_loopback(name) or name.strip("[]") == self.host.strip("[]").lower():
            return True
        # Listening everywhere: an address in Host cannot be an attacker's name, and our own name is ours.
        everywhere = self.host in {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
        return everywhere and (_is_address(name) or name == socket.gethostname().lower())


def _bearer(header: str) -> str:
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def token_in_query(query: str) -> str:
    """Return the token in a query string, or ''."""
    return next((value for name, value in parse_qsl(query) if name == "token"), "")


def without_token(query: str) -> str:
    """Return the query string without the token."""
    return urlencode([(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != "token"])


def caller_of(headers: list[tuple[bytes, bytes]], query: bytes) -> Caller:
    """Return the caller as an ASGI scope shows it. Two Host or Origin headers are none."""
    found: dict[bytes, str] = {}
    repeated: set[bytes] = set()
    for name, value in headers:
        if name in found:
            repeated.add(name)
        found[name] = value.decode("latin-1")
    if repeated & {b"host", b"origin"}:
        return Caller()
    return Caller(
        host=found.get(b"host", ""),
        origin=found.get(b"origin", ""),
        authorization=found.get(b"authorization", ""),
        cookie=found.get(b"cookie", ""),
        query=query.decode("latin-1"),
    )


PAGE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Sent with every answer (SEC-4)."""
