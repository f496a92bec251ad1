"""What a command writes: one JSON value with `--json`, lines for a person without; progress only on a terminal."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from kandev.cli.plain import one_line, strip_controls


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return `value` as ASCII JSON: no control character of an agent survives in it."""
    return json.dumps(value, ensure_ascii=True, indent=indent)


class Output:
    """Where a command's words go. Results go to stdout; notes and progress to stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.interactive = not as_json and sys.stdin.isatty() and sys.stdout.isatty()
        self._progress = not as_json and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = False

    def result(self, value: Any, *lines: str) -> None:
        """Write the result: `value` with --json, else `lines` (empty ones are left out)."""
        self.clear()
        if self.as_json:
            click.echo(to_json(value, indent=2 if sys.stdout.isatty() else None))
            return
        for line in lines:
            if line:
                click.echo(strip_controls(line))

    def record(self, value: Any, *lines: str) -> None:
        """Write one of many results: a line of JSON, or lines for a person."""
        self.clear()
        if self.as_json:
            click.echo(to_json(value))
            return
        for line in lines:
            click.echo(strip_controls(line))

    def text(self, piece: str) -> None:
        """Write a piece of text that was stripped before, without a new line."""
        click.echo(piece, nl=False)

    def note(self, line: str) -> None:
        """Write a line for a person to stderr; nothing with --json."""
        self.clear()
        if not self.as_json and line:
            click.echo(strip_controls(line), err=True)

    def failure(self, payload: dict[str, Any], *lines: str) -> None:
        """Write what went wrong: {"error": payload} on stdout with --json, else lines on stderr."""
        self.clear()
        if self.as_json:
            click.echo(to_json({"error": payload}))
            return
        for line in lines:
            if line:
                click.echo(strip_controls(line), err=True)

    def progress(self, line: str) -> None:
        """Show `line` in place of the last progress; nothing where nobody watches."""
        if self._progress:
            click.echo(f"\r\x1b[K{one_line(line, 100)}", err=True, nl=False)
            self._drawn = True

    def clear(self) -> None:
        """Remove the progress line."""
        if self._drawn:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._drawn = False

    def table(self, value: Any, columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
        """Write rows: `value` with --json, columns on a terminal, tabs in a pipe; `empty` where there are none."""
        rows = [[one_line(cell) for cell in row] for row in rows]
        if self.as_json or not rows:
            self.result(value, empty)
        elif sys.stdout.isatty():
            _draw(columns, rows)
        else:
            for row in (columns, *rows):
                click.echo("\t".join(row))


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        widest = max(cell_len(cell) for cell in (name, *(row[number] for row in rows)))
        # The last column holds words and is wrapped; the others are names and stay whole.
        table.add_column(name, min_width=None if number == len(columns) - 1 else widest)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)
