"""`pytest tests/crash --table FILE` writes what became of each failpoint, as a table in Markdown; - prints it.

Kills elsewhere count too, where a test's parameter `armed` names the failpoint and its name the rule.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from crash.cases import Case, fires
from kandev.agentctl.failpoints import FAILPOINTS
from rule_ids import ids_of_name

Results = Mapping[tuple[str, str], list[str]]
"""By failpoint and rule: the outcome of each kill, "held", "broken" or "skipped"."""

OUTCOMES = {"passed": "held", "failed": "broken"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file that gets the table."""
    parser.addoption("--table", metavar="FILE", default="", help="write failpoint, rule and result; - prints it")


def pytest_configure(config: pytest.Config) -> None:
    """Collects nothing unless it is asked for."""
    if config.getoption("--table"):
        config.pluginmanager.register(Table(config.getoption("--table")))


class Table:
    """Looks at each kill's report, and writes the table when the run has ended."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._kills: dict[str, tuple[str, str]] = {}
        self._results: defaultdict[tuple[str, str], list[str]] = defaultdict(list)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Notes which test is the kill at which failpoint."""
        for item in items:
            params = item.callspec.params if hasattr(item, "callspec") else {}
            if isinstance(case := params.get("case"), Case):
                self._kills[item.nodeid] = (case.name, case.rule)
            elif isinstance(armed := params.get("armed"), str) and fires(armed) in FAILPOINTS:
                (rule,) = ids_of_name(item.name.partition("[")[0])
                self._kills[item.nodeid] = (fires(armed), rule)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes the outcome of a kill: of its test, or of what broke before or behind that."""
        if report.nodeid in self._kills and (report.when == "call" or report.outcome != "passed"):
            self._results[self._kills[report.nodeid]].append(OUTCOMES.get(report.outcome, report.outcome))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Writes the table."""
        text = table(self._results)
        if self._file == "-":
            terminalreporter.write_line(text)
        else:
            Path(self._file).write_text(text)


def table(results: Results) -> str:
    """The table, in the order of the code's own; a failpoint that nobody was killed at says so."""
    hit = {name for name, _rule in results}
    kills = [outcome for outcomes in results.values() for outcome in outcomes]
    summary = f"{len(kills)} kills, {kills.count('held')} held, {len(hit)} of {len(FAILPOINTS)} failpoints hit."
    rows = ["| failpoint | where that is | rule | kills | result |", "|---|---|---|---|---|"]
    for name, place in FAILPOINTS.items():
        found = [(rule, outcomes) for (one, rule), outcomes in results.items() if one == name]
        for rule, outcomes in found or [("", [])]:
            result = "held" if outcomes and set(outcomes) == {"held"} else ", ".join(outcomes) or "not hit"
            rows.append(f"| `{name}` | {place} | {rule} | {len(outcomes)} | {result} |")
    return "\n".join([summary, "", *rows, ""])
