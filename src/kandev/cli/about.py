"""Commands about what there is: agents, runtimes, config, version."""

import os
from typing import Any

import click

from kandev.cli.output import Output
from kandev.cli.run import FAILED, Connected, backend_command, exit_codes, json_option

_FLAGS = {
    "native_session_resume": "restores its memory",
    "history_context_injection": "gets a summary",
}


@click.command()
@click.argument("words", nargs=-1, metavar="[check NAME]")
@backend_command
async def agents(context: Connected, *, words: tuple[str, ...]) -> int:
    """List the agents, or check one.

    `kandev agents check NAME` tells whether it can be started here, and what is missing.
    """
    if not words:
        answer = await context.client.call("agent.list")
        rows = [_agent_row(agent) for agent in answer["agents"]]
        context.out.table(answer, ("AGENT", "READY", "AFTER A RESTART", "PROGRAM"), rows, empty="No agents.")
        return 0
    if len(words) != 2 or words[0] != "check":
        raise click.UsageError("Write `kandev agents` or `kandev agents check NAME`.")
    answer = await context.client.call("agent.check", name=words[1])
    problem = str(answer["problem"])
    login = answer["login_hint"]
    lines = [f"{words[1]}: {problem or 'can be started'}", f"Log in with: {login}" if login else ""]
    context.out.result(answer, *lines)
    return FAILED if problem else 0


def _agent_row(agent: dict[str, Any]) -> tuple[str, ...]:
    after = [words for flag, words in _FLAGS.items() if agent[flag]]
    return (
        str(agent["name"]),
        "no" if agent["problem"] else "yes",
        ", ".join(after) or ("resumes by its command line" if agent["resume_flag"] else "starts new"),
        str(agent["problem"] or agent["path"]),
    )


@click.command()
@backend_command
async def runtimes(context: Connected) -> None:
    """List where agents can run, and what survives there."""
    answer = await context.client.call("runtime.list")
    rows = [(str(one["name"]), ", ".join(map(str, one["survives"])) or "nothing") for one in answer["runtimes"]]
    context.out.table(answer, ("RUNTIME", "ITS AGENTS SURVIVE"), rows, empty="No runtimes.")


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
