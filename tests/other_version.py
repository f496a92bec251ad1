"""Another version of the product: a copy of its sources whose agentctl speaks another version of its interface.

A backend whose environment has the copy's directory as PYTHONPATH runs it.
"""

import shutil
from pathlib import Path

import kandev
from kandev.agentctl import API_VERSION

SOURCES = Path(kandev.__file__).parent


def write_version(directory: Path, number: int) -> str:
    """Writes the copy below `directory`, and returns what PYTHONPATH is set to."""
    shutil.copytree(SOURCES, directory / "kandev", ignore=shutil.ignore_patterns("__pycache__", "page"))
    place = directory / "kandev/agentctl/__init__.py"
    text, line = place.read_text(), f"API_VERSION = {API_VERSION}\n"
    assert line in text
    place.write_text(text.replace(line, f"API_VERSION = {number}\n"))
    return str(directory)
