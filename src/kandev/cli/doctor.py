"""`kandev doctor`: look at what a backend needs and at what an earlier one left behind."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from kandev.cli.output import Output
from kandev.cli.run import FAILED, exit_codes, json_option

if TYPE_CHECKING:
    from kandev.cli.finding import Finding


@click.command()
@click.option("--fix", is_flag=True, help="Mend what can be mended safely.")
@json_option
def doctor(*, fix: bool, as_json: bool) -> None:
    """Check the home, the database, git, the agents, leftovers and containers.

    Every finding says how to mend it. Works with and without a running backend. Exit code 1 when something keeps
    kandev from working.
    """
    from kandev.cli.finding import any_problem

    out = Output(as_json=as_json)
    with exit_codes(out):
        findings = [one.mended() if fix else one for one in _examine()]
        lines = [line for one in findings for line in one.lines()]
        problem = any_problem(findings)
        out.result({"findings": [one.as_json() for one in findings], "healthy": not problem}, *lines)
    if problem:
        raise SystemExit(FAILED)


def _examine() -> "Iterator[Finding]":
    from kandev.cli.doctor_agents import check_agents
    from kandev.cli.doctor_containers import check_containers
    from kandev.cli.doctor_home import backend_pid, check_backend, check_home, check_machine
    from kandev.cli.doctor_mending import Alone, Connected
    from kandev.cli.doctor_state import check_state
    from kandev.cli.finding import Finding
    from kandev.config import load_config
    from kandev.errors import Invalid
    from kandev.home import home_from

    yield from check_machine()
    home = home_from(os.environ)
    yield from check_home(home)
    try:
        config = load_config(os.environ)
    except Invalid as error:
        yield Finding(check="config", level="problem", text=error.message, mend="Mend the line that is named.")
        config = None
    if config is not None:
        yield from check_backend(home, config)
        yield from check_agents(config, home)
    backend_runs = backend_pid(home) != 0
    mending = Connected() if backend_runs else Alone(home, config)
    yield from check_state(home, mending, backend_runs=backend_runs)
    if config is not None:
        yield from check_containers(home, config)
