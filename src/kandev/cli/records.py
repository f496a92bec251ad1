"""Commands that read what was recorded: history, export, logs."""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from kandev.cli.address import Address, NoBackend
from kandev.cli.options import id_argument
from kandev.cli.run import Connected, backend_command
from kandev.cli.transcript import message_text
from kandev.cli.words import stages_line
from kandev.errors import Internal, NotFound

if TYPE_CHECKING:
    from http.client import HTTPResponse

_PAGE = 200
_PIECE = 64 * 1024


@click.command()
@id_argument
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the last N messages.")
@backend_command
async def history(context: Connected, *, prefix: str, limit: int | None) -> None:
    """Write the transcript of a session. No agent is needed for it."""
    names = await context.names(prefix)
    got = await context.client.call("task.session.get", session_id=names.session_id)
    agent = str(got["session"]["agent"])
    messages = await _messages(context, names.session_id, limit)
    lines = [message_text(message, agent) for message in messages]
    context.out.result({**names.both, "messages": messages}, *(lines or ["Nothing was said yet."]))


async def _messages(context: Connected, session_id: str, limit: int | None) -> list[dict[str, Any]]:
    """Return the last `limit` messages (None: all), ascending, read from the newest page back."""
    pages: list[list[dict[str, Any]]] = []
    before: int | None = None
    left = limit if limit is not None else sys.maxsize
    while left > 0:
        page = await context.client.call("message.list", session_id=session_id, before=before, limit=min(left, _PAGE))
        if not page["messages"]:
            break
        pages.append(page["messages"])
        left -= len(page["messages"])
        before = page["messages"][0]["seq"]
        if not page["has_more"]:
            break
    return [message for page in reversed(pages) for message in page]


@click.command()
@id_argument
@click.option("--output", "-o", type=click.Path(dir_okay=False, writable=True), help="A file instead of stdout.")
@backend_command
async def export(context: Connected, *, prefix: str, output: str | None) -> None:
    """Write everything that is stored of a session as JSON lines."""
    names = await context.names(prefix)
    with _get(context.locate(), f"/api/sessions/{names.session_id}/export") as response:
        if output is None:
            _copy(response, sys.stdout.buffer)
            return
        with open(output, "wb") as file:  # noqa: ASYNC230 - this program does nothing else meanwhile
            _copy(response, file)
    context.out.note(f"Written to {output}.")


@contextmanager
def _get(address: Address, path: str) -> "Iterator[HTTPResponse]":
    import http.client

    parts = urlsplit(address.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=60)
    headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
    with closing(connection):
        try:
            connection.request("GET", parts.path + path, headers=headers)
            response = connection.getresponse()
        except OSError:
            raise NoBackend(f"No backend answers at {address.url}. Start it with: kandev serve") from None
        if response.status == 404:
            raise NotFound("No such session.")
        if response.status != 200:
            raise Internal(f"The backend answered with HTTP {response.status}.")
        yield response


def _copy(response: "HTTPResponse", target: Any) -> None:
    while piece := response.read(_PIECE):
        target.write(piece)
    target.flush()


@click.command()
@id_argument
@click.option("--limit", type=click.IntRange(min=1), metavar="BYTES", help="How much of the end of stderr.")
@backend_command
async def logs(context: Connected, *, prefix: str, limit: int | None) -> None:
    """Show an agent's stderr and the stages of its resumes."""
    names = await context.names(prefix)
    answer = await context.client.call("session.logs", session_id=names.session_id, limit=limit)
    stderr = str(answer.get("stderr") or "").rstrip("\n")
    stages = [
        f"{one['started_at']} {(one['error'] and 'failed') or one['how']}: {stages_line(one['stages'])}"
        for one in reversed(answer["stages"])
    ]
    context.out.result(answer, *stages, stderr or "Nothing from stderr is kept.")
