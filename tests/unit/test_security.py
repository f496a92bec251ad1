"""Who may use the server: Host, Origin and token."""

import os
import stat
from pathlib import Path

import pytest

from kandev.errors import Forbidden, Unauthorized
from kandev.gateway.security import Caller, Policy, caller_of, is_loopback, load_or_make_token, without_token
from kandev.home import Home

TOKEN = "a-token-of-more-than-twenty-characters"
LOCAL = Policy(token=TOKEN, host="127.0.0.1")
NAMED = Policy(token=TOKEN, host="box.example")
EVERYWHERE = Policy(token=TOKEN, host="0.0.0.0")


@pytest.mark.parametrize(
    "host", ["127.0.0.1:38430", "localhost:1", "LOCALHOST", "localhost.", "[::1]:38430", "127.0.0.2"]
)
def test_sec_1_loopback_names_are_ours(host: str) -> None:
    """Any port, because a tunnel may give another."""
    LOCAL.check_place(Caller(host=host))


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:38430", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.1.5",
     "a@localhost", "localhost/x", "localhost:x", "[::1", "localhost:38430:1", "local host", "localhost\n"],
)  # fmt: skip
def test_sec_1_every_other_host_is_refused(host: str) -> None:
    """A name that somebody points at 127.0.0.1 does not open the server (DNS rebinding)."""
    with pytest.raises(Forbidden):
        LOCAL.check_place(Caller(host=host))


def test_sec_1_a_configured_host_is_ours_and_listening_everywhere_takes_addresses() -> None:
    """The configured name; any address when it listens on all; never somebody else's name."""
    NAMED.check_place(Caller(host="box.example:38430", origin="https://box.example:38430"))
    EVERYWHERE.check_place(Caller(host="192.168.1.5:38430", origin="http://192.168.1.5:38430"))
    Policy(token=TOKEN, host="fd00::1").check_place(Caller(host="[fd00::1]:38430"))
    with pytest.raises(Forbidden):
        NAMED.check_place(Caller(host="192.168.1.5:38430"))
    with pytest.raises(Forbidden):
        EVERYWHERE.check_place(Caller(host="evil.example:38430"))


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost:3000", "http://localhost", "https://localhost:38430.evil.example",
     "file://", "ws://localhost:38430", "http://127.0.0.1:38430"],
)  # fmt: skip
def test_sec_1_another_origin_is_refused(origin: str) -> None:
    """Also another port of this machine: some other local page must not drive agents."""
    with pytest.raises(Forbidden):
        LOCAL.check_place(Caller(host="localhost:38430", origin=origin))


def test_sec_1_our_own_page_and_programs_without_an_origin_pass() -> None:
    """A browser on our page sends our origin; programs send none."""
    LOCAL.check_place(Caller(host="localhost:38430", origin="http://localhost:38430"))
    LOCAL.check_place(Caller(host="localhost:38430", origin="HTTP://LOCALHOST:38430"))
    LOCAL.check_place(Caller(host="localhost:38430"))


@pytest.mark.parametrize(
    "caller",
    [
        Caller(authorization=f"Bearer {TOKEN}"),
        Caller(authorization=f"bearer  {TOKEN}"),
        Caller(cookie=f"a=b; kandev_token={TOKEN}; c=d"),
        Caller(cookie=f'theirs={{"a":"b, c"}}; bad; kandev_token={TOKEN}'),
        Caller(query=f"x=1&token={TOKEN}"),
        Caller(authorization="Bearer old", cookie=f"kandev_token={TOKEN}"),
    ],
)
def test_the_token_travels_in_three_ways(caller: Caller) -> None:
    """Header, cookie and query; one right one is enough."""
    LOCAL.check_token(caller)


@pytest.mark.parametrize(
    "caller",
    [
        Caller(),
        Caller(authorization=TOKEN),
        Caller(authorization=f"Basic {TOKEN}"),
        Caller(authorization=f"Bearer {TOKEN}x"),
        Caller(authorization=f"Bearer {TOKEN[:-1]}"),
        Caller(authorization="Bearer \xe9\xff"),
        Caller(cookie=f"kandev_token_38431={TOKEN}"),
        Caller(cookie="kandev_token="),
        Caller(cookie=";;; =\x01"),
        Caller(query="token="),
        Caller(query="token=%ff%00"),
    ],
)
def test_anything_else_is_unauthorized(caller: Caller) -> None:
    """Near misses, other schemes, another backend's cookie and rubbish."""
    with pytest.raises(Unauthorized):
        LOCAL.check_token(caller)


def test_without_a_token_everybody_passes_and_no_token_is_accepted_as_one() -> None:
    """--no-auth; an empty token in an address is still no token."""
    open_policy = Policy(token="", host="127.0.0.1")
    open_policy.check_token(Caller())
    assert not open_policy.accepts("")


def test_two_hosts_or_origins_are_none() -> None:
    """What a proxy and we could read differently is refused."""
    headers = [(b"host", b"localhost"), (b"host", b"localhost")]
    with pytest.raises(Forbidden):
        LOCAL.check_place(caller_of(headers, b""))


def test_the_token_is_taken_out_of_an_address() -> None:
    """Everything else in the query stays."""
    assert without_token(f"a=1&token={TOKEN}&b=%26&c=") == "a=1&b=%26&c="


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.9.9.9", True),
     ("0.0.0.0", False), ("::", False), ("box", False), ("10.0.0.1", False)],
)  # fmt: skip
def test_loopback_is_told_from_the_rest(host: str, loopback: bool) -> None:  # noqa: FBT001 - a column of the table
    """What reaches nobody else."""
    assert is_loopback(host) is loopback


def test_the_token_is_made_once_and_private(tmp_path: Path) -> None:
    """The second start reads what the first one made; only its owner can."""
    home = Home(tmp_path)
    token = load_or_make_token(home)
    assert len(token) >= 40
    assert stat.S_IMODE(os.stat(home.token).st_mode) == 0o600
    assert load_or_make_token(home) == token
    assert os.listdir(tmp_path) == ["token"]


def test_a_token_file_that_others_can_read_is_made_private(tmp_path: Path) -> None:
    """A token copied with loose rights is closed again and still used."""
    home = Home(tmp_path)
    home.token.write_text(TOKEN + "\n")
    home.token.chmod(0o644)
    assert load_or_make_token(home) == TOKEN
    assert stat.S_IMODE(os.stat(home.token).st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"\xff" * 40, b"two words that are long enough"])
def test_an_empty_or_broken_token_file_is_made_anew(tmp_path: Path, content: bytes) -> None:
    """A file cut off by a loss of power does not leave the server open or shut."""
    home = Home(tmp_path)
    home.token.write_bytes(content)
    token = load_or_make_token(home)
    assert len(token) >= 40
    assert home.token.read_text().strip() == token
