"""Real repositories for tests, without any setting of whoever runs them."""

import os
import subprocess
from pathlib import Path

GIT_ENVIRONMENT = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "t@example.invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(where: Path, *arguments: str) -> str:
    """What git answers in a directory; an error of git's is the test's."""
    done = subprocess.run(
        ["git", "-C", str(where), *arguments], env=GIT_ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(where: Path, name: str, text: str) -> str:
    """Writes a file and commits everything; the commit."""
    (where / name).write_text(text)
    git(where, "add", "-A")
    git(where, "commit", "-q", "-m", name)
    return git(where, "rev-parse", "HEAD")
