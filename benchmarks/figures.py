"""A measured figure beside its baseline and its bar, and the table of them."""

import statistics
from collections.abc import Iterable, Sequence

import msgspec


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure has to reach. `higher` says that more is better."""

    floor: float
    stretch: float
    higher: bool = False

    def verdict(self, value: float) -> str:
        """Return `stretch`, `floor` or `missed`."""
        reached = [name for name in ("stretch", "floor") if self._reaches(value, getattr(self, name))]
        return reached[0] if reached else "missed"

    def _reaches(self, value: float, bound: float) -> bool:
        return value >= bound if self.higher else value <= bound


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. `value` is the median of the rounds, in `unit`; `low` and `high` are their range.

    Without a `bar` it is for comparison only. `checked` says what was compared while it was measured, so that a fast
    loss is no good figure. `details` are further numbers, by a name that holds their unit.
    """

    what: str
    unit: str
    value: float
    low: float
    high: float
    bar: Bar | None
    baseline: str
    checked: str
    details: dict[str, float] = {}

    @property
    def verdict(self) -> str:
        """How far the value reaches; '' where there is no bar."""
        return self.bar.verdict(self.value) if self.bar else ""


def figure(
    what: str,
    unit: str,
    values: Sequence[float],
    bar: Bar | None,
    *,
    baseline: str,
    checked: str,
    details: dict[str, float] | None = None,
) -> Figure:
    """Return the figure of the values of several rounds."""
    return Figure(
        what=what,
        unit=unit,
        value=statistics.median(values),
        low=min(values),
        high=max(values),
        bar=bar,
        baseline=baseline,
        checked=checked,
        details=details or {},
    )


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value that `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each named number over the rounds."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def number(value: float) -> str:
    """Return a number with three digits that count."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.01 or not value else f"{value:.4f}"


def table(figures: Sequence[Figure]) -> str:
    """Return the table as text, in columns that also read as Markdown."""
    head = ["what", "unit", "measured", "range", "baseline, same rounds", "floor", "stretch", "reached"]
    rows = [
        [
            one.what,
            one.unit,
            number(one.value),
            f"{number(one.low)}..{number(one.high)}",
            one.baseline,
            number(one.bar.floor) if one.bar else "",
            number(one.bar.stretch) if one.bar else "",
            one.verdict,
        ]
        for one in figures
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in lines
    )


def notes(figures: Sequence[Figure]) -> str:
    """Return, for each figure, what was checked and the further numbers."""
    lines = []
    for one in figures:
        lines.append(f"{one.what}: {one.checked}")
        lines += [f"    {name}: {number(value)}" for name, value in one.details.items()]
    return "\n".join(lines)
