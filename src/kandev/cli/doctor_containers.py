"""Checks of containers, here and on another host: those of this home that no session names."""

import asyncio
import contextlib
import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from kandev.cli.doctor_state import open_read_only
from kandev.cli.finding import Finding
from kandev.config import Config
from kandev.errors import Conflict, KandevError
from kandev.home import Home
from kandev.runtimes.container_spec import container_name, home_labels
from kandev.runtimes.docker_address import engine_address
from kandev.runtimes.docker_engine import DockerEngine
from kandev.runtimes.remote_engine import RemoteEngine
from kandev.runtimes.remote_links import link_to
from kandev.runtimes.session_files import sessions_in

ASK_S: Final = 8.0
"""How long an engine may take until it counts as out of reach."""

_REMOVES: Final = {"container": "docker rm --force", "volume": "docker volume rm"}

Engine = Callable[[], AbstractAsyncContextManager[DockerEngine]]


class _There(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of which an engine has something of a home's."""

    containers: frozenset[str]
    volumes: frozenset[str]


def check_containers(home: Home, config: Config) -> Iterator[Finding]:
    """Ask the engines that this home uses. One that does not answer is said, and no problem. Only reads."""
    if not (home.id_file.exists() and home.database.exists()):
        return
    docker, remote = config.runtimes.docker, config.runtimes.remote_docker
    if docker.image or docker.images or sessions_in(home.run / "docker"):
        yield from _check("docker", home, partial(_local, config))
    if remote.host or remote.context:
        yield from _check("remote_docker", home, partial(_far, config))


@contextlib.asynccontextmanager
async def _local(config: Config) -> AsyncIterator[DockerEngine]:
    docker = config.runtimes.docker
    address = engine_address(docker.host, docker.context, os.environ)
    if not address.startswith("unix://"):
        raise Conflict(f"The engine at {address} is not on this machine.")
    engine = DockerEngine(address)
    try:
        yield engine
    finally:
        await engine.aclose()


@contextlib.asynccontextmanager
async def _far(config: Config) -> AsyncIterator[DockerEngine]:
    link = link_to(config.runtimes.remote_docker, os.environ)
    # Not the backend's own socket to the engine: that one may run.
    with tempfile.TemporaryDirectory(prefix="kandev-") as directory:
        engine = RemoteEngine(link, Path(directory) / "engine")
        await engine.open()
        try:
            yield engine
        finally:
            await engine.aclose()
            await link.aclose()


def _check(runtime: str, home: Home, engine: Engine) -> Iterator[Finding]:
    try:
        there = asyncio.run(_ask(engine, home.identity()))
        sessions = _sessions(home)  # behind the containers: a session is stored before it has one
    except (KandevError, TimeoutError) as error:
        text = f"{runtime}: its containers were not looked at. {error or 'No answer in time.'}"
        yield Finding(check="container", level="note", text=text, mend="kandev runtimes says what is missing.")
        return
    except sqlite3.Error:
        return  # the check of the database tells more
    for session_id in sorted((there.containers | there.volumes) - sessions):
        kinds = [
            kind for kind, found in (("container", there.containers), ("volume", there.volumes)) if session_id in found
        ]
        yield _stray(runtime, kinds, home, session_id, engine)
    text = f"{runtime}: {len(there.containers & sessions)} containers of sessions of this home"
    yield Finding(check="container", level="ok", text=text)


async def _ask(engine: Engine, home_id: str) -> _There:
    async with asyncio.timeout(ASK_S), engine() as opened:
        found = await opened.list(home_labels(home_id))
        volumes = await opened.volumes(home_labels(home_id)) if isinstance(opened, RemoteEngine) else []
    prefix = container_name(home_id, "")
    return _There(
        containers=frozenset(filter(None, (one.labels.get("kandev.session_id") for one in found))),
        volumes=frozenset(name.removeprefix(prefix) for name in volumes if name.startswith(prefix)),
    )


def _sessions(home: Home) -> set[str]:
    with contextlib.closing(open_read_only(home.database)) as connection:
        return {row["id"] for row in connection.execute("SELECT id FROM task_sessions")}


def _stray(runtime: str, kinds: Sequence[str], home: Home, session_id: str, engine: Engine) -> Finding:
    name = container_name(home.identity(), session_id)
    return Finding(
        check="container",
        level="warning",
        text=f"{runtime}: {' and '.join(kinds)} {name} of this home; no session names it.",
        mend="; ".join(f"{_REMOVES[kind]} {name}" for kind in kinds),
        fix=lambda: asyncio.run(_remove(engine, home, session_id)),
    )


async def _remove(engine: Engine, home: Home, session_id: str) -> None:
    """Remove container and volume of a session that is not there, which is looked up once more."""
    if session_id in _sessions(home):
        raise Conflict(f"The session {session_id} is there.")
    name, labels = container_name(home.identity(), session_id), home_labels(home.identity())
    async with engine() as opened:
        container = await opened.find(name)
        if container is not None and labels.items() <= container.labels.items():
            await opened.remove(container)
        if isinstance(opened, RemoteEngine) and await opened.has_volume(name, labels):
            await opened.remove_volume(name)
