"""Where an agent's process is started: what the placeholders of its command stand for there, and whose environment."""

import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_DEMO_AGENT = "{kandev}/demo/agent.py"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, or a container. `demo_agent` are the words that stand for the file of the demo agent behind Python.

    `own_environment`: agents get the environment that is there, and of the backend's only what their table names.
    """

    python: str
    demo_agent: tuple[str, ...]
    own_environment: bool = False

    def expand(self, words: Iterable[str]) -> list[str]:
        """Return the words of a command with `{python}` and `{kandev}` put in."""
        return [found for word in words for found in self._expand(word)]

    def _expand(self, word: str) -> tuple[str, ...]:
        if word == "{python}":
            return (self.python,)
        if word == _DEMO_AGENT:
            return self.demo_agent
        return (word.replace("{kandev}", _PACKAGE, 1) if word.startswith("{kandev}/") else word,)


HERE = Place(python=sys.executable, demo_agent=(f"{_PACKAGE}/demo/agent.py",))
"""The backend's own machine."""
