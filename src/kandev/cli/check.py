"""`kandev agents check NAME`: try an agent for real, on a backend of its own."""

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kandev.cli.output import Output
from kandev.cli.run import CANCELLED, FAILED, exit_codes, json_option

if TYPE_CHECKING:
    from kandev.agents.base import AgentConfig, AgentOverride
    from kandev.agents.registry import AgentCheck
    from kandev.cli.agent_check import Checked, Step
    from kandev.config import Config

MARKS = {"ok": "✓", "note": "·", "failed": "✗"}


@click.command()
@click.argument("name", metavar="NAME")
@json_option
def check(*, name: str, as_json: bool) -> None:
    """Try an agent for real: new session, prompt, kill, resume, prompt.

    It asks the agent's model three short questions, with your account, on a backend and in a repository that are
    removed afterwards. Your own sessions are not touched. Exit code 0 when all that the agent's flags promise works.
    """
    out = Output(as_json=as_json)
    with exit_codes(out):
        import asyncio

        import msgspec

        from kandev.agents.registry import AgentRegistry
        from kandev.config import load_config

        config = load_config(os.environ)
        registry = AgentRegistry(config.agents)
        agent, static = registry.get(name), registry.check(name, os.environ)
        try:
            checked = _unstartable(static) or asyncio.run(_drive(config, agent, out))
        except (KeyboardInterrupt, asyncio.CancelledError):  # Ctrl-C, SIGTERM
            words = "Stopped. Backend and agent of the check have ended, and nothing of them is left."
            out.failure({"code": "CANCELLED", "message": words, "details": {}}, words)
            raise SystemExit(CANCELLED) from None
        value = {**msgspec.to_builtins(checked), "passed": checked.passed, "path": static.path}
        rows = [(MARKS[step.result], step.step, f"{step.seconds:.1f} s", step.seen) for step in checked.steps]
        out.table(value, ("", "STEP", "TIME", "SEEN"), rows, empty="")
        if checked.passed:
            version = f" {checked.version}" if checked.version else ""
            out.note(f"{name}{version}: all that its flags promise works ({static.path}).")
    if not checked.passed:
        raise SystemExit(FAILED)


def _unstartable(static: "AgentCheck") -> "Checked | None":
    """Return the end of a check that cannot begin: the program or a variable is missing."""
    from kandev.cli.agent_check import Checked, Step

    if not static.problem:
        return None
    step = Step(step="program", result="failed", seconds=0.0, seen=static.problem)
    return Checked(agent=static.name, word="", prompts=(), steps=(step,))


async def _drive(config: "Config", agent: "AgentConfig", out: Output) -> "Checked":
    from kandev.cli.agent_check import check_agent
    from kandev.cli.scratch import scratch_backend

    began = time.monotonic()

    def tell(step: "Step") -> None:
        out.progress(f"{time.monotonic() - began:.0f} s · {MARKS[step.result]} {step.step}: {step.seen}")

    async with scratch_backend("check") as backend:
        out.progress(f"Trying {agent.display_name}")
        (backend.home / "config.toml").write_text(_configuration(agent.name, config.agents.get(agent.name)))
        repository = await _make_repository(backend.home / "repository")
        return await check_agent(backend, agent, repository, tell)


async def _make_repository(place: Path) -> Path:
    """Make a git repository with one commit."""
    import asyncio

    if shutil.which("git") is None:
        raise click.ClickException("git is not installed; an agent works in a git repository")
    # As nobody in particular, and without what a person has set up for commits of his own.
    settings = ("user.name=kandev", "user.email=kandev@localhost", "commit.gpgsign=false", "core.hooksPath=/dev/null")
    plain = [word for setting in settings for word in ("-c", setting)]
    for words in (
        ["init", "--quiet", str(place)],
        ["-C", str(place), *plain, "commit", "--allow-empty", "-qm", "empty"],
    ):
        process = await asyncio.create_subprocess_exec("git", *words, stdin=asyncio.subprocess.DEVNULL)
        if await process.wait():
            raise click.ClickException(f"git {words[0]} failed; an agent works in a git repository")
    return place


def _configuration(name: str, override: "AgentOverride | None") -> str:
    """Return a config.toml with what the person's own configuration says of this agent, and nothing else of it."""
    import msgspec

    table: Mapping[str, Any] = msgspec.to_builtins(override) if override else {}
    lines = [f"{key} = {_toml(value)}\n" for key, value in table.items() if value is not None]
    return f"[agents.{name}]\n{''.join(lines)}"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # What JSON writes of a text, a number or a truth value is TOML too; of texts only with its one exception.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
