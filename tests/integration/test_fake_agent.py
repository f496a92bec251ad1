"""The scriptable fake agent: that it misbehaves exactly as told, since other tests rest on it."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeAgent
from fakes.peer import Json, Peer

Make = Callable[..., FakeAgent]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make fake agents; kill what they left behind."""
    made: list[FakeAgent] = []

    def one(**script: Any) -> FakeAgent:
        made.append(FakeAgent(tmp_path / f"fake-{len(made)}", **script))
        return made[-1]

    yield one
    for fake in made:
        fake.kill()


def begin(peer: Peer, session_id: str, text: str = "go") -> int:
    """Send a prompt without waiting for the answer."""
    return peer.start("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": text}])


def prompted(fake: FakeAgent, cwd: Path, text: str = "go") -> tuple[Peer, Json, str]:
    """Start a process, make a session, prompt it; return the peer, the answer, and the text."""
    peer = Peer(fake.command)
    answer = peer.prompt(peer.new(cwd), text)
    return peer, answer, peer.text()


def remembered(fake: FakeAgent, cwd: Path) -> str:
    """Run a session with one prompt in a process that is then killed; return its id."""
    with Peer(fake.command) as peer:
        session_id = peer.new(cwd)
        peer.prompt(session_id, "first")
    return session_id


def test_an_empty_script_echoes_with_a_memory(make: Make, tmp_path: Path) -> None:
    """Without a script the agent counts the earlier prompts, and the log tells what it received."""
    fake = make()
    with Peer(fake.command) as peer:
        session_id = peer.new(tmp_path)
        assert peer.prompt(session_id, "one")["result"] == {"stopReason": "end_turn"}
        assert peer.text() == "heard: one | memory: 0"
        peer.prompt(session_id, "two")
        assert peer.text() == "heard: two | memory: 1"
        assert peer.close() == 0
    assert fake.prompts() == ["one", "two"]
    assert fake.requests("session/new")[0]["params"] == {"cwd": str(tmp_path), "mcpServers": []}
    assert fake.pids() == [peer.process.pid]
    assert fake.alive() == []


@pytest.mark.parametrize(("method", "replayed"), [("session/load", 2), ("session/resume", 0)])
def test_memory_crosses_processes(make: Make, tmp_path: Path, method: str, replayed: int) -> None:
    """After a kill a second process restores the session; load replays, resume does not."""
    fake = make()
    session_id = remembered(fake, tmp_path)
    with Peer(fake.command) as peer:
        assert peer.restore(method, session_id, tmp_path)["result"] == {}
        assert len(peer.updates()) == replayed
        peer.prompt(session_id, "second")
        assert peer.text() == "heard: second | memory: 1"
    assert len(fake.pids()) == 2


def test_capabilities_can_be_left_out(make: Make, tmp_path: Path) -> None:
    """What is switched off is neither advertised nor answered; other capabilities go on top."""
    fake = make(load=False, resume=False, capabilities={"promptCapabilities": {"image": True}}, version="7")
    with Peer(fake.command) as peer:
        answer = peer.ask("initialize")["result"]
        assert answer["agentCapabilities"]["loadSession"] is False
        assert "resume" not in answer["agentCapabilities"]["sessionCapabilities"]
        assert answer["agentCapabilities"]["promptCapabilities"] == {"image": True}
        assert answer["agentInfo"]["version"] == "7"
        for method in ("session/load", "session/resume"):
            assert peer.ask(method, sessionId="x", cwd="/", mcpServers=[])["error"]["code"] == -32601


@pytest.mark.parametrize("result", [None, {}, {"sessionId": "another"}])
def test_tok_7_load_may_answer_anything(make: Make, tmp_path: Path, result: Any) -> None:
    """A rule replaces the whole answer, and the session is restored all the same."""
    fake = make(on={"session/load": {"result": result}})
    session_id = remembered(fake, tmp_path)
    with Peer(fake.command) as peer:
        assert peer.restore("session/load", session_id, tmp_path)["result"] == result
        peer.prompt(session_id, "second")
        assert peer.text() == "heard: second | memory: 1"


