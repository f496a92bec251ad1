"""Permission requests in a terminal: the numbered options, what a typed answer means, and the answers of a policy."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from kandev.cli.plain import one_line, strip_controls
from kandev.errors import Invalid

Policy = Literal["ask", "deny", "allow-once"]
_KIND = {"deny": "reject_once", "allow-once": "allow_once"}


def question_lines(request: Mapping[str, Any]) -> list[str]:
    """Return what is shown for a request: what the agent wants to do, and its options from 1."""
    tool = request.get("tool_call") or {}
    title = one_line(str(tool.get("title") or tool.get("kind") or "go on"), 400)
    lines = [f"The agent asks for permission: {title}"]
    lines += [f"    {line}" for line in _input_lines(tool.get("rawInput"))]
    for number, option in enumerate(request.get("options") or [], start=1):
        lines.append(f"  {number}  {one_line(_name(option), 200)}")
    return lines


def choose(request: Mapping[str, Any], typed: str) -> str | None:
    """Return the id of the option that `typed` names: its number, id, kind or name; None for `cancel`.

    Raises Invalid, which lists the options.
    """
    options: Sequence[Mapping[str, Any]] = request.get("options") or []
    answer = typed.strip()
    for option in options:
        if answer == _id(option):
            return _id(option)
    if answer.isdecimal() and 1 <= int(answer) <= len(options):
        return _id(options[int(answer) - 1])
    wanted = answer.casefold()
    matches = [option for option in options if wanted in {_name(option).casefold(), str(option.get("kind", ""))}]
    if len(matches) == 1:
        return _id(matches[0])
    if wanted == "cancel":
        return None
    known = ", ".join(f"{number} ({one_line(_name(option))})" for number, option in enumerate(options, start=1))
    raise Invalid(f"{one_line(typed)!r} is none of the options: {known}, or cancel.", field="option_id")


def policy_choice(request: Mapping[str, Any], policy: Policy) -> tuple[bool, str | None]:
    """Return (whether the policy can answer, the option's id or None to cancel the request).

    `deny` takes "reject once", and cancels a request without such an option. `allow-once` never takes an option that
    allows more than once.
    """
    kind = _KIND.get(policy)
    for option in request.get("options") or []:
        if kind and option.get("kind") == kind:
            return True, _id(option)
    return policy == "deny", None


def _id(option: Mapping[str, Any]) -> str:
    return str(option["option_id"])


def _name(option: Mapping[str, Any]) -> str:
    return str(option.get("name") or _id(option))


def _input_lines(value: Any) -> list[str]:
    """Return what the tool would be called with, in a few lines: a person must see what he allows."""
    if not isinstance(value, Mapping):
        return []
    shown: list[str] = []
    for name, content in value.items():
        text = content if isinstance(content, str) else repr(content)
        first, *more = strip_controls(text).splitlines() or [""]
        shown.append(f"{one_line(str(name), 40)}: {first[:300]}" + (f" (and {len(more)} more lines)" if more else ""))
    return shown[:12]
