"""The locks hold what pyproject.toml asks for, so that nobody installs something else than what was tested."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def group(name: str) -> list[str]:
    """The requirements of a dependency group and of the groups that it includes."""
    entries = PROJECT["dependency-groups"][name]
    own = [entry for entry in entries if isinstance(entry, str)]
    included = [one for entry in entries if isinstance(entry, dict) for one in group(entry["include-group"])]
    return own + included


def locked(name: str) -> dict[str, str]:
    """Versions by name. In a lock each package begins a line: `name==version`, marker, backslash."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if line[:1].isalnum()]
    return {line.split("==")[0]: line.split("==")[1].split()[0] for line in lines}


@pytest.mark.parametrize(("lock", "name"), [("requirements.lock", "build"), ("requirements-dev.lock", "dev")])
def test_a_lock_satisfies_what_the_project_asks_for(lock: str, name: str) -> None:
    """Whoever changes a requirement writes the locks again (`make lock`)."""
    versions = locked(lock)
    wanted = [Requirement(text) for text in PROJECT["project"]["dependencies"] + group(name)]
    missing = [str(one) for one in wanted if not one.specifier.contains(versions.get(one.name, "0"))]
    assert not missing


def test_both_locks_hold_the_same_versions() -> None:
    """What the tests ran with is what is installed for use."""
    development = locked("requirements-dev.lock")
    assert {name: development.get(name) for name in locked("requirements.lock")} == locked("requirements.lock")
