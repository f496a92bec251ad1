"""UI-4: every fallback and failure says what was kept, what was lost, and has a button that goes on."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from browser.play import Play

UNKNOWN = {"code": -32002, "message": "Session not found"}
LOGIN = {"code": -32000, "message": "Authentication required"}


def on_restore(**rule: Any) -> dict[str, Any]:
    """The same rule for both ways to restore a session."""
    return {"session/load": rule, "session/resume": rule}


def test_ui_3_while_resuming_the_stage_is_told_and_prompts_queue(play: Play) -> None:
    """The transcript is there, the stage stands in words, two prompts wait and one is withdrawn, the other arrives."""
    play.begin("native")
    tab = play.come_back(on=on_restore(steps=[{"gate": "restore"}, {"replay": True}]))
    tab.sees("heard: one")
    tab.sees_moment("Bringing the session back: restoring memory")
    tab.sees_moment("You can write already")
    tab.send("two")
    tab.send("three")
    expect(tab.waiting).to_have_count(2)
    tab.shot("resuming")
    tab.waiting.filter(has_text="two").get_by_role("button", name="Withdraw").click()
    expect(tab.waiting).to_have_count(1)
    expect(tab.field).to_have_value("two")
    play.agent.open_gate("restore")
    tab.sees("heard: three")
    expect(tab.waiting).to_have_count(0)
    assert play.session.prompts() == ["one", "three"]


def test_a_resume_can_be_cancelled_and_resumed(play: Play) -> None:
    """Cancelling is no failure: the agent is not running, nothing is lost, and a button resumes."""
    play.begin("native")
    tab = play.come_back(on=on_restore(steps=[{"gate": "restore"}, {"replay": True}]))
    tab.sees_moment("restoring memory")
    tab.press("Cancel")
    tab.sees_moment("The agent is not running")
    play.agent.open_gate("restore")
    tab.press("Resume")
    tab.sees_moment("remembers this conversation")


@pytest.mark.parametrize(
    ("button", "answer"),
    [("Start fresh", r"heard: two \| memory: 0"), ("Continue with a summary", r"heard: .*two")],
)
def test_ui_4_a_rejected_conversation(play: Play, button: str, answer: str) -> None:
    """The agent does not know it any more: the transcript stays, and both ways on work."""
    play.begin("native")
    tab = play.come_back(on=on_restore(error=UNKNOWN, times=1))
    tab.sees_moment("no longer has this conversation")
    tab.sees_moment("transcript and the files are here; the agent's memory of it is not")
    tab.shot("rejected")
    tab.press(button)
    expect(tab.moment).not_to_contain_text("no longer has this conversation")
    tab.send("two")
    expect(tab.transcript).to_contain_text(re.compile(answer, re.DOTALL))
    tab.sees_no_moment()


def test_ui_4_an_agent_that_cannot_restore(play: Play) -> None:
    """It says nothing definite, twice: nothing was deleted, trying again comes first, and works once it is mended."""
    play.begin("native")
    tab = play.come_back(on=on_restore(error={"code": -32603, "message": "service failure"}))
    tab.sees_moment("could not restore the conversation. Nothing was deleted.")
    labels = tab.moment.get_by_role("button").all_inner_texts()
    assert labels == ["Try again", "Continue with a summary", "Start fresh"]
    play.agent.update(on={})
    tab.press("Try again")
    tab.sees_moment("remembers this conversation")


def test_ui_4_a_conversation_that_is_open_elsewhere(play: Play) -> None:
    """It is said, with the agent's words; trying again works once the other program has let go."""
    play.begin("native")
    tab = play.come_back(on=on_restore(error={"code": -32003, "message": "Session is in use by pid 7"}))
    tab.sees_moment("This conversation is open in another program.")
    tab.sees_moment("Nothing is lost")
    play.agent.update(on={})
    tab.press("Try again")
    tab.sees_moment("remembers this conversation")


def test_ui_4_an_agent_that_ends_again_and_again(play: Play) -> None:
    """After five times nobody starts it any more but a person, who is told why and can look at the log."""
    play.begin("native")
    tab = play.come_back(on=on_restore(steps=[{"stderr": "no licence"}, {"die": 3}]))
    for _ in range(4):
        tab.sees_moment("ended while it was coming back")
        tab.press("Try again")
    tab.sees_moment("ended 5 times in a minute")
    tab.sees_moment("Nothing was deleted.")
    tab.shot("parked")
    play.agent.update(on={})
    tab.press("Try again")
    tab.sees_moment("remembers this conversation")


def test_ui_4_an_agent_that_wants_a_login(play: Play) -> None:
    """The command stands on a button; once logged in, trying again brings the memory back."""
    play.begin("native")
    tab = play.come_back(on=on_restore(error=LOGIN))
    tab.sees_moment("wants you to log in. The conversation is kept.")
    expect(tab.page.get_by_role("button", name="Copy “fake-agent login”")).to_be_visible()
    tab.shot("login")
    play.agent.update(on={})
    tab.press("Try again")
    tab.sees_moment("remembers this conversation")


def test_ui_4_a_turn_that_was_cut_is_sent_again_by_a_person(play: Play) -> None:
    """What was said stays; nothing goes out by itself; the button sends the prompt once more."""
    begun = [{"tool": "rm -r build", "end": False}, {"text": "half an ans"}, {"gate": "never"}]
    cut = {"match": "two", "times": 1, "steps": begun}
    play.begin("native", on={"session/prompt": cut})
    first = play.tab()
    first.send("two")
    first.sees("half an ans")
    tab = play.come_back(on={"session/prompt": cut})
    tab.sees_moment("The turn was cut off when the backend stopped")
    tab.sees_moment("These steps may or may not have run: rm -r build.")
    tab.sees("half an ans")
    tab.shot("interrupted")
    first.sees_moment("The turn was cut off when the backend stopped")
    tab.press("Send again")
    tab.sees("heard: two")
    first.sees("heard: two")
    tab.sees_no_moment()
    assert play.session.prompts() == ["one", "two", "two"]


def test_ui_4_an_agent_that_is_told_the_conversation(play: Play) -> None:
    """History injection: the page says so, and shows what will be told."""
    play.begin("history")
    tab = play.come_back()
    tab.sees_moment("will get a summary of this conversation with your next message")
    tab.press("See the summary")
    expect(tab.page.get_by_role("dialog", name="Summary for the agent")).to_contain_text("heard: one")
    tab.page.keyboard.press("Escape")
    tab.send("two")
    tab.sees_no_moment()


def test_ui_4_an_agent_without_memory_can_be_given_a_summary(play: Play) -> None:
    """It started new and knows nothing; one button sends the summary along."""
    play.begin("plain")
    tab = play.come_back()
    tab.sees_moment("does not know this conversation. The transcript is here.")
    tab.press("Send a summary with my next message")
    tab.send("two")
    tab.sees("RESUME CONTEXT")


def test_ui_4_an_agent_that_cannot_be_started(play: Play) -> None:
    """The agent ends at once: its words, that the conversation is kept, the log, and trying again when it is mended."""
    play.begin("native")
    tab = play.come_back(start=[{"stderr": "out of luck"}, {"die": 3}])
    tab.sees_moment("could not be started")
    tab.sees_moment("The conversation is kept.")
    tab.press("Show log")
    expect(tab.page.get_by_role("dialog", name="Log")).to_contain_text("out of luck")
    tab.shot("log")
    tab.page.keyboard.press("Escape")
    play.agent.update(start=[])
    tab.press("Try again")
    tab.answered("two", "heard: two | memory: 1")
