"""The board: tasks where they stand, live; made, found, completed and deleted."""

import re

from playwright.sync_api import Page, expect

from browser.desk import Desk
from browser.long import lengthen
from browser.stage import Stage

NOT_READY = {
    "docker": "set image in [runtimes.docker]",
    "remote_docker": "set host in [runtimes.remote_docker]",
    "sprites": "SPRITES_TOKEN",
}
"""What stands in the way of a runtime where nothing was set up."""


def column(page: Page, name: str) -> str:
    """The selector of a column."""
    return f".column:has(h2:text('{name}'))"


def test_a_task_moves_through_the_columns_while_one_looks(desk: Desk, stage: Stage) -> None:
    """Made elsewhere it appears by itself, works, waits for review, and is done."""
    board = desk.tab()
    expect(board.page.get_by_text("No tasks yet")).to_be_visible()
    session = stage.create("slow 20", title="Count to twenty")
    expect(board.page.locator(column(board.page, "Working"))).to_contain_text("Count to twenty")
    expect(board.page.locator(column(board.page, "Review"))).to_contain_text("Count to twenty")
    tab = desk.tab(session.path)
    tab.page.get_by_label("More").click()
    tab.press("Complete the task…")
    tab.press("Complete")
    expect(board.page.locator(column(board.page, "Done"))).to_contain_text("Count to twenty")
    board.shot("board")


def test_titles_are_filtered_and_transcripts_searched(desk: Desk, stage: Stage) -> None:
    """The field narrows the columns to titles, and lists where else the text was said."""
    first = stage.create("remember quince", title="Fruit")
    stage.create("remember oak", title="Tree")
    desk.tab(first.path).sees("I will remember the word quince")
    board = desk.tab()
    board.page.keyboard.press("/")
    board.page.keyboard.type('"quin')
    hits = board.page.locator(".hits li")
    expect(hits.first.locator("mark")).to_have_text("quince")
    expect(hits.first).to_contain_text("Fruit")
    expect(board.page.locator(".card")).to_have_count(0)
    board.shot("search")
    hits.first.get_by_role("link").click()
    board.page.wait_for_url(re.compile(first.path))
    expect(board.page.locator(".is-found")).to_contain_text("quince")


def test_a_hit_opens_the_session_at_the_message(desk: Desk, stage: Stage) -> None:
    """Far above what is loaded at first: it is in view, marked, and stays there; the end is one button away."""
    session = stage.create("remember medlar", title="Long")
    desk.tab(session.path).sees("I will remember the word medlar")
    lengthen(stage, session, 1500)
    tab = desk.tab()
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("medlar")
    tab.page.locator(".hits a", has_text="remember medlar").last.click()
    found = tab.page.locator(".is-found")
    expect(found).to_contain_text("medlar")
    expect(found).to_be_in_viewport()
    tab.send("what is the word?")
    tab.page.get_by_role("button", name="New below").wait_for()
    expect(found).to_be_in_viewport()
    tab.press("New below ↓")
    tab.sees("The word is medlar")


def test_a_task_is_reached_stopped_completed_and_deleted(desk: Desk, stage: Stage) -> None:
    """The keys j and Enter open it, Stop ends it for now, Start again brings it back, Delete asks first."""
    stage.create("remember elm", title="Elm")
    tab = desk.tab()
    expect(tab.page.locator(".card")).to_have_count(1)
    tab.page.keyboard.press("j")
    tab.page.keyboard.press("Enter")
    tab.sees("I will remember the word elm")
    tab.page.get_by_label("More").click()
    tab.press("Stop the session")
    tab.sees_moment("The session was stopped")
    tab.press("Start again")
    tab.answered("what is the word?", "The word is elm")
    tab.page.get_by_label("More").click()
    tab.press("Delete…")
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(tab.page.get_by_text("No tasks yet")).to_be_visible()


def test_a_task_is_renamed_and_gets_another_session(desk: Desk, stage: Stage) -> None:
    """The new session begins with what is known in the first; the field in the head goes from one to the other."""
    session = stage.create("remember yew", title="Yew")
    tab = desk.tab(session.path)
    tab.sees("I will remember the word yew")
    tab.page.get_by_label("More").click()
    tab.press("Rename…")
    tab.page.get_by_label("Title").fill("Old tree")
    tab.press("Rename")
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Old tree")
    tab.page.get_by_label("More").click()
    tab.press("Another session from here")
    tab.sees_moment("This session was not started")
    tab.press("Start")
    tab.answered("what is the word?", "The word is yew")
    tab.page.get_by_label("Session").select_option(session.id)
    tab.sees("I will remember the word yew")


def test_a_browser_without_the_token_is_let_in_by_it(desk: Desk, stage: Stage) -> None:
    """The form asks for the token, opens the page that was wanted, and leaves no token in the address."""
    session = stage.create("remember ash")
    page = desk.blank()
    page.goto(f"{stage.url}{session.path}")
    page.get_by_label("Token").fill(stage.backend.token)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("log")).to_contain_text("I will remember the word ash")
    assert "token" not in page.url


def test_what_was_found_is_reached_by_keys_and_is_there_again(desk: Desk, stage: Stage) -> None:
    """Arrow down goes to the first, j on, Enter opens it; back on the board the text stands; Escape forgets it."""
    session = stage.create("remember sorb", title="Fruit")
    desk.tab(session.path).sees("I will remember the word sorb")
    tab = desk.tab()
    field = tab.page.get_by_label("Search titles and transcripts")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("sorb")
    expect(tab.page.locator(".hits li")).to_have_count(2)
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("j")
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator(".is-found")).to_contain_text("sorb")
    tab.page.keyboard.press("Escape")
    expect(field).to_have_value("sorb")
    expect(tab.page.locator(".card")).to_have_count(0)
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("x")
    expect(tab.page.get_by_text("Nothing in transcripts.")).to_be_visible()
    tab.page.keyboard.press("Escape")
    expect(field).to_have_value("")
    expect(tab.page.locator(".card")).to_have_count(1)


def test_where_an_agent_can_run_is_offered_with_why_not(desk: Desk, stage: Stage) -> None:
    """Every runtime is there; one that is not set up says what it needs, and nothing can be created on it."""
    tab = desk.tab()
    tab.page.keyboard.press("n")
    tab.page.get_by_label("What is to be done").fill("remember fir")
    tab.page.get_by_label("Agent").select_option("demo")
    choice = tab.page.get_by_label("Where it runs")
    create = tab.page.get_by_role("button", name="Create and start")
    for name, words in NOT_READY.items():
        choice.select_option(label=f"{name} · not ready")
        expect(tab.page.get_by_role("dialog")).to_contain_text(words)
        expect(create).to_be_disabled()
    choice.select_option("detached")
    expect(tab.page.get_by_role("dialog")).to_contain_text("When the backend restarts: agents go on")
    tab.shot("runtimes")
    choice.select_option("standalone")
    create.click()
    tab.sees("I will remember the word fir")
    expect(tab.page.locator(".facts")).to_contain_text("Demo · standalone")
