"""Questions of the agent: asked in every tab, answered once, and never alive after the agent is gone."""

from playwright.sync_api import expect

from browser.desk import Desk
from browser.stage import Stage


def test_perm_1_a_question_stands_in_every_tab_and_is_answered_once(desk: Desk, stage: Stage) -> None:
    """The board names it, the focus stays where it was, and the answer of one tab closes it in the other."""
    session = stage.create("ask")
    first, second, board = desk.tab(session.path), desk.tab(session.path), desk.tab()
    for tab in (first, second):
        expect(tab.question).to_contain_text("Write the file")
    expect(board.page.locator(".column").first).to_contain_text("Asks: Write the file")
    assert not first.question.evaluate("element => element.contains(document.activeElement)")
    first.shot("permission")
    board.shot("board-needs")
    first.press("Allow once")
    for tab in (first, second):
        expect(tab.question).to_have_count(0)
        tab.sees("Allow once")
    assert session.status()["pending_permissions"] == 0


def test_keys_answer_only_while_the_question_has_the_focus(desk: Desk, stage: Stage) -> None:
    """A `d` elsewhere is nothing; inside the question it rejects."""
    session = stage.create("ask")
    tab = desk.tab(session.path)
    expect(tab.question).to_be_visible()
    tab.transcript.press("d")
    tab.transcript.press("a")
    assert session.status()["pending_permissions"] == 1
    tab.page.get_by_role("button", name="Allow once").focus()
    tab.page.keyboard.press("d")
    expect(tab.question).to_have_count(0)
    tab.sees("Reject")


def test_what_is_typed_at_once_belongs_into_the_dialog(desk: Desk) -> None:
    """The dialog has the focus before the key that follows the one which opens it."""
    tab = desk.tab()
    expect(tab.page.get_by_text("No tasks yet")).to_be_visible()
    assert (
        tab.page.evaluate(
            """() => {
            document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "n", bubbles: true }));
            return new Promise((tell) => setTimeout(() => tell(document.activeElement.tagName)));
        }"""
        )
        == "TEXTAREA"
    )


def test_everything_is_reached_by_keys(desk: Desk, stage: Stage) -> None:
    """A task is made, its question is gone to and answered, a message is written, and the board is there again."""
    tab = desk.tab()
    keys = tab.page.keyboard
    expect(tab.page.get_by_text("No tasks yet")).to_be_visible()
    keys.press("n")
    keys.type("ask")
    keys.press("Tab")
    keys.type("Demo")
    expect(tab.page.get_by_label("Agent")).to_have_value("demo")
    keys.press("Control+Enter")
    expect(tab.question).to_be_visible()
    keys.press("q")
    expect(tab.question).to_be_focused()
    keys.press("a")
    tab.sees("You chose: allow")
    keys.press("i")
    keys.type("remember rowan")
    keys.press("Enter")
    tab.sees("I will remember the word rowan")
    keys.press("Escape")
    keys.press("Escape")
    expect(tab.page.locator(".card")).to_contain_text("Waiting for you")


def test_perm_2_a_question_whose_agent_is_gone_has_no_buttons(desk: Desk, stage: Stage) -> None:
    """After a kill it is shown as one that can no longer be answered, in the open tab too; going on works."""
    session = stage.create("ask")
    tab = desk.tab(session.path)
    expect(tab.question).to_be_visible()
    stage.kill_and_start()
    tab.sees("can no longer be answered")
    expect(tab.question).to_have_count(0)
    tab.sees_moment("The turn was cut off")
    tab.press("Go on")
    tab.sees("Please go on where you were cut off")
    tab.sees_no_moment()
