"""A real engine for the tests of runtimes; where none can be started they are skipped, and say why."""

from collections.abc import Iterator

import pytest

from runtimes.engine import CannotStart, DockerEngine


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    """One engine for all tests; nothing of it is left afterwards."""
    try:
        made = DockerEngine()
        made.__enter__()
    except CannotStart as error:
        pytest.skip(f"no Docker engine can be started here: {error}")
    yield made
    made.close()
