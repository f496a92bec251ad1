"""Every rule of docs/recovery-rules.md has its tests, and the table in docs/recovery.md names them."""

from pathlib import Path

import pytest

from rule_ids import BEGIN, COMMAND, GAPS, TABLE_FILE, Carrier, carriers, ids_of_name, missing, rules, table, with_table


@pytest.fixture(scope="module")
def found() -> list[Carrier]:
    return carriers()


def test_the_table_of_rules_and_tests_is_current(found: list[Carrier]) -> None:
    """docs/recovery.md says which files test which rule."""
    text = TABLE_FILE.read_text()
    assert BEGIN in text
    assert text == with_table(text, table(found)), f"write it with: {COMMAND}"


def test_every_rule_has_a_test_but_for_the_known_gaps(found: list[Carrier]) -> None:
    """The list of gaps is exact, so it can only shrink: a rule that got its test leaves it."""
    lacking = missing(found)
    print("rules without a test:", ", ".join(lacking) or "none")  # noqa: T201 - the report of the run
    assert set(lacking) == GAPS


def test_no_test_carries_a_rule_that_there_is_not(found: list[Carrier]) -> None:
    """A number with a slip in it would count for nothing."""
    assert not [one for one in found if one.rule not in rules()]


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("test_tok_3_a_late_event", {"TOK-3"}),
        ("test_crash_18_and_state_1_x", {"CRASH-18", "STATE-1"}),
        ("test_wire_2_wire_3_x", {"WIRE-2", "WIRE-3"}),
        ("test_wire_12", {"WIRE-12"}),
        ("test_state_machines_have_7_states", set()),
        ("test_the_tok_3", set()),
    ],
)
def test_ids_stand_at_the_beginning_of_a_name(name: str, ids: set[str]) -> None:
    """One or several, joined by `and`."""
    assert ids_of_name(name) == ids


def test_ids_in_a_docstring_count_too(tmp_path: Path) -> None:
    """Also of coroutines and methods; comments and other functions do not."""
    path = tmp_path / "test_x.py"
    path.write_text(
        "class TestX:\n    async def test_a(self):\n        'Holds (TOK-1, RACE-2).'\n"
        "def helper():\n    'TOK-3'\n# TOK-4\ndef test_b():\n    pass\n"
    )
    assert [(one.rule, one.name) for one in carriers([path])] == [("RACE-2", "test_a"), ("TOK-1", "test_a")]
