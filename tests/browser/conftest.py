"""Chromium, and a backend of its own for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from browser.desk import Desk
from browser.play import Play
from browser.stage import Stage
from conversation import Cast

FIGURES: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[FIGURES]:
        terminalreporter.section("figures of the page")
        for line in config.stash[FIGURES]:
            terminalreporter.write_line(line)


@pytest.fixture
def figure(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Tells a figure at the end of the run: the tests assert several times it."""
    return pytestconfig.stash[FIGURES].append


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, Any]:
    """Debian's Chromium, quiet: it asks nobody for anything."""
    quiet = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
    return {
        "executable_path": "/usr/bin/chromium",
        "headless": True,
        "chromium_sandbox": False,
        "args": [*quiet, "--disable-component-update", "--disable-sync"],
    }


@pytest.fixture
def cast(tmp_path: Path) -> Cast:
    """Fake agents, as scripts make them."""
    return Cast(tmp_path / "agents", each=2)


@pytest.fixture
def stage(tmp_path: Path, cast: Cast) -> Iterator[Stage]:
    """A running backend that the test may kill."""
    with Stage(tmp_path, config=cast.config) as stage:
        yield stage


@pytest.fixture
def play(desk: Desk, stage: Stage, cast: Cast) -> Play:
    """A session to kill and to bring back."""
    return Play(desk, stage, cast)


@pytest.fixture
def desk(browser: Browser, stage: Stage) -> Iterator[Desk]:
    """A browser profile; the test fails when the page breaks its security policy or throws."""
    with browser.new_context(viewport={"width": 1200, "height": 760}) as context:
        desk = Desk(context, stage)
        yield desk
        assert desk.complaints == []
