"""What the page is for: a session is made, prompted, its backend killed, and it is there again."""

import re

from playwright.sync_api import expect

from browser.desk import Desk
from browser.stage import Stage


def test_ui_1_an_open_page_comes_back_by_itself_after_a_kill(desk: Desk, stage: Stage) -> None:
    """Create, prompt, kill -9, start: without a reload the page resumes the session, which answers and remembers."""
    tab = desk.tab()
    tab.page.keyboard.press("n")
    tab.page.get_by_label("What is to be done").fill("remember apple")
    tab.page.get_by_label("Agent").select_option("demo")
    tab.press("Create and start")
    tab.page.wait_for_url(re.compile(r"/tasks/\w+/sessions/\w+$"))
    tab.sees("I will remember the word apple")
    tab.mark()
    stage.kill9()
    expect(tab.page.get_by_text("Connection lost")).to_be_visible()
    tab.shot("connection-lost")
    stage.start()
    tab.sees_moment("remembers this conversation")
    tab.shot("resumed")
    expect(tab.page.get_by_text("Connection lost")).to_have_count(0)
    tab.answered("what is the word?", "The word is apple")
    assert tab.is_marked()


def test_opening_a_dormant_session_shows_its_transcript_and_brings_it_back(desk: Desk, stage: Stage) -> None:
    """The first entry point of the specification: status on open, then one resume, then the agent's own memory."""
    session = stage.create("remember plum")
    first = desk.tab(session.path)
    first.sees("I will remember the word plum")
    first.close()
    stage.kill_and_start()
    tab = desk.tab(session.path)
    tab.sees("I will remember the word plum")
    tab.sees_moment("remembers this conversation")
    tab.answered("what is the word?", "The word is plum")
    expect(tab.transcript.locator(".start")).to_have_text(re.compile(r"agent back .* its memory restored in [\d.]+ s"))
    assert session.resumes() == ["native", "fresh"]
