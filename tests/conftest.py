"""For every test: the backend fixture, and what a skipped test means.

On somebody's own machine a test that cannot run there is skipped, and the run's end says which and why. With
KANDEV_CI=1 the machine is expected to have everything: then a skip fails the run.
"""

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend import Backend

NO_SKIPS = os.environ.get("KANDEV_CI") == "1"
SKIPS: pytest.StashKey[Counter[tuple[str, str]]] = pytest.StashKey()


class SkipLedger:
    """Counts skipped tests and files by (where, why). An expected failure is no skip."""

    def __init__(self) -> None:
        self.skips: Counter[tuple[str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._count(report)

    def _count(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        self.skips[report.nodeid, reason.removeprefix("Skipped: ")] += 1


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A run in the background is started so, and its children would not hear the signal that tests send them.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    ledger = SkipLedger()
    config.stash[SKIPS] = ledger.skips
    config.pluginmanager.register(ledger, "skip-ledger")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if NO_SKIPS and session.config.stash[SKIPS] and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skips = config.stash[SKIPS]
    if not skips:
        return
    title = "skipped, which KANDEV_CI=1 does not allow" if NO_SKIPS else "skipped on this machine"
    terminalreporter.section(title, red=NO_SKIPS, yellow=not NO_SKIPS)
    for (where, reason), times in sorted(skips.items()):
        terminalreporter.write_line(f"{where}{f' ({times} times)' if times > 1 else ''}: {reason}")


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    """A backend on a home of its own, not started yet. What it leaves behind after its stop fails the test."""
    async with Backend(tmp_path) as made:
        yield made
