"""What a session's sandbox has: agentctl as a service, its files, its login; and how they come and go.

HOME/kandev/            in the sandbox
    agentctl-DIGEST.pyz
    token, arguments    of agentctl, 0600
    INSTANCE/           journal of one instance
    NAME/               the session's directory
"""

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from kandev.agentctl.segments import SUFFIX, WAITING, journal_in
from kandev.agents.home_files import locate
from kandev.errors import AgentctlError, Conflict
from kandev.runtimes.session_files import PRIVATE
from kandev.runtimes.sprites_api import SpritesApi

__all__ = ["Sandbox", "bring_journal", "bring_login", "end", "install", "look", "port_of", "started_with"]

SERVICE: Final = "kandev-agentctl"
_FIRST_PORT: Final = 20_000
_PORTS: Final = 10_000
_AWAKE: Final = "/.sprite/api.sock"
"""Where a sandbox is told that it is needed: without that one without a connection falls asleep, also in a turn."""
_LOOK: Final = """
import json, os, shutil, sys
home = os.path.expanduser("~")
directory = os.path.join(home, "kandev")
for name, text in json.load(sys.stdin).items():
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = os.path.join(directory, name)
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text.replace("{directory}", directory))
    os.rename(path + ".new", path)
print(json.dumps({
    "home": home,
    "python": list(sys.version_info[:2]),
    "git": bool(shutil.which("git")),
    "files": os.listdir(directory) if os.path.isdir(directory) else [],
}))
"""
_KILL: Final = """
import os, signal, sys, time
mark = b"KANDEV_INSTANCE_ID=" + sys.argv[1].encode() + b"\\0"
def found():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                named = mark in file.read() + b"\\0"
            with open(f"/proc/{pid}/stat") as file:
                dead = file.read().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            continue
        if named and not dead and int(pid) != os.getpid():
            yield int(pid)
for _ in range(50):
    left = list(found())
    if not left:
        sys.exit(0)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.05)
sys.exit(1)
"""
_NEEDED: Final = (3, 11)


def port_of(instance_id: str) -> int:
    """Return the port of an instance in its sandbox: another one for each, so that an older one is not in the way."""
    return _FIRST_PORT + int.from_bytes(sha256(instance_id.encode()).digest()[:4]) % _PORTS


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that was looked at. `home` is the home directory of whoever agents run as there."""

    name: str
    home: str
    files: tuple[str, ...] = ()

    @property
    def directory(self) -> str:
        """Return where everything of ours is."""
        return f"{self.home}/kandev"

    def inside(self, name: str) -> str:
        """Return the path of something in there."""
        return f"{self.directory}/{name}"


async def look(api: SpritesApi, name: str, put: Mapping[str, str] = {}) -> Sandbox:
    """Look into a sandbox, which wakes it up, and put private files beside agentctl, by their names.

    In them `{directory}` stands for where they are. Raises Conflict, reason sandbox_unfit, where agentctl cannot run.
    """
    ran = await api.run(name, ["python3", "-I", "-S", "-c", _LOOK], stdin=msgspec.json.encode(put), timeout_s=60)
    try:
        found = msgspec.json.decode(ran.out)
    except msgspec.MsgspecError:
        words = (ran.err or ran.out).decode("utf-8", "replace")[-300:]
        raise Conflict(f"The sandbox has no python3 that works: {words}", reason="sandbox_unfit") from None
    if tuple(found["python"]) < _NEEDED or not found["git"]:
        version = ".".join(map(str, found["python"]))
        git = "has git" if found["git"] else "has no git"
        raise Conflict(
            f"The sandbox has Python {version} and {git}; Python 3.11 or newer and git are needed.",
            reason="sandbox_unfit",
        )
    return Sandbox(name=name, home=found["home"], files=tuple(found["files"]))


def started_with(token: str, instance_id: str, options: Iterable[str]) -> dict[str, str]:
    """Return the files that agentctl reads when it starts for an instance, as `look` puts them."""
    words = (
        *("--instance-id", instance_id, "--dir", f"{{directory}}/{instance_id}", "--log"),
        *("--listen", f"tcp:127.0.0.1:{port_of(instance_id)}", "--token-file", "{directory}/token"),
        *("--awake", _AWAKE, *options),
    )
    return {"token": token, "arguments": "\n".join(words)}


async def install(api: SpritesApi, sandbox: Sandbox, archive: Path) -> None:
    """Bring agentctl, and run it as a service. One that ran for another instance ends."""
    if archive.name not in sandbox.files:
        await api.write(sandbox.name, sandbox.inside(archive.name), archive, mode=0o644)
    await api.delete_service(sandbox.name, SERVICE)
    command = ["python3", "-I", "-S", sandbox.inside(archive.name), f"@{sandbox.inside('arguments')}"]
    await api.put_service(sandbox.name, SERVICE, command)


async def bring_login(api: SpritesApi, sandbox: Sandbox, places: Iterable[str], environ: Mapping[str, str]) -> None:
    """Copy the files by which the agent is logged in, and nothing else of the user's home, where there are none yet."""
    there = {"HOME": sandbox.home}
    for place in places:
        if place.startswith("$") and not place.startswith("${"):
            continue  # a variable, which comes with the agent's environment
        source, target = locate(place, environ), locate(place, there)
        if not source.is_file() or not target.is_relative_to(sandbox.home):
            continue
        if any(entry.name == target.name for entry in await api.listing(sandbox.name, str(target.parent))):
            continue  # the agent may have renewed its login there
        await api.write(sandbox.name, str(target), source, mode=0o600)


async def end(api: SpritesApi, name: str, instance_id: str) -> None:
    """End agentctl's service, and kill whatever else carries the instance's id. Raises AgentctlError tree_alive."""
    await api.delete_service(name, SERVICE)
    ran = await api.run(name, ["python3", "-I", "-S", "-c", _KILL, instance_id])
    if ran.code:
        raise AgentctlError("A process in the sandbox did not die.", reason="tree_alive")


async def bring_journal(api: SpritesApi, sandbox: Sandbox, instance_id: str, directory: Path) -> None:
    """Copy the journal of an instance that has ended, and its stderr, to its directory here."""
    journal = Path(journal_in(str(directory)))
    await asyncio.to_thread(shutil.rmtree, journal, ignore_errors=True)
    journal.mkdir(mode=PRIVATE, parents=True)
    there = sandbox.inside(instance_id)
    for entry in await api.listing(sandbox.name, journal_in(there)):
        if entry.name == WAITING or (entry.name.endswith(SUFFIX) and "/" not in entry.name):
            await api.read(sandbox.name, f"{journal_in(there)}/{entry.name}", journal / entry.name)
    if any(entry.name == "stderr.log" for entry in await api.listing(sandbox.name, there)):
        await api.read(sandbox.name, f"{there}/stderr.log", directory / "stderr.log")