def test_tok_16_load_fails_some_times_and_then_works(make: Make, tmp_path: Path) -> None:
    """`times` counts over all processes; behind it the next rule, or the usual behaviour, applies."""
    error = {"code": -32603, "message": "Internal error", "data": {"details": "service failure"}}
    fake = make(on={"session/load": {"times": 2, "error": error}})
    session_id = remembered(fake, tmp_path)
    answers: list[Json] = [{"error": error}, {"error": error}, {"result": {}}]
    for expected in answers:
        with Peer(fake.command) as peer:
            answer = peer.restore("session/load", session_id, tmp_path)
            assert answer == {"jsonrpc": "2.0", "id": 2, **expected}


def test_hist_3_load_can_fail_or_die_in_the_middle_of_its_replay(make: Make, tmp_path: Path) -> None:
    """Steps stand for the usual replay, so that a part of it can be followed by an error or a death."""
    error = {"code": -32603, "message": "no"}
    fake = make(on={"session/load": [{"times": 1, "steps": [{"replay": 1}], "error": error}, {"steps": ["die"]}]})
    session_id = remembered(fake, tmp_path)
    with Peer(fake.command) as peer:
        assert peer.restore("session/load", session_id, tmp_path)["error"] == error
        assert len(peer.updates()) == 1
    fake.update(on={"session/load": {"steps": [{"replay": 1}, {"die": 4}]}})
    with Peer(fake.command) as peer:
        with pytest.raises(EOFError):
            peer.restore("session/load", session_id, tmp_path)
        assert len(peer.updates()) == 1
        assert peer.ended() == (4, "")


def test_hist_1_replay_may_follow_the_answer_or_come_on_resume(make: Make, tmp_path: Path) -> None:
    """The replay is a step: behind the answer of load, or before that of resume."""
    fake = make(on={"session/load": {"steps": [], "after": ["replay"]}, "session/resume": {"steps": ["replay"]}})
    session_id = remembered(fake, tmp_path)
    with Peer(fake.command) as peer:
        peer.restore("session/load", session_id, tmp_path)
        assert peer.updates() == []
        late = [peer.receive()["params"]["update"]["sessionUpdate"] for _ in range(2)]
        assert late == ["user_message_chunk", "agent_message_chunk"]
    with Peer(fake.command) as peer:
        peer.restore("session/resume", session_id, tmp_path)
        assert len(peer.updates()) == 2


@pytest.mark.parametrize("ids", ["same", "new", "none"])
def test_replay_chooses_ids_and_kinds(make: Make, tmp_path: Path, ids: str) -> None:
    """A replay may mint new message ids or have none, and may leave out the start of tool calls."""
    replay = {"replay": True, "ids": ids, "tool_starts": False}
    fake = make(on={"session/prompt": {"steps": [{"tool": "hammer"}, "heard"]}, "session/load": {"steps": [replay]}})
    with Peer(fake.command) as peer:
        session_id = peer.new(tmp_path)
        peer.prompt(session_id, "first")
        live = peer.updates("agent_message_chunk")[0]["messageId"]
    with Peer(fake.command) as peer:
        peer.restore("session/load", session_id, tmp_path)
        kinds = [update["sessionUpdate"] for update in peer.updates()]
        assert kinds == ["user_message_chunk", "tool_call_update", "agent_message_chunk"]
        again = peer.updates("agent_message_chunk")[0].get("messageId")
        assert again == {"same": live, "new": f"{live}-again", "none": None}[ids]


