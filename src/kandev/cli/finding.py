"""What `kandev doctor` found: one fact, how bad it is, how to mend it, and the mending itself where it is safe."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]
MARKS = {"ok": "✓", "note": "·", "warning": "!", "problem": "✗"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding. `mend` tells a person what to do; `fix` does it, and is there only where it cannot harm."""

    check: str
    level: Level
    text: str
    mend: str = ""
    fix: Callable[[], None] | None = None
    fixed: bool = False

    def mended(self) -> "Finding":
        """Do what `fix` does; the finding says what came of it."""
        if self.fix is None:
            return self
        try:
            self.fix()
        except Exception as error:  # noqa: BLE001 - whatever stops one mending must not stop the others
            return replace(self, text=f"{self.text} Mending it failed: {error}")
        return replace(self, fixed=True)

    def as_json(self) -> dict[str, object]:
        """Return what --json shows."""
        return {
            "check": self.check,
            "level": self.level,
            "text": self.text,
            "mend": self.mend,
            "can_fix": self.fix is not None,
            "fixed": self.fixed,
        }

    def lines(self) -> list[str]:
        """Return what a person reads."""
        first = f"{MARKS[self.level]} {self.check:<10} {self.text}"
        if self.fixed:
            return [first, f"{'':<13}mended"]
        hint = " (or: kandev doctor --fix)" if self.fix else ""
        return [first, *([f"{'':<13}{self.mend}{hint}"] if self.mend else [])]


def any_problem(findings: Iterable[Finding]) -> bool:
    """Return whether something keeps kandev from working."""
    return any(one.level == "problem" and not one.fixed for one in findings)
