"""The command `kandev`. Modules of the backend are imported by the command that needs them: --help takes 50 ms."""

import sys

import click

from kandev.cli.about import agents, config, runtimes, version
from kandev.cli.attach import attach
from kandev.cli.doctor import doctor
from kandev.cli.fork import fork
from kandev.cli.records import export, history, logs
from kandev.cli.serve import demo, demo_agent, open_page, serve
from kandev.cli.sessions import answer, cancel, queue, recover, resume, send, send_again, status, stop
from kandev.cli.tasks import complete, ls, new, rm, search, show

_SECTIONS = {
    "The backend": (serve, open_page, demo, doctor, config, version),
    "Tasks": (new, ls, show, complete, rm, search),
    "Sessions": (attach, send, send_again, status, resume, recover, fork, answer, queue, cancel, stop),
    "Records": (history, export, logs),
    "Agents": (agents, runtimes, demo_agent),
}


class _Commands(click.Group):
    """A group whose help lists the commands by what they are about."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(str(one.name), one.get_short_help_str(90)) for one in commands])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Coding agents in sessions that come back after a crash, with their memory.

    ID is a session's or a task's (then its newest session), and may be shortened while it is not ambiguous. Every
    command takes --json. Exit codes: 0 good, 1 failed or interrupted, 2 usage, 3 timed out, 4 not found, 5 conflict,
    refused or waiting for a permission, 6 no backend, 130 cancelled.
    """


for _commands in _SECTIONS.values():
    for _command in _commands:
        cli.add_command(_command)


def main() -> None:
    """Run the command line; ends the process."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a TextIOWrapper in a program
    cli(prog_name="kandev")


if __name__ == "__main__":
    main()
