"""What tests/conftest.py makes of skipped tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def run_pytest(directory: Path, source: str, *, ci: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_sample.py").write_text(source)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "conftest",
            "-c",
            os.devnull,
            "--rootdir",
            str(directory),
            str(directory),
        ],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(TESTS), "KANDEV_CI": ci, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


SKIPPED_TEST = "import pytest\n\ndef test_a():\n    pytest.skip('no engine here')\n\ndef test_b():\n    pass\n"
SKIPPED_FILE = "import pytest\npytest.skip('no engine here', allow_module_level=True)\n"


@pytest.mark.parametrize("source", [SKIPPED_TEST, SKIPPED_FILE])
def test_a_skip_fails_a_ci_run_and_is_named(tmp_path: Path, source: str) -> None:
    """Under KANDEV_CI=1 nothing is passed over in silence, neither a test nor a whole file."""
    done = run_pytest(tmp_path, source, ci="1")
    assert done.returncode != 0
    assert "which KANDEV_CI=1 does not allow" in done.stdout
    assert "no engine here" in done.stdout


def test_a_skip_elsewhere_is_told_with_its_reason(tmp_path: Path) -> None:
    """On somebody's own machine a run with skips passes, and ends with what was skipped and why."""
    done = run_pytest(tmp_path, SKIPPED_TEST, ci="")
    assert done.returncode == 0
    assert "skipped on this machine" in done.stdout
    assert "test_sample.py::test_a: no engine here" in done.stdout


def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    """A run without skips says nothing about them."""
    done = run_pytest(tmp_path, "import pytest\n\n@pytest.mark.xfail\ndef test_a():\n    raise OSError\n", ci="1")
    assert done.returncode == 0
    assert "KANDEV_CI" not in done.stdout