@pytest.mark.parametrize("method", ["session/load", "session/resume", "session/prompt"])
def test_wire_9_an_unknown_session_is_refused_as_told(make: Make, tmp_path: Path, method: str) -> None:
    """The answer about a session that is not stored is the script's: an error, success, or silence."""
    params = {"sessionId": "lost", "cwd": str(tmp_path), "mcpServers": [], "prompt": [{"type": "text", "text": "x"}]}
    told = {"code": -32603, "message": "Internal error", "data": {"details": "no rollout found for thread id lost"}}
    for unknown, expected in ((None, -32002), (told, -32603)):
        with Peer(make(**({"unknown": unknown} if unknown else {})).command) as peer:
            assert peer.ask(method, **params)["error"]["code"] == expected
    with Peer(make(unknown="accept").command) as peer:
        assert "result" in peer.ask(method, **params)
    with Peer(make(unknown="silent").command) as peer:
        peer.start(method, **params)
        assert peer.ask("initialize")["result"]["protocolVersion"] == 1
        assert peer.seen == []


def test_tok_5_a_session_without_a_prompt_is_not_stored(make: Make, tmp_path: Path) -> None:
    """Sessions are stored from their first prompt on, or from the start if the script says so."""
    for script, key in (({}, "error"), ({"store_when": "new"}, "result")):
        fake = make(modes=["ask", "code"], **script)
        with Peer(fake.command) as peer:
            session_id = peer.new(tmp_path)
            peer.ask("session/set_mode", sessionId=session_id, modeId="code")
        with Peer(fake.command) as peer:
            assert key in peer.restore("session/load", session_id, tmp_path)


def test_tok_14_a_lock_refuses_a_second_process(make: Make, tmp_path: Path) -> None:
    """With `lock` a session that a live process holds is refused with its pid, and free once that process died."""
    fake = make(lock=True)
    with Peer(fake.command) as first:
        session_id = first.new(tmp_path)
        first.prompt(session_id, "first")
        assert "result" in first.restore("session/load", session_id, tmp_path)
        with Peer(fake.command) as second:
            error = second.restore("session/load", session_id, tmp_path)["error"]
            assert (error["code"], error["data"]["reason"]) == (-32600, "thread_active_writer")
            assert error["data"]["owner"] == {"pid": first.process.pid}
        first.kill()
        with Peer(fake.command) as third:
            assert "result" in third.restore("session/resume", session_id, tmp_path)


@pytest.mark.parametrize("restore", [False, True])
def test_wire_12_modes_and_options_are_lost_unless_told(make: Make, tmp_path: Path, *, restore: bool) -> None:
    """After a load the mode and the options are the defaults again, unless the script restores them."""
    options = [{"id": "model", "type": "select", "currentValue": "small"}]
    fake = make(
        modes=["ask", "code"], options=options, restore_modes=restore, on={"session/prompt": {"steps": ["state"]}}
    )
    with Peer(fake.command) as peer:
        session_id = peer.new(tmp_path)
        assert peer.ask("session/set_mode", sessionId=session_id, modeId="code")["result"] == {}
        assert peer.ask("session/set_mode", sessionId=session_id, modeId="fly")["error"]["code"] == -32602
        answer = peer.ask("session/set_config_option", sessionId=session_id, configId="model", value="big")
        assert answer["result"]["configOptions"][0]["currentValue"] == "big"
        peer.prompt(session_id, "first")
        assert peer.text() == 'mode: code | options: {"model": "big"}'
    with Peer(fake.command) as peer:
        state = peer.restore("session/load", session_id, tmp_path)["result"]
        assert state["modes"]["currentModeId"] == ("code" if restore else "ask")
        assert state["configOptions"][0]["currentValue"] == ("big" if restore else "small")


