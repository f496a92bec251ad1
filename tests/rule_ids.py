"""Which tests carry which rule of docs/recovery-rules.md: `PYTHONPATH=tests python -m rule_ids --write`.

A test carries the ids that its name begins with (`test_tok_3_...`, `test_crash_18_and_state_1_...`) and those in its
docstring (`TOK-3`). The table stands in docs/recovery.md between two markers.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
CHECKOUT = TESTS.parent
RULES_FILE = CHECKOUT / "docs/recovery-rules.md"
TABLE_FILE = CHECKOUT / "docs/recovery.md"
BEGIN = "<!-- rules and their tests: written by tests/rule_ids.py -->"
END = "<!-- end of the rules -->"
COMMAND = "PYTHONPATH=tests .venv/bin/python -m rule_ids --write"

TESTED = ("TOK", "RACE", "STATE", "PROMPT", "HIST", "WIRE", "PERM", "PROC", "WORK", "CRASH", "SEC")
"""Groups of which every rule has a test, but for the gaps."""

GAPS: frozenset[str] = frozenset()
"""Rules without a test yet. This set may only shrink."""

_GROUPS = "TOK|RACE|STATE|PROMPT|HIST|WIRE|PERM|PROC|WORK|CONT|CRASH|UI|SEC"
_RULE = re.compile(rf"^- ((?:{_GROUPS})-\d+): (.+)$", re.MULTILINE)
_IN_TEXT = re.compile(rf"\b((?:{_GROUPS})-\d+)\b")
_IN_NAME = re.compile(rf"({_GROUPS.lower()})_(\d+)(?:_and)?(?:_|$)")


class Carrier(NamedTuple):
    """A test and a rule that it carries."""

    rule: str
    path: Path
    name: str


def rules() -> dict[str, str]:
    """The rules in the order of docs/recovery-rules.md: id and sentence."""
    return dict(_RULE.findall(RULES_FILE.read_text()))


def carriers(paths: Iterable[Path] | None = None) -> list[Carrier]:
    """Every pair of a test and a rule."""
    files = sorted(TESTS.rglob("test_*.py")) if paths is None else paths
    return [found for path in files for found in _of_file(path)]


def _of_file(path: Path) -> Iterator[Carrier]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            for rule in sorted(ids_of_name(node.name) | set(_IN_TEXT.findall(ast.get_docstring(node) or ""))):
                yield Carrier(rule, path, node.name)


def ids_of_name(name: str) -> set[str]:
    """The ids that a test's name begins with."""
    found = set()
    rest = name.removeprefix("test_")
    while match := _IN_NAME.match(rest):
        found.add(f"{match[1].upper()}-{match[2]}")
        rest = rest[match.end() :]
    return found


def missing(found: Iterable[Carrier]) -> list[str]:
    """The rules of the TESTED groups that no test carries."""
    carried = {one.rule for one in found}
    return [rule for rule in rules() if rule.partition("-")[0] in TESTED and rule not in carried]


def table(found: Iterable[Carrier]) -> str:
    """The lines between the markers: id, rule, and the files with how many tests in each."""
    by_rule: dict[str, Counter[Path]] = {}
    for one in found:
        by_rule.setdefault(one.rule, Counter())[one.path] += 1
    rows = [f"| {rule} | {text} | {_files(by_rule.get(rule, {}))} |" for rule, text in rules().items()]
    return "\n".join(["| id | rule | tests |", "|---|---|---|", *rows])


def _files(counts: Mapping[Path, int]) -> str:
    shown = [
        f"[{path.stem.removeprefix('test_')}](../{path.relative_to(CHECKOUT)}){f' {n}' if n > 1 else ''}"
        for path, n in sorted(counts.items())
    ]
    return ", ".join(shown) or "none yet"


def with_table(text: str, rows: str) -> str:
    """The document with these rows between its markers."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{rows}\n\n{END}{tail}"


def main() -> None:
    """Write the table, or print what has no test."""
    found = carriers()
    if "--write" in sys.argv:
        TABLE_FILE.write_text(with_table(TABLE_FILE.read_text(), table(found)))
    sys.stdout.write(f"without a test: {', '.join(missing(found)) or 'none'}\n")
    unknown = sorted({one.rule for one in found} - rules().keys())
    sys.stdout.write(f"carried, but no rule: {', '.join(unknown) or 'none'}\n")


if __name__ == "__main__":
    main()
