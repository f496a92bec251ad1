"""`kandev demo`: a backend is killed in front of your eyes, and what its sessions remember afterwards.

Everything is real and local: `kandev serve` as a process of its own on a temporary home, SIGKILL, a second start, and
the demo agent once with its own memory (native resume) and once without (history injection). No network.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kandev.cli.address import Address, read_token
from kandev.cli.client import Client, new_client_id
from kandev.cli.follow import Follower
from kandev.cli.output import Output
from kandev.cli.run import Names
from kandev.cli.wait import TurnWaiter, first_message, wait_for_resume
from kandev.cli.words import resume_words
from kandev.errors import KandevError, TimedOut

LIMIT_S = 60.0  # for all of it; it takes a few seconds, and a machine may be slow
STOP_S = 25.0  # the backend's own budget is 20
STRATEGIES = {"demo": "its own memory", "demo-history": "the recorded conversation"}
_WORDS = ("amber", "birch", "cobalt", "dahlia", "ember", "fjord", "garnet", "heron", "indigo", "juniper")

Tell = Callable[[str, str], None]


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """What one strategy brought back: `how` as in session.resume.completed."""

    agent: str
    how: str
    word: str
    said: str

    @property
    def remembered(self) -> bool:
        """Return whether the agent said the word that it learnt before the crash."""
        return self.word in self.said


async def run_demo(tell: Tell) -> list[Remembered]:
    """Run both strategies and return what was remembered; `tell(step, detail)` is called for each step.

    Raises KandevError when a step fails. The home and all processes are gone afterwards, however it ends.
    """
    home = Path(tempfile.mkdtemp(prefix="kandev-demo-"))
    backend = _Backend(home)
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with asyncio.timeout(LIMIT_S):
            tell("home", f"{home} (removed at the end)")
            await backend.start()
            tell("backend started", f"process {backend.pid} at {backend.address.url}")
            return [await _show(backend, agent, tell) for agent in STRATEGIES]
    except TimeoutError:
        raise TimedOut(f"The demo was not finished within {LIMIT_S:g} s.\n{backend.last_words()}") from None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        await asyncio.shield(_clean_up(backend, home))


async def _show(backend: "_Backend", agent: str, tell: Tell) -> Remembered:
    word = f"{secrets.choice(_WORDS)}-{secrets.randbelow(900) + 100}"
    tell(f"— {agent}", f"resumes with {STRATEGIES[agent]}")
    async with await Client.open(backend.address) as client:
        created = await client.call(
            "task.create", agent=agent, description=f"remember {word}", client_task_id=new_client_id()
        )
        names = Names(task_id=created["task"]["id"], session_id=created["session"]["id"], typed="")
        first = await first_message(client.call, names.session_id)
    tell("a word to remember", f"remember {word} → {await _answer(backend, names, first)}")
    killed = backend.pid
    await backend.kill()
    tell("backend killed", f"SIGKILL to process {killed}; the agent ends with it")
    await backend.start()
    tell("backend started", f"process {backend.pid} on the same home")
    how = await _resume(backend, names, tell)
    said = await _ask(backend, names)
    tell("asked for the word", f"what is the word? → {said}")
    result = Remembered(agent=agent, how=how, word=word, said=said)
    tell("result", "remembered" if result.remembered else f"NOT remembered: it was {word}")
    return result


async def _resume(backend: "_Backend", names: Names, tell: Tell) -> str:
    async with await Client.open(backend.address) as client:
        status = await client.call("task.session.status", **names.both)
    tell("session found", f"{status['state']}, needs resume: {status['needs_resume']} ({status['resume_reason']})")
    began = time.monotonic()
    async with Follower(await Client.open(backend.address), lambda: backend.address, names.session_id) as follower:
        _, outcome = await wait_for_resume(follower, "task.session.resume", names, Output(as_json=True), wait=True)
    duration = f"{(time.monotonic() - began) * 1000:.0f} ms"
    tell("session resumed", f"in {duration}, how: {outcome.get('how')}. {' '.join(resume_words(outcome, ''))}")
    return str(outcome.get("how") or "")


async def _ask(backend: "_Backend", names: Names) -> str:
    question = {"content": "what is the word?", "client_message_id": new_client_id()}
    async with await Client.open(backend.address) as client:
        sent = await client.call("message.add", **names.both, **question)
    return await _answer(backend, names, str(sent["message"]["id"]))


async def _answer(backend: "_Backend", names: Names, message_id: str) -> str:
    """Wait for the turn of a message and return what the agent said; raises KandevError for another end."""
    async with Follower(await Client.open(backend.address), lambda: backend.address, names.session_id) as follower:
        end = await TurnWaiter(follower, names, policy="deny", out=Output(as_json=True)).wait(message_id)
    if end.exit_code:
        raise KandevError(f"The turn did not complete: {end.state} {end.why}".rstrip())
    return " ".join(end.text.split())


class _Backend:
    """`kandev serve` as a process on `home`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._log = home / "demo-backend.log"
        self._process: asyncio.subprocess.Process | None = None
        self.address = Address(url="", token="")

    @property
    def pid(self) -> int:
        """The process's number; 0 when none runs."""
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        """Start and return once its port answers; raises KandevError with its last words when it ends instead."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KANDEV_")}
        environment |= {"KANDEV_HOME": str(self._home), "KANDEV_DEMO_AGENT_HOME": str(self._home / "demo-agent")}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kandev", "serve", "--port", "0", "--json"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this program, which ends the backend in order
            )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            raise KandevError(f"The backend ended with {code} at its start.\n{self.last_words()}")
        self.address = Address(url=json.loads(line)["url"], token=read_token(self._home))

    async def kill(self) -> None:
        """End it as a power cut would."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End it in order; one that does not end is killed."""
        try:
            async with asyncio.timeout(STOP_S):
                await self._end(signal.SIGTERM)
        except TimeoutError:
            await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        await process.wait()
        self._process = None

    def last_words(self) -> str:
        """Return the last lines of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])
        return ""


async def _clean_up(backend: _Backend, home: Path) -> None:
    await backend.stop()
    for descriptor in _left_behind(home):
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            await _gone(descriptor)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)
    shutil.rmtree(home, ignore_errors=True)


def _left_behind(home: Path) -> Iterator[int]:
    """Yield a pidfd of each process that names the home; its random name is in no other process."""
    mark = str(home).encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(int(entry.name))
            if mark in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                yield descriptor
            else:
                os.close(descriptor)


async def _gone(descriptor: int) -> None:
    """Return once the process of a pidfd has ended."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
