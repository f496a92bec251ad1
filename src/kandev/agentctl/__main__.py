"""agentctl as a program: `python3 -I agentctl.pyz --instance-id ID --dir DIR --listen tcp:HOST:PORT ...`."""

import argparse
import contextlib
import os
import socket
import sys
from collections.abc import Sequence

from kandev.agentctl import API_VERSION
from kandev.agentctl.fork_server import redirect_output
from kandev.agentctl.identity import remove_earlier
from kandev.agentctl.server import run
from kandev.agentctl.sidecar import CAP_BYTES, WRITE_TIMEOUT_S, Options

__all__ = ["main"]

_BACKLOG = 64


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one agentctl in this process until it ends."""
    parser = _parser()
    given = parser.parse_args(arguments)
    os.makedirs(given.dir, mode=0o700, exist_ok=True)
    token = ""
    if given.token_file:
        with open(given.token_file, encoding="utf-8") as file:
            token = file.read().strip()
    if any(address.startswith("tcp:") for address in given.listen) and not token:
        parser.error("a TCP address needs --token-file with a token in it")
    try:
        listeners = [_listen(address) for address in given.listen]
    except (OSError, ValueError) as error:
        parser.error(f"cannot listen on {', '.join(given.listen)}: {error}")
    options = Options(
        instance_id=given.instance_id,
        directory=os.path.abspath(given.dir),
        token=token,
        lifeline=given.lifeline,
        cap_bytes=given.cap,
        write_timeout_s=given.write_timeout,
        idle_s=given.idle,
        awake=given.awake,
    )
    if given.log:
        redirect_output(options.directory)
    if given.earlier >= 0:
        remove_earlier(options.directory, given.earlier)
    run(options, listeners)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentctl",
        description="Keeps one agent's stdio in a journal. @FILE stands for the arguments in FILE, one on each line.",
        fromfile_prefix_chars="@",
    )
    parser.add_argument("--version", action="version", version=f"agentctl, interface {API_VERSION}")
    parser.add_argument("--instance-id", required=True)
    parser.add_argument("--dir", required=True, help="where the journal and the identity file live")
    parser.add_argument(
        "--listen",
        required=True,
        action="append",
        help="unix:PATH, tcp:HOST:PORT, or fd:N of a listening socket; may be given again",
    )
    parser.add_argument("--token-file", default="", help="the bearer token that every request must carry")
    parser.add_argument("--lifeline", type=int, default=-1, help="descriptor that ends when the backend does")
    parser.add_argument("--cap", type=int, default=CAP_BYTES, help="bytes not acknowledged at which reading stops")
    parser.add_argument("--write-timeout", type=float, default=WRITE_TIMEOUT_S, help="seconds a line may take")
    parser.add_argument("--idle", type=float, default=0, help="seconds without a request or output, then it ends")
    parser.add_argument("--awake", default="", help="socket of a sandbox's service, told while something goes on")
    parser.add_argument("--earlier", type=int, default=-1, help="directories of earlier instances beside DIR to keep")
    parser.add_argument("--log", action="store_true", help="write to DIR/agentctl.log instead of stderr")
    return parser


def _listen(address: str) -> socket.socket:
    kind, _, rest = address.partition(":")
    if kind == "fd":
        listener = socket.socket(fileno=int(rest))
        listener.set_inheritable(False)
        return listener
    if kind == "unix":
        return _listen_at_path(rest)
    if kind == "tcp":
        host, _, port = rest.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # The protocol is named: asyncio sets TCP_NODELAY only then, and answers would wait 40 ms without it.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), int(port)))
    else:
        raise ValueError("no such kind of address")
    listener.listen(_BACKLOG)
    return listener


def _listen_at_path(path: str) -> socket.socket:
    """Listen before the path is there: where nobody answers at a socket's path, its agentctl is dead."""
    unnamed = f"{path}~"
    for left in (unnamed, path):  # of an agentctl that was killed; one that lives holds the directory
        with contextlib.suppress(FileNotFoundError):
            os.unlink(left)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(unnamed)
    os.chmod(unnamed, 0o600)
    listener.listen(_BACKLOG)
    os.rename(unnamed, path)
    return listener


if __name__ == "__main__":
    main(sys.argv[1:])
