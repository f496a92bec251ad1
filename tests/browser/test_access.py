"""For everybody: axe-core finds nothing wrong, in light and dark, on a desk and on a phone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ViewportSize, expect

from browser.desk import Desk
from browser.stage import Stage
from browser.tab import Tab

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
