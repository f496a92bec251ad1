"""The demo agent, driven over its own stdio."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.peer import Peer

AGENT = Path(__file__).parents[2] / "src/kandev/demo/agent.py"

INJECTED = """RESUME CONTEXT FOR CONTINUING TASK

=== EXECUTION HISTORY ===
[USER]: remember apple
[ASSISTANT]: I will remember the word apple.

=== CURRENT REQUEST ===
{request}

=== INSTRUCTIONS ===
You are continuing work on the above task.
Do not repeat work that was already completed.
"""


def demo(home: Path, *options: str) -> Peer:
    """Start the demo agent with its store in a directory."""
    environment = {**os.environ, "KANDEV_DEMO_AGENT_HOME": str(home / "store")}
    return Peer([sys.executable, "-I", "-S", str(AGENT), *options], environment)


def stored(home: Path, session_id: str) -> Path:
    """Return the file of a session."""
    return home / "store" / f"{session_id}.jsonl"


@pytest.mark.parametrize(
    ("options", "load", "resume"),
    [((), True, True), (("--no-load",), False, True), (("--no-load", "--no-resume"), False, False)],
)
def test_initialize_advertises_what_the_options_leave(
    tmp_path: Path, *, options: tuple[str, ...], load: bool, resume: bool
) -> None:
    """Load and resume are advertised, and answered, unless an option takes them away."""
    with demo(tmp_path, *options) as peer:
        capabilities = peer.ask("initialize", protocolVersion=1)["result"]["agentCapabilities"]
        assert capabilities["loadSession"] is load
        assert ("resume" in capabilities["sessionCapabilities"]) is resume
        for method, there in (("session/load", load), ("session/resume", resume)):
            code = peer.ask(method, sessionId="x", cwd="/", mcpServers=[])["error"]["code"]
            assert code == (-32002 if there else -32601)


def test_an_unknown_option_ends_with_two(tmp_path: Path) -> None:
    """A misspelt option is refused with exit code 2 and named."""
    with demo(tmp_path, "--no-lod") as peer:
        code, stderr = peer.ended()
    assert code == 2
    assert "--no-lod" in stderr


def test_it_runs_as_a_plain_script(tmp_path: Path) -> None:
    """Neither -I nor -S is needed."""
    with Peer([sys.executable, str(AGENT)], {**os.environ, "KANDEV_DEMO_AGENT_HOME": str(tmp_path)}) as peer:
        session_id = peer.new(tmp_path)
        assert peer.prompt(session_id, "hello there")["result"] == {"stopReason": "end_turn"}
        assert peer.text() == "You said: hello there"
        assert peer.close() == 0


def test_text_streams_in_chunks_of_one_message(tmp_path: Path) -> None:
    """An answer comes in several chunks with one message id, and adds up."""
    with demo(tmp_path) as peer:
        peer.prompt(peer.new(tmp_path), "one two three  four ü")
        chunks = peer.updates("agent_message_chunk")
        assert peer.text() == "You said: one two three  four ü"
        assert len(chunks) > 2
        assert len({chunk["messageId"] for chunk in chunks}) == 1


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_the_word_survives_a_kill(tmp_path: Path, method: str) -> None:
    """After SIGKILL another process restores the session and knows the word."""
    with demo(tmp_path) as peer:
        session_id = peer.new(tmp_path)
        peer.prompt(session_id, "Hello, please remember the word apple.")
        peer.kill()
    with demo(tmp_path) as peer:
        restored = peer.restore(method, session_id, tmp_path)
        assert restored["result"]["modes"]["currentModeId"] == "default"
        replayed = [update["sessionUpdate"] for update in peer.updates()]
        assert replayed == (["user_message_chunk", "agent_message_chunk"] if method == "session/load" else [])
        commands = peer.receive()
        assert commands["params"]["update"]["sessionUpdate"] == "available_commands_update"
        peer.prompt(session_id, "So, what is the word?")
        assert peer.text() == "The word is apple."


def test_load_replays_text_and_tools_in_order(tmp_path: Path) -> None:
    """Everything that was said and done is replayed before the answer."""
    with demo(tmp_path) as peer:
        session_id = peer.new(tmp_path)
        peer.prompt(session_id, "tool hammer")
        peer.kill()
    with demo(tmp_path) as peer:
        peer.restore("session/load", session_id, tmp_path)
        kinds = [update["sessionUpdate"] for update in peer.updates()]
        assert kinds == ["user_message_chunk", "tool_call", "tool_call_update", "agent_message_chunk"]
        assert peer.text() == "I used the tool hammer."


def test_a_session_without_a_prompt_is_not_stored(tmp_path: Path) -> None:
    """As in real agents, a session that was never prompted is unknown after a restart."""
    with demo(tmp_path) as peer:
        session_id = peer.new(tmp_path)
        peer.kill()
    with demo(tmp_path) as peer:
        assert peer.restore("session/load", session_id, tmp_path)["error"]["code"] == -32002


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    """Behind a line that a kill cut off, the next record starts on a line of its own."""
    with demo(tmp_path) as peer:
        session_id = peer.new(tmp_path)
        peer.prompt(session_id, "remember apple")
        peer.kill()
    with stored(tmp_path, session_id).open("ab") as file:
        file.write(b'{"type":"agent","te')
    with demo(tmp_path) as peer:
        peer.restore("session/resume", session_id, tmp_path)
        peer.prompt(session_id, "remember pear")
        peer.kill()
    with demo(tmp_path) as peer:
        peer.restore("session/load", session_id, tmp_path)
        users = [update["content"]["text"] for update in peer.updates("user_message_chunk")]
        assert users == ["remember apple", "remember pear"]
    assert stored(tmp_path, session_id).stat().st_mode & 0o777 == 0o600


def test_a_prompt_cut_off_by_a_kill_is_kept(tmp_path: Path) -> None:
    """The user's text is stored before the turn, the answer only at its end."""
    with demo(tmp_path) as peer:
        session_id = peer.new(tmp_path)
        peer.start("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "slow 1000"}])
        peer.until(lambda message: "agent_message_chunk" in str(message))
        peer.kill()
    with demo(tmp_path) as peer:
        peer.restore("session/load", session_id, tmp_path)
        assert [update["sessionUpdate"] for update in peer.updates()] == ["user_message_chunk"]


def test_the_word_is_found_in_an_injected_history(tmp_path: Path) -> None:
    """An agent without a memory of its own finds the word in the resume context, and answers the current request."""
    with demo(tmp_path, "--no-load", "--no-resume") as peer:
        session_id = peer.new(tmp_path)
        peer.prompt(session_id, INJECTED.format(request="what is the word?"))
        assert peer.text() == "The word is apple."
        peer.prompt(session_id, "what is the word?")
        assert peer.text() == "The word is apple."


def test_only_the_current_request_is_answered(tmp_path: Path) -> None:
    """A resume context is no part of the request: a command in it runs, and a new word replaces the old one."""
    with demo(tmp_path) as peer:
        session_id = peer.new(tmp_path)
        peer.prompt(session_id, INJECTED.format(request="tool hammer"))
        assert peer.text() == "I used the tool hammer."
        peer.prompt(session_id, INJECTED.format(request="remember pear"))
        peer.prompt(session_id, "what is the word?")
        assert peer.text() == "The word is pear."


def test_an_empty_conversation_knows_no_word(tmp_path: Path) -> None:
    """Without a word to remember the answer says so, so that a lost memory shows."""
    with demo(tmp_path) as peer:
        peer.prompt(peer.new(tmp_path), "what is the word?")
        assert peer.text() == "I do not know any word."


def test_cancel_ends_a_slow_turn(tmp_path: Path) -> None:
    """A cancel ends the turn with `cancelled`, a second prompt before that is refused, and the session goes on."""
    with demo(tmp_path) as peer:
        session_id = peer.new(tmp_path)
        first = peer.start("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "slow 1000"}])
        peer.until(lambda message: "agent_message_chunk" in str(message))
        assert peer.prompt(session_id, "me too")["error"]["code"] == -32600
        peer.send(method="session/cancel", params={"sessionId": session_id})
        assert peer.answer(first)["result"] == {"stopReason": "cancelled"}
        peer.prompt(session_id, "still there?")
        assert peer.text() == "You said: still there?"


def test_slow_ends_by_itself(tmp_path: Path) -> None:
    """`slow N` says N steps."""
    with demo(tmp_path) as peer:
        assert peer.prompt(peer.new(tmp_path), "slow 3")["result"] == {"stopReason": "end_turn"}
        assert peer.text() == "step 1 step 2 step 3 "


@pytest.mark.parametrize("choice", ["allow", "reject"])
def test_ask_says_what_was_chosen(tmp_path: Path, choice: str) -> None:
    """`ask` offers allow_once and reject_once, waits, and says which option was taken."""
    with demo(tmp_path) as peer:
        session_id = peer.new(tmp_path)
        turn = peer.start("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "ask"}])
        request = peer.until(lambda message: message.get("method") == "session/request_permission")
        assert [option["kind"] for option in request["params"]["options"]] == ["allow_once", "reject_once"]
        peer.send(id=request["id"], result={"outcome": {"outcome": "selected", "optionId": choice}})
        assert peer.answer(turn)["result"] == {"stopReason": "end_turn"}
        assert peer.text() == f"You chose: {choice}."


@pytest.mark.parametrize("by_notification", [True, False])
def test_ask_can_be_cancelled(tmp_path: Path, *, by_notification: bool) -> None:
    """Both a cancel and the outcome `cancelled` end a turn that waits for a permission."""
    with demo(tmp_path) as peer:
        session_id = peer.new(tmp_path)
        turn = peer.start("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "ask"}])
        request = peer.until(lambda message: message.get("method") == "session/request_permission")
        if by_notification:
            peer.send(method="session/cancel", params={"sessionId": session_id})
        else:
            peer.send(id=request["id"], result={"outcome": {"outcome": "cancelled"}})
        assert peer.answer(turn)["result"] == {"stopReason": "cancelled"}


def test_a_tool_call_starts_and_completes(tmp_path: Path) -> None:
    """`tool NAME` shows one tool call from in_progress to completed, with content."""
    with demo(tmp_path) as peer:
        peer.prompt(peer.new(tmp_path), "tool hammer")
        start, end = peer.updates("tool_call", "tool_call_update")
        assert (start["title"], start["status"], end["status"]) == ("hammer", "in_progress", "completed")
        assert start["toolCallId"] == end["toolCallId"]
        assert end["content"][0]["content"]["text"] == "hammer is done"


def test_a_plan_is_shown(tmp_path: Path) -> None:
    """`plan` sends a plan with entries in every status."""
    with demo(tmp_path) as peer:
        peer.prompt(peer.new(tmp_path), "plan")
        (plan,) = peer.updates("plan")
        assert [entry["status"] for entry in plan["entries"]] == ["completed", "in_progress", "pending"]


def test_a_flood_is_complete_and_in_order(tmp_path: Path) -> None:
    """`flood N` sends exactly N numbered chunks."""
    with demo(tmp_path) as peer:
        peer.prompt(peer.new(tmp_path), "flood 1234")
        assert peer.text() == "".join(f"chunk {number} " for number in range(1, 1235))


def test_mode_and_model_can_be_set_and_are_lost_on_load(tmp_path: Path) -> None:
    """Mode and model hold for this process only, as in many agents; unknown values are refused."""
    with demo(tmp_path) as peer:
        session_id = peer.new(tmp_path)
        assert peer.ask("session/set_mode", sessionId=session_id, modeId="plan")["result"] == {}
        answer = peer.ask("session/set_config_option", sessionId=session_id, configId="model", value="demo-large")
        assert answer["result"]["configOptions"][0]["currentValue"] == "demo-large"
        assert peer.ask("session/set_mode", sessionId=session_id, modeId="yolo")["error"]["code"] == -32602
        peer.prompt(session_id, "mode")
        assert peer.text() == "Mode plan, model demo-large."
        peer.kill()
    with demo(tmp_path) as peer:
        peer.restore("session/resume", session_id, tmp_path)
        peer.until(lambda message: "available_commands_update" in str(message))
        peer.prompt(session_id, "mode")
        assert peer.text() == "Mode default, model demo-small."


def test_crash_ends_with_three(tmp_path: Path) -> None:
    """`crash` ends the process at once, with exit code 3 and a line on stderr."""
    with demo(tmp_path) as peer:
        session_id = peer.new(tmp_path)
        with pytest.raises(EOFError):
            peer.prompt(session_id, "crash")
        assert peer.ended() == (3, "demo agent: told to crash\n")


def test_close_and_list(tmp_path: Path) -> None:
    """A closed session is unknown to a prompt, is still listed, and can be resumed."""
    with demo(tmp_path) as peer:
        session_id = peer.new(tmp_path)
        peer.prompt(session_id, "hello")
        assert peer.ask("session/close", sessionId=session_id)["result"] == {}
        assert peer.prompt(session_id, "hello")["error"]["code"] == -32002
        row = {"sessionId": session_id, "cwd": str(tmp_path)}
        assert peer.ask("session/list")["result"] == {"sessions": [row]}
        assert peer.ask("session/list", cwd="/elsewhere")["result"] == {"sessions": []}
        assert "result" in peer.restore("session/resume", session_id, tmp_path)


@pytest.mark.parametrize("session_id", ["demo-" + "0" * 32, "../../etc/passwd", ""])
def test_sec_2_an_id_from_outside_is_no_path(tmp_path: Path, session_id: str) -> None:
    """An id that the agent did not make is answered with -32002, whatever it looks like."""
    with demo(tmp_path) as peer:
        assert peer.restore("session/load", session_id, tmp_path)["error"]["code"] == -32002


def test_wire_11_cwd_and_servers_are_required(tmp_path: Path) -> None:
    """The agent refuses a client that leaves out `cwd` or `mcpServers`."""
    with demo(tmp_path) as peer:
        bad: list[dict[str, Any]] = [{"cwd": "/"}, {"mcpServers": []}, {"cwd": "relative", "mcpServers": []}]
        for params in bad:
            assert peer.ask("session/new", **params)["error"]["code"] == -32602


def test_rubbish_and_unknown_methods_are_answered(tmp_path: Path) -> None:
    """A line that is no object and a method that does not exist get an error, and the agent goes on."""
    with demo(tmp_path) as peer:
        assert peer.process.stdin
        peer.process.stdin.write(b"hello\n")
        assert peer.ask("session/fly")["error"]["code"] == -32601
        assert [message["error"]["code"] for message in peer.seen] == [-32700]
