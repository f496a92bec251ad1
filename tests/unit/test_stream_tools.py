"""Tools of Claude Code and Amp in the words of ACP: what a person sees of a call, and what an answer needs of it."""

from typing import Any

import pytest

from kandev.protocols.answers import auto_permission, text_of, tool_output
from kandev.protocols.answers import permission as acp_permission
from kandev.protocols.stream_permissions import permission, permission_answer
from kandev.protocols.stream_tools import plan, tool_call, tool_result


def use(name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "t-1", "name": name, "input": given}


@pytest.mark.parametrize(
    ("name", "given", "title", "kind"),
    [
        ("Bash", {"command": "ls -l"}, "ls -l", "execute"),
        ("Bash", {"cmd": "ls"}, "ls", "execute"),
        ("Read", {"file_path": "/a"}, "Read /a", "read"),
        ("Grep", {"pattern": "x.*y"}, "Grep x.*y", "search"),
        ("WebFetch", {"url": "http://127.0.0.1/"}, "WebFetch http://127.0.0.1/", "fetch"),
        ("Task", {"description": "look", "prompt": "long"}, "Task look", "think"),
        ("edit_file", {"path": "/a", "old_str": "a", "new_str": "b"}, "edit_file /a", "edit"),
        ("ExitPlanMode", {"plan": "long"}, "ExitPlanMode", "switch_mode"),
        ("AskUserQuestion", {"questions": [{"question": "Which one?"}]}, "Which one?", "other"),
        ("mcp__issues__list", {}, "mcp__issues__list", "other"),
        ("Bash", {"command": "x" * 1000}, "x" * 300, "execute"),
        ("", {}, "tool", "other"),
    ],
)
def test_a_call_has_a_title_and_a_kind(name: str, given: dict[str, Any], title: str, kind: str) -> None:
    """The command itself, or the tool and what it is about; policies go by the kind."""
    body = tool_call(use(name, **given))
    assert (body["title"], body["kind"]) == (title, kind)


@pytest.mark.parametrize(
    ("name", "given", "changes"),
    [
        ("Write", {"file_path": "/a", "content": "new"}, [(None, "new")]),
        ("Edit", {"file_path": "/a", "old_string": "old", "new_string": ""}, [("old", "")]),
        (
            "MultiEdit",
            {"file_path": "/a", "edits": [{"old_string": "1", "new_string": "2"}, {"old_string": "3"}]},
            [("1", "2")],
        ),
        ("edit_file", {"path": "/a", "old_str": "a", "new_str": "b"}, [("a", "b")]),
        ("Read", {"file_path": "/a", "content": "no change"}, []),
        ("Edit", {"new_string": "nowhere"}, []),
    ],
)
def test_an_edit_shows_its_difference(name: str, given: dict[str, Any], changes: list[tuple[str | None, str]]) -> None:
    """Of each place that it changes; the transcript names the file."""
    found = tool_call(use(name, **given)).get("content", [])
    assert [(one["oldText"], one["newText"]) for one in found] == changes
    assert all(text_of(one) == "[diff: /a]" for one in found)


def test_a_result_is_text_whatever_it_is_made_of() -> None:
    """Parts are joined, an image is only named; where a difference is shown, the words stand beside it."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    block = {"tool_use_id": "t-1", "content": [{"type": "text", "text": "done"}, image]}
    body = tool_result(block, keep_content=False)
    assert (body["status"], tool_output(body)) == ("completed", "done\n[image: image/png]")
    assert "AAAA" not in str(body)
    kept = tool_result({**block, "is_error": True}, keep_content=True)
    assert (kept["status"], "content" in kept, tool_output(kept)) == ("failed", False, "done\n[image]")
    assert tool_output(tool_result({"tool_use_id": "t-1"}, keep_content=False)) == ""


def test_a_list_of_steps_is_the_plan() -> None:
    """With ACP's states; one that it does not know waits."""
    todos = [
        {"content": "one", "status": "completed", "activeForm": "Doing one"},
        {"content": "two", "status": "half done", "priority": "high"},
    ]
    assert plan(use("TodoWrite", todos=todos)) == [
        {"content": "one", "status": "completed", "priority": "medium"},
        {"content": "two", "status": "pending", "priority": "high"},
    ]
    assert plan(use("Bash", todos=todos)) == []


def test_what_always_means_is_said() -> None:
    """By the rules and modes that the agent suggests; without a suggestion there is no "always"."""
    rules = [{"toolName": "Bash", "ruleContent": "ls *"}, {"toolName": "Read"}]
    suggestions = [{"type": "addRules", "rules": rules}, {"type": "setMode", "mode": "acceptEdits"}]
    request = {"tool_name": "Bash", "input": {"command": "ls"}, "tool_use_id": "t-1"}
    asked = permission({**request, "permission_suggestions": suggestions})
    assert [one["name"] for one in asked["options"]] == [
        "Allow once",
        "Always allow: Bash(ls *), Read, mode acceptEdits",
        "Deny",
    ]
    assert asked["toolCall"]["suggestions"] == suggestions
    assert [one["optionId"] for one in permission(request)["options"]] == ["allow_once", "deny"]
    other = permission({**request, "permission_suggestions": [{"type": "addDirectories", "directories": ["/a"]}]})
    assert other["options"][1]["name"] == "Always allow: directory /a"
    unsaid = permission({**request, "permission_suggestions": [{"type": "something new"}]})
    assert unsaid["options"][1]["name"] == "Always allow"


FRUIT = {"question": "Which one?", "options": [{"label": "Apple"}, {"label": "Pear", "description": "a fruit"}, {}]}


def test_a_question_is_answered_by_its_own_choices() -> None:
    """Each answer is an option, and goes back under the question's own words; no policy chooses one."""
    asked = permission({"tool_name": "AskUserQuestion", "input": {"questions": [FRUIT]}, "tool_use_id": "t-1"})
    assert (asked["toolCall"]["title"], [one["name"] for one in asked["options"]]) == (
        "Which one?",
        ["Apple", "Pear", "Do not answer"],
    )
    read = acp_permission(asked)
    assert [auto_permission(read.options, read.kind, policy) for policy in ("allow-once", ["other"], "ask")] == [
        None
    ] * 3
    assert auto_permission(read.options, read.kind, "deny") == "deny"
    answer = permission_answer(asked["options"][1]["optionId"], asked["toolCall"])
    assert answer == {
        "behavior": "allow",
        "updatedInput": {"questions": [FRUIT], "answers": {"Which one?": "Pear"}},
    }
    assert permission_answer("answer 7", asked["toolCall"])["updatedInput"]["answers"] == {}
    assert permission_answer("deny", asked["toolCall"])["behavior"] == "deny"


@pytest.mark.parametrize("questions", [[], [FRUIT, FRUIT], [{"options": [{"label": "a"}]}], ["no"], None])
def test_other_questions_are_allowed_or_denied(questions: Any) -> None:
    """Several at once, or such without words: Claude Code then hears that they were not answered."""
    asked = permission({"tool_name": "AskUserQuestion", "input": {"questions": questions}})
    assert [one["optionId"] for one in asked["options"]] == ["allow_once", "deny"]
