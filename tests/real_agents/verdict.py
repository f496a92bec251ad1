"""What `kandev agents check` says of a real agent, run as a person would run it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from leftovers import processes_naming
from real_agents.conftest import RealAgent

LIMIT = 400.0
"""Seconds for a whole check: Gemini waits for the next minute, and Copilot unpacks itself at its first start."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the command told: its exit code, and the steps by name as (result, seen)."""

    code: int
    word: str
    steps: dict[str, tuple[str, str]]


async def check(agent: RealAgent, tmp_path: Path, *lines: str) -> Verdict:
    """Runs `kandev agents check` as a person would; `lines` are added to the agent's table of config.toml."""
    home, user = tmp_path / "kandev", tmp_path / "user"
    home.mkdir()
    user.mkdir()
    (home / "config.toml").write_text(agent.config(*lines))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kandev", "agents", "check", agent.name, "--json"),
        env={"PATH": agent.env["PATH"], "HOME": str(user), "KANDEV_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    sys.stdout.write(out.decode())
    assert [path.name for path in home.iterdir()] == ["config.toml"], "the person's own home was written to"
    assert not processes_naming(str(agent.home))
    answer: dict[str, Any] = json.loads(out)
    steps = {step["step"]: (step["result"], step["seen"]) for step in answer["steps"]}
    return Verdict(code=process.returncode, word=answer["word"], steps=steps)