def test_rules_match_the_prompt(make: Make, tmp_path: Path) -> None:
    """The first rule whose expression is found in the text decides; without one the usual answer comes."""
    rules = [
        {"match": "bad", "error": {"code": -32000, "message": "Authentication required"}},
        {"match": "odd", "stop_reason": "bored", "merge": {"usage": {"totalTokens": 3}}},
    ]
    with Peer(make(on={"session/prompt": rules}).command) as peer:
        session_id = peer.new(tmp_path)
        assert peer.prompt(session_id, "a bad one")["error"]["code"] == -32000
        assert peer.prompt(session_id, "an odd one")["result"] == {"stopReason": "bored", "usage": {"totalTokens": 3}}
        assert peer.text() == "heard: an odd one | memory: 1"
        assert peer.prompt(session_id, "a good one")["result"] == {"stopReason": "end_turn"}


def test_rules_match_the_params_of_other_methods(make: Make, tmp_path: Path) -> None:
    """A rule may look at the params, such as a load with MCP servers."""
    error = {"code": -32602, "message": "mcpServers not supported"}
    fake = make(on={"session/load": {"match": r'"mcpServers": \[\{', "error": error}})
    session_id = remembered(fake, tmp_path)
    servers = [{"name": "x", "command": "/x", "args": [], "env": []}]
    with Peer(fake.command) as peer:
        assert peer.ask("session/load", sessionId=session_id, cwd="/", mcpServers=servers)["error"] == error
        assert "result" in peer.ask("session/load", sessionId=session_id, cwd="/", mcpServers=[])


def test_every_kind_of_output(make: Make, tmp_path: Path) -> None:
    """Chunks, thoughts, tools, unknown kinds, an echo and an id of one's own come in the order of the steps."""
    steps = [
        "echo",
        {"thought": "hm"},
        {"chunks": 2, "text": "part {n} "},
        {"text": "bare", "message_id": None},
        {"tool": "hammer", "id": "t1", "content": "bang"},
        {"update": {"sessionUpdate": "hologram", "depth": 3}},
        {"huge": 200_000, "message_id": "big"},
    ]
    peer, _, text = prompted(make(on={"session/prompt": {"steps": steps}}), tmp_path, "hello")
    with peer:
        kinds = [update["sessionUpdate"] for update in peer.updates()]
        tools = ["tool_call", "tool_call_update", "hologram"]
        assert kinds == ["user_message_chunk", "agent_thought_chunk", *["agent_message_chunk"] * 3, *tools, kinds[2]]
        assert text == "part 1 part 2 bare" + "x" * 200_000
        ids = [update.get("messageId") for update in peer.updates("agent_message_chunk")]
        assert ids[0] == ids[1]
        assert ids[2:] == [None, "big"]
        assert peer.updates("tool_call_update")[0]["content"][0]["content"]["text"] == "bang"


def test_wire_1_noise_of_every_kind(make: Make, tmp_path: Path) -> None:
    """Banners, values that are no objects, and broken bytes reach stdout as they were written down."""
    noise = [{"line": "\x1b[1mWelcome"}, {"send": 123}, {"send": None}, {"send": []}, {"hex": "fffe0a"}]
    fake = make(start=noise, on={"session/prompt": {"steps": [{"line": "late banner"}, "heard"]}})
    peer, answer, text = prompted(fake, tmp_path)
    with peer:
        banner, number, null, array, broken, late = peer.rubbish
        assert (banner, number, null, array) == (b"\x1b[1mWelcome\n", b"123\n", b"null\n", b"[]\n")
        assert (broken, late) == (b"\xff\xfe\n", b"late banner\n")
        assert (answer["result"]["stopReason"], text) == ("end_turn", "heard: go | memory: 0")


def test_wire_4_ids_can_come_back_as_strings(make: Make) -> None:
    """With `string_ids` an answer carries the id as a string."""
    with Peer(make(string_ids=True).command) as peer:
        peer.start("initialize")
        assert peer.receive()["id"] == "1"


