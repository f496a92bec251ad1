"""Backends with a cast of fake agents: one that a module's tests share, and one that a test may kill."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from backend import Backend
from conversation import Cast, Conversation, Conversations
from wire_client import Client

SHORT_WAITS = {"KANDEV__TIMING__IN_USE_RETRY_S": "1", "KANDEV__TIMING__CANCEL_FORCE_S": "1"}


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """The fake agents of a module's tests; each test takes its own."""
    return Cast(tmp_path_factory.mktemp("cast"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory, cast: Cast) -> AsyncIterator[Backend]:
    """A backend that all tests of a module share: none stops it, each has sessions and agents of its own."""
    async with Backend(tmp_path_factory.mktemp("stage"), config=cast.config, environment=SHORT_WAITS) as backend:
        await backend.start()
        yield backend


@pytest.fixture
async def client(stage: Backend) -> AsyncIterator[Client]:
    """A connection to the shared backend."""
    async with stage.client() as connected:
        yield connected


@pytest.fixture
async def conversation(client: Client, cast: Cast) -> AsyncIterator[Conversations]:
    """Call it with a kind and a script for a session on the shared backend; its agent ends with the test."""
    made: list[Conversation] = []

    async def make(kind: str = "native", **script: Any) -> Conversation:
        made.append(await cast.conversation(client, kind, **script))
        return made[-1]

    yield make
    for one in made:
        one.agent.kill()


@pytest.fixture
async def killable(tmp_path: Path, cast: Cast) -> AsyncIterator[Backend]:
    """A running backend of one test, with the module's cast, to be killed and started again."""
    async with Backend(tmp_path, config=cast.config, environment=SHORT_WAITS) as backend:
        await backend.start()
        yield backend
