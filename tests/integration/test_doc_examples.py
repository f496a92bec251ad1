"""What the documents show is what works: programs are run, configurations read, commands looked up."""

import asyncio
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from backend import Backend
from kandev.cli.__main__ import cli
from kandev.config import load_config

CHECKOUT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(CHECKOUT.glob("docs/*.md")), CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md"]
LIMIT = 60.0


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


async def run(program: str, env: dict[str, str], directory: Path) -> str:
    """The standard output of a program that ends well."""
    path = directory / "example.py"
    path.write_text(program)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(path), env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(LIMIT):
            out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return out.decode()


async def test_the_program_of_the_readme(backend: Backend, tmp_path: Path) -> None:
    """The library, as the README shows it, makes a session that remembers."""
    (program,) = blocks(CHECKOUT / "README.md", "python")
    assert "The word is apple." in await run(program, backend.env(), tmp_path)


async def test_the_program_of_the_protocol(backend: Backend, tmp_path: Path) -> None:
    """The client of docs/protocol.md creates a task and hears of its first turn until that ends."""
    await backend.start()
    (program,) = blocks(CHECKOUT / "docs/protocol.md", "python")
    lines = (await run(program, backend.env(), tmp_path)).splitlines()
    assert "response task.create" in lines
    assert lines[-1] == "notification session.turn.completed"


def configurations() -> Iterator[tuple[str, str]]:
    for document in DOCUMENTS:
        for number, text in enumerate(blocks(document, "toml"), 1):
            yield f"{document.name} {number}", text


@pytest.mark.parametrize("text", [text for _, text in configurations()], ids=[name for name, _ in configurations()])
def test_configurations_are_read(text: str, tmp_path: Path) -> None:
    """Every piece of config.toml in the documents is accepted as it stands."""
    (tmp_path / "config.toml").write_text(text)
    config = load_config({"KANDEV_HOME": str(tmp_path)})
    assert set(config.sources.values()) == {str(tmp_path / "config.toml")}


def commands() -> Iterator[str]:
    """Every `kandev ...` of the documents, in a block or in a line."""
    for document in DOCUMENTS:
        text = document.read_text()
        shown = [line for block in blocks(document, "sh") for line in block.splitlines()]
        inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
        yield from (line for line in (*shown, *inline) if re.match(r"(KANDEV_\w+=\S+ )?kandev( |$)", line))


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_commands_are_there(line: str) -> None:
    """Every command that the documents name is one, with the options that stand behind it."""
    words = [word for word in shlex.split(line, comments=True) if "=" not in word][1:]
    if not words or words[0].startswith("-"):
        return
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    if words[0] != "demo-agent":  # which hands its words on
        assert {word for word in words[1:] if word.startswith("--")} <= known | {"--help"}