def test_wire_5_a_request_of_the_agent_waits_for_its_answer(make: Make, tmp_path: Path) -> None:
    """A request with any method and id is sent, and the text tells the answer."""
    fake = make(on={"session/prompt": {"steps": [{"request": "x/drain", "id": "abc", "params": {"n": 1}}]}})
    with Peer(fake.command) as peer:
        turn = begin(peer, peer.new(tmp_path))
        request = peer.until(lambda message: message.get("method") == "x/drain")
        assert (request["id"], request["params"]) == ("abc", {"n": 1})
        peer.send(id="abc", error={"code": -32601, "message": "no"})
        peer.answer(turn)
        assert peer.text() == 'answer: {"error": {"code": -32601, "message": "no"}}'
    assert {"jsonrpc": "2.0", "id": "abc", "error": {"code": -32601, "message": "no"}} in fake.received()


def test_a_permission_is_asked_and_told(make: Make, tmp_path: Path) -> None:
    """The step waits for the outcome and says it."""
    with Peer(make(on={"session/prompt": {"steps": [{"permission": "Write x"}]}}).command) as peer:
        turn = begin(peer, peer.new(tmp_path))
        request = peer.until(lambda message: message.get("method") == "session/request_permission")
        assert request["params"]["toolCall"]["title"] == "Write x"
        peer.send(id=request["id"], result={"outcome": {"outcome": "selected", "optionId": "reject_once"}})
        peer.answer(turn)
        assert peer.text() == "permission: reject_once"


def test_perm_2_it_can_die_with_a_permission_open(make: Make, tmp_path: Path) -> None:
    """The step need not wait, so that a death leaves the request without a turn."""
    steps = [{"permission": "Write x", "wait": False}, {"die": 3}]
    with Peer(make(on={"session/prompt": {"steps": steps}}).command) as peer:
        with pytest.raises(EOFError):
            peer.prompt(peer.new(tmp_path), "go")
        assert [message["method"] for message in peer.seen] == ["session/request_permission"]


def test_a_slow_exit_follows_the_end_of_stdin(make: Make) -> None:
    """With `exit_delay` the process is still there when its stdin has ended."""
    fake = make(exit_delay=60)
    with Peer(fake.command) as peer:
        peer.ask("initialize")
        assert peer.process.stdin
        peer.process.stdin.close()
        fake.wait(lambda: fake.events("eof"))
        assert fake.alive() == [peer.process.pid]


def test_wire_14_a_cancelled_permission_ends_the_turn(make: Make, tmp_path: Path) -> None:
    """The outcome `cancelled` ends the turn as a cancel does."""
    with Peer(make(on={"session/prompt": {"steps": [{"permission": "Write x"}]}}).command) as peer:
        turn = begin(peer, peer.new(tmp_path))
        request = peer.until(lambda message: message.get("method") == "session/request_permission")
        peer.send(id=request["id"], result={"outcome": {"outcome": "cancelled"}})
        assert peer.answer(turn)["result"] == {"stopReason": "cancelled"}


def test_a_turn_is_cancelled_and_a_second_prompt_refused(make: Make, tmp_path: Path) -> None:
    """A turn that hangs refuses another prompt, ends at a cancel, and the next prompt knows both."""
    with Peer(make(on={"session/prompt": {"match": "go", "steps": ["hang"]}}).command) as peer:
        session_id = peer.new(tmp_path)
        turn = begin(peer, session_id)
        assert peer.prompt(session_id, "me too")["error"]["code"] == -32600
        peer.send(method="session/cancel", params={"sessionId": session_id})
        assert peer.answer(turn)["result"] == {"stopReason": "cancelled"}
        peer.prompt(session_id, "next")
        assert peer.text() == "heard: next | memory: 1"


