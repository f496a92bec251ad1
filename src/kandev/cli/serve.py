"""Commands around the backend itself: serve, open, demo, demo-agent."""

import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import click

from kandev.cli.address import home_directory, read_server_file, read_token
from kandev.cli.output import Output, to_json
from kandev.cli.run import Connected, backend_command, exit_codes, json_option

_ANNOUNCE_S = 0.02  # between two looks for server.json, which the backend writes once its port answers


@click.command()
@click.option("--host", metavar="HOST", help="Default: 127.0.0.1. Anything else is reachable from other machines.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT", help="Default: 38430; 0 takes any free port.")
@click.option("--no-auth", is_flag=True, help="Ask for no token; only on loopback.")
@json_option
def serve(*, host: str | None, port: int | None, no_auth: bool, as_json: bool) -> None:
    """Run the backend until Ctrl-C or SIGTERM. Sessions of an earlier one are there again."""
    out = Output(as_json=as_json)
    with exit_codes(out):
        if sys.platform != "linux":
            raise click.UsageError("kandev serve needs Linux 5.4 or newer; use it in a container or a virtual machine.")
        import asyncio

        load_structlog()
        from kandev.config import load_config
        from kandev.program import run

        flags = {"server.host": host, "server.port": port, "server.auth": False if no_auth else None}
        config = load_config(os.environ, flags)
        code = asyncio.run(_serve(lambda: run(config), out))
    if code:
        raise SystemExit(code)


def load_structlog() -> None:
    """Import structlog without rich, which it takes along for tracebacks that our logs do not use: 60 ms and 4 MB."""
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # None is how Python is told that an import fails
    try:
        import structlog  # noqa: F401 - whoever imports it later finds it loaded
    finally:
        del sys.modules["rich"]


async def _serve(start: Callable[[], Awaitable[int]], out: Output) -> int:
    import asyncio

    announcing = asyncio.create_task(_announce(out), name="announce")
    try:
        return await start()
    finally:
        announcing.cancel()


async def _announce(out: Output) -> None:
    """Write the address once server.json names this process; with the token only where a person reads it."""
    import asyncio

    home = home_directory()
    while (server := read_server_file(home)) is None or server.get("pid") != os.getpid():  # noqa: ASYNC110 - the file is the event
        await asyncio.sleep(_ANNOUNCE_S)
    url = str(server["url"])
    if out.as_json:
        click.echo(to_json(server))
        return
    token = read_token(home)
    shown = f"{url}/?token={token}" if token and sys.stdout.isatty() else url
    click.echo(f"kandev serves {home} at {shown}")
    if sys.stdout.isatty():
        click.echo("Ctrl-C stops it; sessions are kept. Start an agent with: kandev new TEXT --agent demo")


@click.command("open")
@click.argument("prefix", metavar="ID", required=False)
@click.option("--print", "print_only", is_flag=True, help="Only write the address.")
@backend_command
async def open_page(context: Connected, *, prefix: str | None, print_only: bool) -> None:
    """Open the page in a browser, at a session if ID is given."""
    address = context.locate()
    path = "/"
    if prefix:
        names = await context.names(prefix)
        path = f"/tasks/{names.task_id}/sessions/{names.session_id}"
    url = f"{address.url}{path}" + (f"?token={address.token}" if address.token else "")
    context.out.result({"url": url}, url)
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER")
    if has_display and not print_only and not context.out.as_json:
        import webbrowser

        webbrowser.open(url)


@click.command()
@json_option
def demo(*, as_json: bool) -> None:
    """Show a crash and a resume, twice.

    On a temporary home, with an agent of its own and without network; under 15 seconds. Exit code 0 if both remembered.
    """
    import asyncio

    from kandev.demo.show import run_demo

    out = Output(as_json=as_json)
    steps: list[dict[str, Any]] = []

    def tell(step: str, detail: str) -> None:
        steps.append({"step": step, "detail": detail})
        if not as_json:
            click.echo(f"  {step:<22} {detail}")

    with exit_codes(out):
        results = asyncio.run(run_demo(tell))
        remembered = all(result.remembered for result in results)
        lines = ["Both remembered." if remembered else "Not both remembered; see the steps above."]
        value = {
            "remembered": remembered,
            "results": [{"agent": one.agent, "how": one.how, "remembered": one.remembered} for one in results],
            "steps": steps,
        }
        out.result(value, *lines)
    if not remembered:
        raise SystemExit(1)


@click.command("demo-agent", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo_agent(*, arguments: tuple[str, ...]) -> None:
    """Be the demo agent: the Agent Client Protocol on stdin and stdout."""
    from kandev.demo import agent

    os.execv(sys.executable, [sys.executable, "-I", "-S", agent.__file__, *arguments])  # noqa: S606 - no shell is meant
