"""The patches that break each rule on purpose fit the code; `make mutants` runs the tests against each."""

import subprocess
from pathlib import Path

import pytest

from mutants.run import APPLY, CHECKOUT, patches
from rule_ids import rules

GROUPS = ("TOK", "RACE", "PROMPT", "HIST", "CRASH")


@pytest.mark.parametrize("patch", patches(), ids=lambda patch: patch.stem)
def test_every_mutant_still_fits(patch: Path) -> None:
    """A patch whose place has changed is made anew; it does not get lost in silence."""
    applied = subprocess.run([*APPLY, "--check", patch], cwd=CHECKOUT, check=False, capture_output=True, text=True)
    assert not applied.returncode, applied.stderr


def test_every_rule_of_these_groups_has_its_mutant() -> None:
    """And no patch is named for a rule that there is not."""
    assert {patch.stem for patch in patches()} == {rule for rule in rules() if rule.partition("-")[0] in GROUPS}
