"""`kandev doctor`: look at what a backend needs and at what an earlier one left behind."""

import click

from kandev.cli.run import json_option


@click.command()
@click.option("--fix", is_flag=True, help="Mend what can be mended safely.")
@json_option
def doctor(*, fix: bool, as_json: bool) -> None:
    """Check the home, the database, git, the agents and leftovers; every finding says how to mend it."""
