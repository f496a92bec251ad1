"""What the agents do with each kind of prompt, and what a transcript must hold of it then.

A prompt is a line "KIND #NUMBER". Every chunk is numbered, so that a hole, a repetition and a wrong order all show.
A mark stands in the agent's log behind each group of chunks: once it is there, the agent has written the group.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

PROMPT: Final = re.compile(r"(?m)^([a-z]+) #(\d+)$")
BIG_CHARS: Final = 300_000

Steps = Sequence[Mapping[str, Any]]

GROUPS: Final[Mapping[str, Mapping[str, tuple[int, float]]]] = {
    "short": {"a": (3, 0)},
    "slow": dict.fromkeys("abcdef", (5, 0.02)),
    "flood": {"a": (1500, 0), "b": (1500, 0)},
    "tools": dict.fromkeys("abcdef", (5, 0.005)),
    "ask": {"a": (5, 0), "b": (5, 0)},
    "spawn": {"a": (5, 0), "b": (10, 0.02)},
    "fail": {"a": (5, 0.01)},
    "die": {"a": (200, 0)},
    "big": {"a": (5, 0), "b": (5, 0)},
}
"""For each kind of prompt its groups of chunks: how many, and the pause behind each in seconds."""

BETWEEN: Final[Mapping[str, Steps]] = {
    "tools": ({"tool": "make"},),
    "ask": ({"permission": "edit"},),
    "spawn": ({"spawn": 300, "setsid": True, "ignore_sigterm": True, "hold_stdout": True},),
    "big": ({"huge": BIG_CHARS},),
}
"""What comes between two groups."""

ANSWERS: Final = ("permission: allow_once", "permission: reject_once")


def rules() -> list[dict[str, Any]]:
    """Return the rules of `session/prompt` for a fake agent."""
    found = []
    for kind in GROUPS:
        rule: dict[str, Any] = {"match": rf"(?m)^{kind} #\d+$", "steps": _steps(kind)}
        if kind == "fail":
            rule["error"] = {"code": -32000 - 99, "message": "The model is overloaded"}
        found.append(rule)
    return found


def _steps(kind: str) -> list[Mapping[str, Any]]:
    steps: list[Mapping[str, Any]] = []
    for name, (count, delay) in GROUPS[kind].items():
        if steps:
            steps += BETWEEN.get(kind, ())
        steps += ({"chunks": count, "text": f"{name}{{n}} ", "delay": delay}, {"mark": name})
    if kind == "die":
        steps.append({"die": 3})
    return steps


def group_text(kind: str, name: str) -> str:
    """Return the text of one group."""
    return "".join(f"{name}{number} " for number in range(1, GROUPS[kind][name][0] + 1))


def whole_texts(kind: str) -> list[str]:
    """Return what an agent may have said when it is through; more than one where a person decides."""
    groups = [group_text(kind, name) for name in GROUPS[kind]]
    if kind == "ask":
        return [answer.join(groups) for answer in ANSWERS]
    return [("x" * BIG_CHARS if kind == "big" else "").join(groups)]


def kind_of(prompt: str) -> str:
    """Return the kind of a prompt."""
    found = PROMPT.fullmatch(prompt)
    assert found is not None, prompt
    return found[1]


def text_problem(prompt: str, said: str, *, whole: bool, marks: Sequence[str]) -> str:
    """Return what is wrong with the text of a turn; '' when nothing is.

    `whole`: the turn ended by itself, so nothing may be missing. `marks`: the groups that must be there at least.
    """
    kind = kind_of(prompt)
    texts = whole_texts(kind)
    if whole and said not in texts:
        return f"incomplete or wrong: {difference(said, texts)}"
    if not any(text.startswith(said) for text in texts):
        return f"not the beginning of what was said: {difference(said, texts)}"
    missing = [name for name in marks if group_text(kind, name) not in said]
    return f"group {missing[0]} was written by the agent and is not whole: it ends {said[-60:]!r}" if missing else ""


def difference(said: str, texts: Sequence[str]) -> str:
    """Return where a text leaves the one of `texts` that it follows longest, with some characters of both."""
    at, text = max((_common(said, text), text) for text in texts)
    begin = max(at - 30, 0)
    return f"at {at} of {len(text)}: {said[begin : at + 40]!r} for {text[begin : at + 40]!r} ({len(said)} characters)"


def _common(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
