"""Tabs, losses of the connection, and what was typed meanwhile."""

import re
from typing import Any

from playwright.sync_api import WebSocketRoute, expect

from browser.desk import SHOTS, Desk
from browser.stage import Stage
from browser.tab import Tab
from browser.wiretap import Wiretap
from conversation import Cast
from kandev.domain.constants import EVENT_BUFFER_BYTES

CALL_BYTES = 400_000


def large_call(name: str) -> dict[str, Any]:
    """The step of a tool call with so much input."""
    return {
        "update": {
            "sessionUpdate": "tool_call",
            "toolCallId": name,
            "title": name,
            "rawInput": {"text": "x" * CALL_BYTES},
        }
    }


def test_ui_1_two_tabs_a_duplicate_and_one_left_open_end_in_the_same_state(desk: Desk, stage: Stage) -> None:
    """After a kill and a start all three show the agent as back, one start served them, and each hears the answer."""
    session = stage.create("remember fig")
    tabs = [desk.tab(session.path) for _ in range(2)]
    for tab in tabs:
        tab.sees("I will remember the word fig")
        tab.mark()
    stage.kill_and_start()
    tabs[0].sees_moment("remembers this conversation")
    tabs[1].sees_moment("remembers this conversation")
    duplicate = desk.tab(session.path)
    duplicate.sees("I will remember the word fig")
    tabs[0].send("what is the word?")
    for tab in (*tabs, duplicate):
        tab.sees("The word is fig")
        tab.sees_no_moment()
    assert session.resumes() == ["native", "fresh"]
    assert all(tab.is_marked() for tab in tabs)


def test_ui_6_a_prompt_typed_while_the_server_is_away_is_sent_once_when_it_is_back(desk: Desk, stage: Stage) -> None:
    """It waits in view, survives even a reload of the page, and arrives exactly once."""
    session = stage.create("remember pear")
    tab = desk.tab(session.path)
    tab.sees("I will remember the word pear")
    stage.kill9()
    tab.send("what is the word?")
    expect(tab.waiting).to_contain_text("Sending")
    tab.field.fill("half a thought")
    stage.start()
    tab.sees("The word is pear")
    expect(tab.waiting).to_have_count(0)
    expect(tab.field).to_have_value("half a thought")
    tab.page.reload()
    expect(tab.field).to_have_value("half a thought")
    assert session.prompts() == ["remember pear", "what is the word?"]


def test_while_a_turn_runs_prompts_queue_in_view_and_can_be_withdrawn(desk: Desk, stage: Stage) -> None:
    """Of two prompts one is taken back into the field, one waits; a stopped turn holds it until a person sends it."""
    session = stage.create("remember lime")
    desk.tab(session.path).sees("I will remember the word lime")
    session.call("message.add", content="slow 40")
    tab = desk.tab(session.path)
    tab.sees("step 3")
    tab.send("first")
    tab.send("second")
    expect(tab.waiting).to_have_count(2)
    tab.shot("queued")
    tab.waiting.filter(has_text="first").get_by_role("button", name="Withdraw").click()
    expect(tab.waiting).to_have_count(1)
    expect(tab.field).to_have_value("first")
    tab.press("Stop")
    tab.sees_moment("1 prompt waits")
    tab.press("Send now")
    tab.sees("second")
    expect(tab.waiting).to_have_count(0)


def test_ui_5_unknown_frames_are_ignored(desk: Desk, stage: Stage) -> None:
    """Kinds and actions that the page does not know, and lines that are no JSON, change nothing."""
    session = stage.create("remember kiwi")
    page = desk.blank()

    def between(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def add(message: str | bytes) -> None:
            text = message if isinstance(message, str) else message.decode()
            odd = ['{"type":"wonder","action":"x"}', "no json", "[]", "null", "7"]
            told = f'{{"type":"notification","action":"session.new_thing","payload":{{"session_id":"{session.id}"}}}}'
            socket.send("\n".join([*odd, told, text]))

        server.on_message(add)

    page.route_web_socket(re.compile("/ws$"), between)
    page.goto(f"{stage.url}{session.path}?token={stage.backend.token}")
    tab = Tab(page, SHOTS)
    tab.sees("I will remember the word kiwi")
    tab.answered("what is the word?", "The word is kiwi")


def test_ui_2_a_late_answer_changes_nothing(desk: Desk, stage: Stage) -> None:
    """Answers from before a resume of somebody else come after it: the page asks for no second one, nor forgets it."""
    session = stage.create("remember sloe")
    desk.tab(session.path).close()
    stage.kill_and_start()
    page = desk.blank()
    wire = Wiretap(page)
    wire.hold("task.session.status")
    page.goto(f"{stage.url}{session.path}?token={stage.backend.token}")
    tab = Tab(page, SHOTS)
    tab.sees("I will remember the word sloe")
    session.call("task.session.resume")
    tab.sees_moment("remembers this conversation")
    assert wire.release()
    tab.answered("what is the word?", "The word is sloe")
    tab.sees_no_moment()
    expect(page.locator(".state")).to_contain_text("Waiting for you")
    assert "task.session.resume" not in wire.asked
    assert session.resumes() == ["native", "fresh"]


def test_ui_5_a_page_that_was_away_too_long_shows_everything_once(desk: Desk, stage: Stage, cast: Cast) -> None:
    """More was said meanwhile than the backend keeps for those who come back: the page gets all of it anew."""
    calls = [large_call(f"call {n}") for n in range(EVENT_BUFFER_BYTES // CALL_BYTES + 2)]
    flood = {"match": "flood", "steps": [*calls, {"text": "the end"}]}
    name, _ = cast.take("native", on={"session/prompt": flood})
    session = stage.create("one", agent=name)
    page = desk.blank()
    wire = Wiretap(page)
    page.goto(f"{stage.url}{session.path}?token={stage.backend.token}")
    tab = Tab(page, SHOTS)
    tab.sees("heard: one")
    tab.mark()
    wire.cut()
    expect(page.get_by_text("Connection lost")).to_be_visible()
    session.call("message.add", content="flood")
    away = desk.tab(session.path)
    away.sees("the end")
    away.close()
    before = len(wire.answers)
    wire.mend()
    page.get_by_role("button", name="Now").click()
    tab.sees("the end")
    assert [one["gap"] for one in wire.answers[before:] if "gap" in one] == [True]
    expect(tab.transcript.get_by_text("heard: one")).to_have_count(1)
    expect(tab.transcript.get_by_text("the end")).to_have_count(1)
    assert tab.is_marked()


def test_a_person_who_turned_it_off_resumes_with_a_button(desk: Desk, stage: Stage) -> None:
    """Then opening a page starts nothing; the button does, and the setting is kept by the browser."""
    session = stage.create("remember date")
    tab = desk.tab(session.path)
    tab.sees("I will remember the word date")
    tab.transcript.press("?")
    tab.page.get_by_label("Opening a session brings its agent back").uncheck()
    tab.page.keyboard.press("Escape")
    stage.kill_and_start()
    tab.sees_moment("The agent is not running")
    assert not session.status()["is_agent_running"]
    tab.press("Resume")
    tab.sees_moment("remembers this conversation")