def test_a_cancel_can_be_answered_with_an_error_and_a_tail(make: Make, tmp_path: Path) -> None:
    """A rule for session/cancel says how the cancelled prompt is answered, and what follows."""
    rule = {"error": {"code": -32800, "message": "cancelled"}, "after": [{"text": "tail 1"}, {"text": "tail 2"}]}
    with Peer(make(on={"session/prompt": {"steps": ["hang"]}, "session/cancel": rule}).command) as peer:
        session_id = peer.new(tmp_path)
        turn = begin(peer, session_id)
        peer.send(method="session/cancel", params={"sessionId": session_id})
        assert peer.answer(turn)["error"]["code"] == -32800
        peer.until(lambda message: "tail 2" in str(message))


def test_a_cancel_can_be_ignored_and_a_gate_opened(make: Make, tmp_path: Path) -> None:
    """With `ignore_cancel` the turn goes on; a gate holds it until the test opens it."""
    steps = [{"mark": "waiting"}, {"gate": "go on"}, "heard"]
    fake = make(ignore_cancel=True, on={"session/prompt": {"steps": steps}})
    with Peer(fake.command) as peer:
        session_id = peer.new(tmp_path)
        turn = begin(peer, session_id)
        fake.wait(fake.marks)
        peer.send(method="session/cancel", params={"sessionId": session_id})
        fake.wait(lambda: fake.requests("session/cancel"))
        fake.open_gate("go on")
        assert peer.answer(turn)["result"] == {"stopReason": "end_turn"}
        assert peer.text() == "heard: go | memory: 0"


def test_silence_is_no_answer(make: Make, tmp_path: Path) -> None:
    """A silent rule gives no answer, while other requests are answered."""
    with Peer(make(on={"session/load": {"silent": True}}).command) as peer:
        peer.start("session/load", sessionId="x", cwd=str(tmp_path), mcpServers=[])
        assert peer.ask("initialize")["result"]["protocolVersion"] == 1
        assert peer.seen == []


def test_session_new_can_speak_first_and_forget_its_id(make: Make, tmp_path: Path) -> None:
    """An update may come before the answer to session/new, and the answer may lack the id."""
    commands = {"sessionUpdate": "available_commands_update", "availableCommands": []}
    rules = [{"times": 1, "steps": [{"update": commands}, {"delay": 0.01}]}, {"result": {}}]
    with Peer(make(on={"session/new": rules}).command) as peer:
        session_id = peer.new(tmp_path)
        assert [message["params"] for message in peer.seen] == [{"sessionId": session_id, "update": commands}]
        assert peer.ask("session/new", cwd=str(tmp_path), mcpServers=[])["result"] == {}


def test_state_5_it_can_die_before_it_answers(make: Make) -> None:
    """A death may come before the first line is read, with words on stderr."""
    with Peer(make(start=[{"stderr": "no licence"}, {"die": 7}]).command) as peer:
        assert peer.ended() == (7, "no licence\n")


def test_state_4_it_can_die_in_the_middle_of_a_line(make: Make, tmp_path: Path) -> None:
    """A death by a signal may cut a line off; the prompt is stored, the answer is not."""
    rule = {
        "times": 1,
        "steps": ["heard", {"line": '{"jsonrpc":"2.0","met', "end": ""}, {"signal": int(signal.SIGKILL)}],
    }
    fake = make(on={"session/prompt": rule})
    with Peer(fake.command) as peer:
        session_id = peer.new(tmp_path)
        with pytest.raises(EOFError):
            peer.prompt(session_id, "first")
        assert peer.ended()[0] == -signal.SIGKILL
        assert peer.rubbish == [b'{"jsonrpc":"2.0","met']
    with Peer(fake.command) as peer:
        peer.restore("session/load", session_id, tmp_path)
        assert [update["sessionUpdate"] for update in peer.updates()] == ["user_message_chunk"]


