"""Every call of a named statement gives exactly the parameters that the statement names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kandev
from kandev.store.database import load_statements
from kandev.store.sqlite import check_statements

SOURCE = Path(kandev.__file__).parent
STATEMENTS = load_statements(SOURCE / "store" / "queries.sql")
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
CALLS = frozenset({"one", "all", "run", "scan"})


def _calls() -> Iterator[tuple[str, str, frozenset[str], str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS):
                continue
            if len(node.args) != 1 or not isinstance(node.args[0], ast.Constant):
                continue
            name = node.args[0].value
            starred = any(keyword.arg is None for keyword in node.keywords)
            if isinstance(name, str) and name in STATEMENTS and not starred:
                given = frozenset(keyword.arg for keyword in node.keywords if keyword.arg)
                yield name, f"{path.name}:{node.lineno}", given, STATEMENTS[name]


@pytest.mark.parametrize(("name", "where", "given", "sql"), list(_calls()))
def test_call_gives_the_parameters_of_its_statement(name: str, where: str, given: frozenset[str], sql: str) -> None:
    """A missing or superfluous parameter would only show when the statement runs."""
    assert given == frozenset(PARAMETER.findall(sql)), f"{name} at {where}"


def test_every_statement_is_used() -> None:
    """A statement that nobody runs is taken out."""
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert [name for name in STATEMENTS if f'"{name}"' not in text] == []


def test_every_statement_can_be_prepared() -> None:
    """The statements fit the tables of the migrations."""
    assert check_statements(STATEMENTS, SOURCE / "store" / "migrations") == []
