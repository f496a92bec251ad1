"""Where sessions are measured to run: an engine of our own, one on a second host, and a Sprites service of our own.

What cannot be had here is left out, and said.
"""

import asyncio
import json
import multiprocessing
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from benchmarks.bare import AGENT
from runtimes import engine, far_host
from runtimes.fake_sprites import TOKEN, FakeSprites

CONFIG = f"""
[limits]
max_live_agents = 1000
[agents.flood]
command = ["{{python}}", "-I", "-S", {json.dumps(str(AGENT))}]
native_session_resume = true
[runtimes.detached]
idle_minutes = 10
"""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The runtimes that can be used, by name and how they are shown; what the backend is told; why others are not."""

    shown: dict[str, str]
    config: str
    environment: dict[str, str]
    left_out: dict[str, str]


@contextmanager
def places() -> Iterator[Places]:
    """Make what can be made here, and end it with the block."""
    made = Places(
        shown={"standalone": "standalone", "detached": "detached"}, config=CONFIG, environment={}, left_out={}
    )
    with ExitStack() as stack:
        try:
            made = _with_docker(made, stack.enter_context(engine.DockerEngine()))
        except engine.CannotStart as error:
            made.left_out["docker"] = str(error)
        try:
            made = _with_remote_docker(made, stack.enter_context(far_host.FarHost()))
        except far_host.CannotStart as error:
            made.left_out["remote_docker"] = str(error)
        yield _with_sprites(made, stack.enter_context(_sprites()))


def _with_docker(places: Places, made: engine.DockerEngine) -> Places:
    config = f'[runtimes.docker]\nimage = "{made.image}"\nmounts = ["{AGENT}:{AGENT}:ro"]\n'
    return _more(places, "docker", "docker", config, DOCKER_HOST=made.url)


def _with_remote_docker(places: Places, far: far_host.FarHost) -> Places:
    shutil.copy(AGENT, far.far / AGENT.name)
    config = (
        f'[runtimes.remote_docker]\nhost = "{far.ssh_url}"\nimage = "{far.image}"\n'
        f'mounts = ["/far/{AGENT.name}:{AGENT}:ro"]\n'
        f'identity_file = "{far.identity}"\nknown_hosts = "{far.known_hosts}"\n'
    )
    return _more(places, "remote_docker", "remote docker by SSH", config)


def _with_sprites(places: Places, url: str) -> Places:
    return _more(
        places, "sprites", "sprites, service of our own", f'[runtimes.sprites]\nurl = "{url}"\n', SPRITES_TOKEN=TOKEN
    )


def _more(places: Places, name: str, shown: str, config: str, **environment: str) -> Places:
    return msgspec.structs.replace(
        places,
        shown={**places.shown, name: shown},
        config=places.config + config,
        environment={**places.environment, **environment},
    )


@contextmanager
def _sprites() -> Iterator[str]:
    """Run the service in a process of its own, so that it takes no time of whoever measures; give its address."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="kandev-bench-") as directory:
        process = context.Process(target=_serve, args=(Path(directory), there), daemon=True)
        process.start()
        try:
            yield here.recv()
        finally:
            with suppress(BrokenPipeError):
                here.send("end")
            process.join()


def _serve(directory: Path, parent: Connection) -> None:
    async def serve() -> None:
        async with FakeSprites(directory) as made:
            parent.send(made.url)
            await asyncio.to_thread(parent.recv)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever measures is told, and ends this
    asyncio.run(serve())
