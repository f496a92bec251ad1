"""How a command runs: its common options, its connection, and its exit code.

Exit codes: 0 good, 1 failed or interrupted, 2 usage, 3 timed out, 4 not found, 5 conflict, refused or waiting for a
permission, 6 no backend, 130 cancelled.
"""

import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from kandev.cli.address import Address, NoBackend, find_backend
from kandev.cli.output import Output
from kandev.cli.words import next_step
from kandev.errors import KandevError, NotFound

if TYPE_CHECKING:
    from kandev.cli.client import Client
    from kandev.cli.follow import Follower

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

FAILED, USAGE, TIMED_OUT, NOT_FOUND, REFUSED, NO_BACKEND, CANCELLED = 1, 2, 3, 4, 5, 6, 130
_CODES = {
    "BAD_REQUEST": USAGE,
    "VALIDATION_ERROR": USAGE,
    "NOT_FOUND": NOT_FOUND,
    "CONFLICT": REFUSED,
    "UNAUTHORIZED": REFUSED,
    "FORBIDDEN": REFUSED,
    "TIMEOUT": TIMED_OUT,
}


@dataclass(frozen=True, kw_only=True)
class Names:
    """The ids that a prefix stands for, and how the person wrote it."""

    task_id: str
    session_id: str
    typed: str

    @property
    def both(self) -> dict[str, str]:
        """The two fields that most requests carry."""
        return {"task_id": self.task_id, "session_id": self.session_id}


@dataclass(frozen=True, kw_only=True)
class Connected:
    """What a command that talks to the backend gets."""

    out: Output
    client: "Client"
    locate: Callable[[], Address]

    def follower(self, names: Names) -> "Follower":
        """Return a follower of the session, on the connection that is open."""
        from kandev.cli.follow import Follower

        return Follower(self.client, self.locate, names.session_id)

    async def names(self, prefix: str) -> Names:
        """Resolve a session's or a task's id, or its beginning; raises NotFound, or Conflict with the candidates."""
        names = await self.task_names(prefix)
        if not names.session_id:
            raise NotFound(f"Task {names.task_id} has no session any more.")
        return names

    async def task_names(self, prefix: str) -> Names:
        """Resolve likewise for what needs only the task; `session_id` is '' where it has no session."""
        found = await self.client.call("id.resolve", id=prefix)
        return Names(task_id=str(found["task_id"]), session_id=str(found.get("session_id") or ""), typed=prefix)


def json_option(function: F) -> F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Write one JSON value for scripts.")(function)


@contextmanager
def exit_codes(out: Output, typed: str = "") -> Iterator[None]:
    """Turn what a command raises into words and an exit code; `typed` is the id that the person gave."""
    try:
        yield
    except NoBackend as error:
        out.failure({"code": "NO_BACKEND", "message": str(error), "details": {}}, str(error))
        raise SystemExit(NO_BACKEND) from None
    except KandevError as error:
        out.failure(dict(error.payload()), error.message, next_step(error, typed))
        raise SystemExit(_CODES.get(error.code, FAILED)) from None
    except (KeyboardInterrupt, click.Abort):
        words = "Stopped here. What the backend has begun goes on."
        out.failure({"code": "CANCELLED", "message": words, "details": {}}, words)
        raise SystemExit(CANCELLED) from None


def backend_command(
    function: Callable[Concatenate[Connected, P], Awaitable[int | None]],
) -> Callable[P, None]:
    """Make a command of `function`: options --json and --url, an open connection, and exit codes.

    The function's own exit code is what it returns (None is 0).
    """

    @functools.wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        url = kwargs.pop("url")
        out = Output(as_json=bool(kwargs.pop("as_json")))
        with exit_codes(out, str(kwargs.get("prefix") or "")):
            code = _run(function, out, lambda: find_backend(str(url) if url else None), *args, **kwargs)
        if code:
            raise SystemExit(code)

    return json_option(
        click.option("--url", envvar="KANDEV_URL", metavar="URL", help="The backend, if not the one of KANDEV_HOME.")(
            command
        )
    )


def _run(
    function: Callable[Concatenate[Connected, P], Awaitable[int | None]],
    out: Output,
    locate: Callable[[], Address],
    *args: P.args,
    **kwargs: P.kwargs,
) -> int:
    import asyncio

    address = locate()  # before the imports below: a missing backend is told at once

    async def connected() -> int:
        from kandev.cli.client import Client, ConnectionLost

        async with await Client.open(address) as client:
            try:
                return await function(Connected(out=out, client=client, locate=locate), *args, **kwargs) or 0
            except ConnectionLost:
                raise NoBackend(
                    "The connection to the backend was lost; whether it took the request is not known. "
                    "Look with: kandev ls"
                ) from None

    return asyncio.run(connected())
