"""Makes the two pictures of the README again: `make pictures`."""

import json
import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from browser.desk import Desk
from browser.stage import Stage
from fakes import FakeAgent

DOCS = Path(__file__).parents[2] / "docs"
BEFORE = """def login():
    check(request)
    return redirect(url_for("home"))
"""
AFTER = """def login():
    check(request)
    wanted = request.args.get("next", "")
    return redirect(own(wanted) or url_for("home"))
"""
ANSWER = """The redirect drops the query string because `login()` builds the address anew:

```python
return redirect(url_for("home"))  # loses ?next=
```

I pass `next` on and check that it stays on this host. The test covers both."""


def done(title: str, kind: str, **more: object) -> dict[str, object]:
    """The step of a tool call that went well."""
    call = {"toolCallId": title, "title": title, "kind": kind, "status": "completed", **more}
    return {"update": {"sessionUpdate": "tool_call", **call}}


def test_the_pictures_of_the_readme(browser: Browser, tmp_path: Path) -> None:
    """A session that came back, and a board with tasks in each column."""
    edit = {"type": "diff", "path": "src/login.py", "oldText": BEFORE, "newText": AFTER}
    steps = [
        {"thought": "The query string is lost somewhere in the redirect."},
        done("pytest tests/test_login.py", "execute"),
        done("src/login.py", "edit", content=[edit]),
        {"text": ANSWER},
    ]
    agent = FakeAgent(tmp_path / "agent", on={"session/prompt": {"steps": steps}})
    config = f"""
        [agents.fixer]
        display_name = "Fixer"
        command = {json.dumps(agent.command)}
        native_session_resume = true
    """
    window = browser.new_context(viewport={"width": 1100, "height": 560}, device_scale_factor=1.25)
    with Stage(tmp_path, config=config) as stage, window as context:
        fixed = stage.create("The redirect loses the query string", agent="fixer", title="Fix login redirect")
        dark = stage.create("plan", title="Add a dark mode")
        tab = Desk(context, stage).tab(fixed.path)
        tab.sees("The test covers both")
        expect(tab.page.locator(".task-list")).to_contain_text("Review 2")
        stage.call("task.complete", task_id=dark.task_id)
        stage.kill_and_start()
        tab.sees_moment("remembers this conversation")
        stage.create("remember apple", title="Write the release notes")
        stage.create("ask", title="Clean up the build folder")
        stage.create("slow 200", title="Migrate to version 3")
        tasks = re.compile(r"Needs you 1.*Working 1.*Review 2.*Done 1", re.DOTALL)
        expect(tab.page.locator(".task-list")).to_contain_text(tasks)
        tab.page.locator("details.tool").last.evaluate("element => (element.open = true)")
        tab.page.screenshot(path=DOCS / "session.png")
        tab.page.goto(stage.url)
        expect(tab.page.locator(".card")).to_have_count(5)
        tab.page.screenshot(path=DOCS / "board.png")
