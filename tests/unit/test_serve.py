"""What `kandev serve` loads."""

import subprocess
import sys

PROGRAM = """
import sys
from kandev.cli.serve import load_structlog
load_structlog()
import kandev.program
assert "structlog" in sys.modules
assert not {"rich", "rich.console", "pygments"} & sys.modules.keys()
import rich.console
"""


def test_the_backend_starts_without_what_only_draws() -> None:
    """Structlog would load rich and pygments; a command that draws can still import them afterwards."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
