"""Our lines against an agent that the official SDK built, over a plain subprocess."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kandev.domain.failures import LoadFailure, classify_load_failure
from kandev.protocols import acp

AGENT = Path(__file__).parent.parent / "fakes" / "sdk_agent.py"


class Peer:
    """One agent process; `ask` returns what came before the answer, and the answer."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process

    def send(self, line: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def ask(self, line: bytes, option_id: str = "") -> tuple[list[acp.Event], acp.Response]:
        assert self.process.stdout
        self.send(line)
        before: list[acp.Event] = []
        while not isinstance(event := acp.decode(self.process.stdout.readline()), acp.Response):
            assert not isinstance(event, acp.Noise), event
            before.append(event)
            if isinstance(event, acp.Request):
                chosen = acp.permission_selected(event.id, option_id)
                self.send(chosen if option_id else acp.permission_cancelled(event.id))
        return before, event


@contextmanager
def agent(store: Path) -> Iterator[Peer]:
    """An initialized agent; the end of the block kills it."""
    command = [sys.executable, str(AGENT), str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            peer = Peer(process)
            _, answer = peer.ask(acp.initialize(0, "1.0"))
            info = acp.AgentInfo.from_initialize(answer.result)
            assert (info.protocol_version, info.load_session, info.resume_session) == (1, True, True)
            yield peer
        finally:
            process.kill()


def texts(events: list[acp.Event], kind: str) -> list[str]:
    return [event.text for event in events if isinstance(event, acp.Chunk) and event.kind == kind]


def new_session(peer: Peer) -> str:
    setup = acp.session_setup(peer.ask(acp.new_session(1, "/tmp"))[1].result)
    assert setup.session_id
    assert setup.current_mode == "code"
    return setup.session_id


def test_a_session_is_made_killed_loaded_and_continued(tmp_path: Path) -> None:
    """New, prompt, kill -9, load in another process: the replay holds the first turn, and the agent remembers it."""
    with agent(tmp_path) as peer:
        session_id = new_session(peer)
        events, answer = peer.ask(acp.prompt(2, session_id, "one"))
        assert acp.stop_reason(answer.result) == ("end_turn", True)
        assert texts(events, "agent_message_chunk") == ["1: one"]
        assert texts(events, "agent_thought_chunk") == ["thinking"]
    with agent(tmp_path) as peer:
        replay, answer = peer.ask(acp.load_session(1, session_id, "/tmp"))
        assert answer.error is None
        assert texts(replay, "user_message_chunk") == ["one"]
        assert texts(replay, "agent_message_chunk") == ["1: one"]
        events, _ = peer.ask(acp.prompt(2, session_id, "two"))
        assert texts(events, "agent_message_chunk") == ["2: one | two"]


def test_resume_restores_without_a_replay(tmp_path: Path) -> None:
    """session/resume answers without an update, and the agent remembers."""
    with agent(tmp_path) as peer:
        session_id = new_session(peer)
        peer.ask(acp.prompt(2, session_id, "one"))
    with agent(tmp_path) as peer:
        events, answer = peer.ask(acp.resume_session(1, session_id, "/tmp"))
        assert (events, answer.error) == ([], None)
        assert texts(peer.ask(acp.prompt(2, session_id, "two"))[0], "agent_message_chunk") == ["2: one | two"]


def test_wire_9_an_unknown_session_is_told_as_such(tmp_path: Path) -> None:
    """The SDK's own "resource not found" to load and resume counts as an unknown session."""
    with agent(tmp_path) as peer:
        for build in (acp.load_session, acp.resume_session):
            error = peer.ask(build(1, "abc", "/tmp"))[1].error
            assert classify_load_failure(error, session_id="abc") is LoadFailure.UNKNOWN_SESSION


def test_a_permission_is_answered_with_an_option(tmp_path: Path) -> None:
    """The options are read, our choice reaches the agent, and the tool's result is rendered."""
    with agent(tmp_path) as peer:
        session_id = new_session(peer)
        events, _ = peer.ask(acp.prompt(2, session_id, "ask: rm -rf"), option_id="no")
        (request,) = [event for event in events if isinstance(event, acp.Request)]
        asked = acp.permission(request.params)
        assert (asked.kind, asked.title, asked.tool_call_id) == ("execute", "ask: rm -rf", "call-1")
        assert [(o.option_id, o.kind) for o in asked.options] == [("yes", "allow_once"), ("no", "reject_once")]
        assert texts(events, "agent_message_chunk") == ["chose no"]
        done = [event for event in events if isinstance(event, acp.Update) and event.kind == "tool_call_update"]
        assert acp.tool_output(done[-1].body) == "ran\n[diff: /a.txt]"


def test_wire_14_a_cancelled_permission_is_answered(tmp_path: Path) -> None:
    """The answer "cancelled" reaches the agent, which goes on."""
    with agent(tmp_path) as peer:
        events, _ = peer.ask(acp.prompt(2, new_session(peer), "ask"))
        assert texts(events, "agent_message_chunk") == ["chose nothing"]


def test_wire_11_every_text_survives_the_way_there_and_back(tmp_path: Path) -> None:
    """Separators, control characters and other scripts arrive as they were; a lone surrogate as U+FFFD."""
    text = "a\u2028b\u2029c\u0085d\x00e\x1ef\r\n\tg 😀 \ud800h"
    with agent(tmp_path) as peer:
        events, _ = peer.ask(acp.prompt(2, new_session(peer), text))
        assert texts(events, "agent_message_chunk") == ["1: " + text.replace("\ud800", "\ufffd")]


def test_modes_and_close_are_understood(tmp_path: Path) -> None:
    """set_mode and close are answered without an error, and the change of mode comes as an update."""
    with agent(tmp_path) as peer:
        session_id = new_session(peer)
        events, answer = peer.ask(acp.set_mode(2, session_id, "plan"))
        assert events == [
            acp.Update(
                session_id, "current_mode_update", {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}
            )
        ]
        assert answer.error is None
        assert peer.ask(acp.close_session(3, session_id))[1].error is None
