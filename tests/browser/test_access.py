"""For everybody: axe-core finds nothing wrong, in light and dark, on a desk and on a phone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ViewportSize, expect

from browser.desk import Desk
from browser.stage import Stage
from browser.tab import Tab
from conversation import Cast

DIALOGS = {
    "Rename…": "Rename the task",
    "Complete the task…": "Complete this task?",
    "Delete…": "Delete this task?",
    "Log": "Log",
}
LONG_WORD = "pneumonoultramicroscopicsilicovolcanoconiosis" * 6
AXE = Path(__file__).parents[2] / "page/node_modules/axe-core/axe.min.js"
SIZES: dict[str, ViewportSize] = {"desk": {"width": 1200, "height": 760}, "phone": {"width": 390, "height": 780}}

RICH = """## Plan

1. Read `login.py`, **then** test it
2. see [the docs](https://example.invalid/docs)

> quoted

```python
def f(x):  # a comment
    return "text", 12
```

| file | lines |
|---|---|
| a.py | 12 |
"""


def violations(tab: Tab) -> list[Any]:
    """What axe-core has to say against the page as it is now: rule, and the first elements."""
    tab.page.evaluate(AXE.read_text())
    found = tab.page.evaluate("axe.run()")["violations"]
    return [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found]


@pytest.fixture(params=[(size, scheme) for size in SIZES for scheme in ("light", "dark")], ids="-".join)
def desk(request: pytest.FixtureRequest, browser: Browser, stage: Stage) -> Iterator[Desk]:
    """A browser whose window has a size and a colour scheme."""
    size, scheme = request.param
    # Without motion: text that is still appearing has less contrast than what stays.
    with browser.new_context(viewport=SIZES[size], color_scheme=scheme, reduced_motion="reduce") as context:
        yield Desk(context, stage)


def test_axe_finds_nothing(desk: Desk, stage: Stage, request: pytest.FixtureRequest) -> None:
    """On the board, in the dialogs, and on a session with everything in it that agents send."""
    name = "-".join(request.node.callspec.params["desk"])
    session = stage.create("tool grep", title="A task with a rather long title that has to be cut somewhere")
    asking = stage.create("ask")
    tab = desk.tab(session.path)
    tab.sees("I used the tool grep")
    for text in ("plan", RICH, "slow 300"):
        tab.send(text)
    tab.sees("step 3")
    tab.send("one more")
    expect(tab.waiting).to_have_count(1)
    tab.transcript.locator("details").first.evaluate("element => (element.open = true)")
    assert violations(tab) == []
    tab.shot(f"session-{name}")
    question = desk.tab(asking.path)
    expect(question.question).to_be_visible()
    assert violations(question) == []
    board = desk.tab()
    expect(board.page.locator(".card")).to_have_count(2)
    assert violations(board) == []
    board.shot(f"board-{name}")
    for key, dialog in (("n", "New task"), ("?", "Keys and settings")):
        board.page.keyboard.press(key)
        expect(board.page.get_by_role("dialog", name=dialog)).to_be_visible()
        assert violations(board) == []
        board.shot(f"{dialog.split()[0].lower()}-{name}")
        board.page.keyboard.press("Escape")
        expect(board.page.get_by_role("dialog")).to_have_count(0)


def test_axe_finds_nothing_in_what_a_session_opens(desk: Desk, stage: Stage, cast: Cast) -> None:
    """In its menu, in each dialog, in the line that says how it came back, and in what was found by a search."""
    session = stage.create("one", agent=cast.take("history")[0], title="Found")
    first = desk.tab(session.path)
    first.sees("heard: one")
    first.close()
    stage.kill_and_start()
    tab = desk.tab(session.path)
    tab.sees_moment("will get a summary")
    tab.press("See the summary")
    expect(tab.page.get_by_role("dialog", name="Summary for the agent")).to_contain_text("heard: one")
    assert violations(tab) == []
    tab.page.keyboard.press("Escape")
    for item, dialog in DIALOGS.items():
        tab.page.get_by_label("More").click()
        assert violations(tab) == []
        tab.press(item)
        expect(tab.page.get_by_role("dialog", name=dialog)).to_be_visible()
        assert violations(tab) == []
        tab.page.keyboard.press("Escape")
    board = desk.tab()
    board.page.keyboard.press("/")
    board.page.keyboard.type("heard")
    expect(board.page.locator(".hits li")).to_have_count(1)
    assert violations(board) == []


@pytest.mark.parametrize("desk", [(size, "light") for size in SIZES], ids="-".join, indirect=True)
def test_nothing_is_wider_than_the_window(desk: Desk, stage: Stage, cast: Cast) -> None:
    """Long words, lines and names are broken, cut or scrolled in their own place; each button can be reached."""
    plan = {"sessionUpdate": "plan", "entries": [{"content": LONG_WORD, "status": "pending"}]}
    diff = {"type": "diff", "path": LONG_WORD, "oldText": "a", "newText": LONG_WORD}
    call = {"sessionUpdate": "tool_call", "toolCallId": "t", "title": LONG_WORD, "kind": "edit", "content": [diff]}
    table = f"| a | b |\n|---|---|\n| {LONG_WORD} | x |"
    told = [{"thought": LONG_WORD}, {"update": call}, {"update": plan}, {"text": f"{LONG_WORD}\n\n{table}"}]
    name, _ = cast.take("native", on={"session/prompt": {"steps": told}})
    session = stage.create(LONG_WORD, agent=name, title=LONG_WORD)
    tab = desk.tab(session.path)
    expect(tab.transcript.locator("table")).to_be_visible()
    for summary in tab.transcript.locator("summary").all():
        summary.click()
    assert tab.transcript.evaluate("one => one.scrollWidth - one.clientWidth") == 0
    board = desk.tab()
    expect(board.page.locator(".card")).to_be_visible()
    for place in (tab, board):
        assert place.page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    tab.page.get_by_label("More").click()
    expect(tab.page.get_by_role("button", name="Delete…")).to_be_in_viewport(ratio=1)