def test_wire_8_a_grandchild_can_hold_stdout(make: Make, tmp_path: Path) -> None:
    """A grandchild outlives the agent in its own session, holds stdout open, and ignores SIGTERM."""
    spawn = {"spawn": 60, "hold_stdout": True, "ignore_sigterm": True, "setsid": True}
    fake = make(on={"session/prompt": {"steps": [spawn, {"die": 3}]}})
    with Peer(fake.command) as peer:
        begin(peer, peer.new(tmp_path))
        (child,) = fake.wait(fake.spawned)
        assert peer.process.wait(30) == 3
        assert peer.process.stdout is not None
        assert os.readlink(f"/proc/{child}/fd/1") == os.readlink(f"/proc/self/fd/{peer.process.stdout.fileno()}")
        assert os.getsid(child) == child
        os.kill(child, signal.SIGTERM)
        assert fake.alive() == [child]
        fake.kill()
        fake.wait(lambda: not fake.alive())


def test_wire_7_stderr_can_be_flooded(make: Make) -> None:
    """A flood on stderr has exactly the size that was told."""
    with Peer(make(on={"initialize": {"steps": [{"stderr_flood": 300_001}, {"die": 0}]}}).command) as peer:
        peer.start("initialize")
        code, stderr = peer.ended()
        assert (code, len(stderr)) == (0, 300_001)


def test_proc_6_it_can_ignore_the_end_of_stdin_and_sigterm(make: Make) -> None:
    """A stubborn agent logs both and lives on."""
    fake = make(ignore_eof=True, ignore_sigterm=True)
    with Peer(fake.command) as peer:
        peer.ask("initialize")
        assert peer.process.stdin
        peer.process.stdin.close()
        fake.wait(lambda: fake.events("eof"))
        peer.process.terminate()
        fake.wait(lambda: fake.events("sigterm"))
        assert fake.alive() == [peer.process.pid]


def test_sigterm_is_logged_and_kills(make: Make) -> None:
    """An agent that was not told otherwise dies of SIGTERM by that signal."""
    fake = make()
    with Peer(fake.command) as peer:
        peer.ask("initialize")
        peer.process.terminate()
        assert peer.ended()[0] == -signal.SIGTERM
    assert len(fake.events("sigterm")) == 1


def test_stdout_and_stdin_can_be_closed(make: Make) -> None:
    """A step closes a pipe while the process lives on."""
    fake = make(start=["close_stdin", "close_stdout", {"mark": "closed"}])
    with Peer(fake.command) as peer:
        assert peer.line() == b""
        fake.wait(lambda: fake.events("eof"))
        with pytest.raises(BrokenPipeError):
            peer.send(method="x")
        assert fake.alive() == [peer.process.pid]


def test_the_log_tells_how_it_was_started(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of a start names the environment, tells the chosen values, and lines that are no objects are kept."""
    monkeypatch.setenv("MY_KEY", "secret")
    fake = make(log_env=["MY_KEY", "NOT_THERE"])
    with Peer(fake.command) as peer:
        assert peer.process.stdin
        peer.process.stdin.write(b"hello\n")
        peer.ask("initialize")
    (start,) = fake.events("start")
    assert "MY_KEY" in start["env"]
    assert start["values"] == {"MY_KEY": "secret"}
    assert start["cwd"] == str(Path.cwd())
    assert [entry["raw"] for entry in fake.entries() if "raw" in entry] == ["hello\n"]


def test_sessions_are_listed(make: Make, tmp_path: Path) -> None:
    """session/list names what is stored, with the directory it was made for."""
    fake = make()
    session_id = remembered(fake, tmp_path)
    with Peer(fake.command) as peer:
        assert peer.ask("session/list")["result"] == {"sessions": [{"sessionId": session_id, "cwd": str(tmp_path)}]}


async def test_until_waits_for_what_an_agent_received(make: Make) -> None:
    """A test waits for an event in the log, and gets a TimeoutError when it does not come."""
    fake = make()
    with Peer(fake.command) as peer:
        peer.start("initialize")
        assert len(await fake.until(lambda: fake.requests("initialize"))) == 1
    with pytest.raises(TimeoutError):
        await fake.until(lambda: fake.requests("session/new"), seconds=0.05)
