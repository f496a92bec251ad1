"""Questions of Claude Code to a person: may this tool be used, and, by the same request, which answer is it to be.

They are told as ACP's permission requests. All that an answer needs is in the tool call, which is stored with the
request, so an answer can also be given after a restart.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kandev.protocols.stream_tools import TITLE_CHARACTERS, items, kind, mapping, text, title

ALLOW_ONCE, ALLOW_ALWAYS, DENY = "allow_once", "allow_always", "deny"
ANSWER = "answer "
"""Begins the id of an option that answers the agent's question, and not whether it may ask it; a number follows."""
QUESTION_TOOL = "AskUserQuestion"


def permission(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of ACP's session/request_permission from a can_use_tool request."""
    name, given = text(request.get("tool_name")) or "tool", mapping(request.get("input"))
    suggestions = items(request.get("permission_suggestions"))
    call = {
        "toolCallId": text(request.get("tool_use_id")),
        "title": title(name, given),
        "kind": kind(name),
        "rawInput": given,
        "suggestions": suggestions,
    }
    answers = _answers(given) if name == QUESTION_TOOL else []
    return {"toolCall": call, "options": answers or _options(suggestions)}


def _options(suggestions: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    options = [{"optionId": ALLOW_ONCE, "name": "Allow once", "kind": "allow_once"}]
    if suggestions:
        options.append({"optionId": ALLOW_ALWAYS, "name": _always(suggestions), "kind": "allow_always"})
    return [*options, {"optionId": DENY, "name": "Deny", "kind": "reject_once"}]


def _answers(given: Mapping[str, Any]) -> list[dict[str, str]]:
    """The answers to one question. Their kind is none of ACP's, so that no policy ever chooses one.

    Several questions at once cannot be shown as one choice: those are only allowed or denied, and allowed unanswered.
    """
    labels = _labels(given)
    if not labels:
        return []
    answers = [{"optionId": f"{ANSWER}{n}", "name": label, "kind": "answer"} for n, label in enumerate(labels)]
    return [*answers, {"optionId": DENY, "name": "Do not answer", "kind": "reject_once"}]


def _labels(given: Mapping[str, Any]) -> list[str]:
    questions = items(given.get("questions"))
    if len(questions) != 1 or not text(questions[0].get("question")):
        return []
    return [text(option.get("label")) for option in items(questions[0].get("options")) if text(option.get("label"))]


def permission_answer(option_id: str | None, tool_call: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is answered; None: the turn is cancelled. "Always" hands back what the agent suggested to store."""
    if option_id is None:
        return {"behavior": "deny", "message": "The turn was cancelled.", "interrupt": True}
    if option_id == DENY:
        return {"behavior": "deny", "message": "The user refused this tool call."}
    given = mapping(tool_call.get("rawInput"))
    if option_id == ALLOW_ALWAYS:
        suggestions = items(tool_call.get("suggestions"))
        return {"behavior": "allow", "updatedInput": given, "updatedPermissions": suggestions}
    if option_id.startswith(ANSWER):
        given = {**given, "answers": _answered(given, option_id.removeprefix(ANSWER))}
    return {"behavior": "allow", "updatedInput": given}


def _answered(given: Mapping[str, Any], number: str) -> dict[str, str]:
    labels = dict(zip(map(str, range(len(_labels(given)))), _labels(given), strict=True))
    return {text(items(given["questions"])[0]["question"]): labels[number]} if number in labels else {}


def _always(suggestions: Sequence[Mapping[str, Any]]) -> str:
    what: list[str] = []
    for suggestion in suggestions:
        what += map(_rule, items(suggestion.get("rules")))
        directories = suggestion.get("directories")
        what += (
            [f"directory {one}" for one in directories if isinstance(one, str)] if isinstance(directories, list) else []
        )
        what += [f"mode {suggestion['mode']}"] if text(suggestion.get("mode")) else []
    return f"Always allow: {', '.join(what)}"[:TITLE_CHARACTERS] if what else "Always allow"


def _rule(rule: Mapping[str, Any]) -> str:
    content = text(rule.get("ruleContent"))
    return f"{text(rule.get('toolName'))}({content})" if content else text(rule.get("toolName"))
