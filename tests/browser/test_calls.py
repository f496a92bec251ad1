"""Calls of the browser: when a task begins to need somebody, or waits for him, and the page is not looked at."""

from playwright.sync_api import expect

from browser.desk import Desk
from browser.stage import Stage
from browser.tab import Tab

WATCH = """
window.calls = [];
window.Notification = class extends Notification {
  constructor(title, options) {
    super(title, options);
    window.calls.push(`${title}: ${options.body}`);
  }
};
Object.defineProperty(document, "hidden", { get: () => window.isAway === true });
"""
"""Writes down what the browser is asked to show. A tab of a browser without a screen is always looked at, so it is told
when it is not."""


def want(tab: Tab) -> None:
    """Turns the calls on, as a person does."""
    tab.page.keyboard.press("?")
    tab.page.get_by_label("Call me when a task needs me and I am not looking").check()
    tab.page.keyboard.press("Escape")


def called(tab: Tab, *words: str) -> None:
    """Waits until exactly these calls were made."""
    tab.page.wait_for_function("count => window.calls.length >= count", arg=len(words))
    assert tab.page.evaluate("window.calls") == list(words)


def test_a_page_that_is_not_looked_at_calls(desk: Desk, stage: Stage) -> None:
    """For a question and for the end of a turn, once each, with the task's name; not while somebody looks."""
    desk.allow("notifications")
    desk.prepare(WATCH)
    tab = desk.tab()
    want(tab)
    stage.create("remember elm", title="Seen")
    expect(tab.page.locator(".card", has_text="Seen")).to_contain_text("Waiting for you")
    tab.page.evaluate("window.isAway = true")
    asked = stage.create("ask", title="Asked")
    called(tab, "Asked: Asks: Write the file")
    stage.create("remember oak", title="Done")
    called(tab, "Asked: Asks: Write the file", "Done: Waiting for you")
    stage.kill_and_start()
    asked.call("task.session.status")
    expect(tab.page.locator(".card", has_text="Asked")).to_contain_text("Was cut off")
    assert tab.page.evaluate("window.calls.filter((call) => call.startsWith('Done'))") == ["Done: Waiting for you"]


def test_a_browser_that_refuses_is_believed(desk: Desk, stage: Stage) -> None:
    """Without the right the setting does not stay on, and it is said why."""
    tab = desk.tab()
    tab.page.keyboard.press("?")
    box = tab.page.get_by_label("Call me when a task needs me and I am not looking")
    box.click()
    expect(tab.page.get_by_text("The browser does not allow it for this page.")).to_be_visible()
    expect(box).not_to_be_checked()
