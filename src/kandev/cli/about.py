"""Commands about what there is: agents, runtimes, config, version."""

import functools
import os
from typing import Any

import click

from kandev.cli.check import check
from kandev.cli.output import Output
from kandev.cli.run import Connected, backend_command, exit_codes, json_option


@click.option("--versions", is_flag=True, help="Ask each program for its version, which takes seconds.")
@backend_command
async def _list_agents(context: Connected, *, versions: bool) -> None:
    answer = await context.client.call("agent.list", installed_versions=versions)
    rows = [_agent_row(agent) for agent in answer["agents"]]
    heads = ("AGENT", "READY", "VERSION", "LOGIN", "AFTER A RESTART", "WHERE, AND WHAT IT NEEDS")
    context.out.table(answer, heads, rows, empty="No agents.")


@click.group(invoke_without_command=True)
@functools.wraps(_list_agents, assigned=())  # its options are those of the list
def agents(**options: Any) -> None:
    """List the agents, or try one."""
    if click.get_current_context().invoked_subcommand is None:
        _list_agents(**options)


agents.add_command(check)


def _agent_row(agent: dict[str, Any]) -> tuple[str, ...]:
    where = (agent["problem"] or agent["path"], f"speaks {agent['protocol']}", _sessions(agent), agent["warning"])
    return (
        str(agent["name"]),
        "no" if agent["problem"] else "yes",
        str(agent.get("installed_version") or agent["version"] or "-"),
        _login(agent["login"]),
        str(agent["resumes"]),
        "; ".join(str(words).rstrip(".") for words in where if words),
    )


def _sessions(agent: dict[str, Any]) -> str:
    return f"sessions in {agent['session_directory']}" if agent["session_directory"] else ""


def _login(login: dict[str, Any]) -> str:
    """Return what is known of a login. A key or a file that is there may have expired, so it is only told."""
    if login["state"] == "needed":
        return f"needed: {login['command'] or login['said']}"
    if login["state"] == "worked":
        return "works"
    return f"not tried: {login['credentials'][0]}" if login["credentials"] else "not known"


@click.command()
@backend_command
async def runtimes(context: Connected) -> None:
    """List where agents can run, and what survives there."""
    answer = await context.client.call("runtime.list")
    rows = [_runtime_row(one) for one in answer["runtimes"]]
    heads = ("RUNTIME", "READY", "AGENTS", "WHEN THE BACKEND IS RESTARTED", "WHEN THE HOST IS RESTARTED")
    context.out.table(answer, heads, rows, empty="No runtimes.")


def _runtime_row(runtime: dict[str, Any]) -> tuple[str, ...]:
    agents = [f"{one['session_id'][:8]}{' in a turn' if one['in_turn'] else ''}" for one in runtime["agents"]]
    return (
        f"{runtime['name']}{' (default)' if runtime['default'] else ''}",
        str(runtime["problem"] or "yes"),
        ", ".join(agents) or "none",
        str(runtime["on_backend_restart"]),
        str(runtime["on_host_restart"]),
    )


@click.command()
@json_option
def config(*, as_json: bool) -> None:
    """Show every setting with its value and where it came from. No backend is needed."""
    from kandev.config import explain, load_config

    out = Output(as_json=as_json)
    with exit_codes(out):
        settings = explain(load_config(os.environ))
        value = {one.key: {"value": one.value, "source": one.source} for one in settings}
        rows = [(one.key, str(one.value), one.source) for one in settings]
        out.table(value, ("SETTING", "VALUE", "SOURCE"), rows, empty="")


@click.command()
@json_option
def version(*, as_json: bool) -> None:
    """Write the version."""
    import platform

    from kandev import __version__

    value = {"version": __version__, "python": platform.python_version()}
    Output(as_json=as_json).result(value, f"kandev {__version__}")
