"""Options and arguments that several commands share."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def id_argument(function: F) -> F:
    """Add ID: a session's or a task's (then its newest session), or the beginning of one."""
    return click.argument("prefix", metavar="ID")(function)


def wait_options(function: F) -> F:
    """Add --wait, --timeout and --permissions."""
    for option in (
        click.option(
            "--permissions",
            type=click.Choice(["ask", "deny", "allow-once"]),
            default=None,
            help="With --wait: what to answer when the agent asks. Default: ask on a terminal, else deny.",
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            metavar="S",
            help="With --wait: give up waiting after so many seconds (exit code 3); the work goes on.",
        ),
        click.option("--wait", is_flag=True, help="Wait until it is done."),
    ):
        function = option(function)
    return function


def text_or_stdin(text: str) -> str:
    """Return `text`, or what stands on stdin for `-`; an empty one is a usage error."""
    if text == "-":
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError:
            raise click.UsageError("What comes from stdin is not UTF-8.") from None
    if not text.strip():
        raise click.UsageError("The text is empty.")
    return text
