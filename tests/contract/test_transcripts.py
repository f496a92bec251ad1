"""What real agents wrote, recorded without a network in November 2026, scrubbed and shortened: read as expected.

One JSON object a line: {"dir": "in" (the agent wrote it) or "out", "msg": the message}.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kandev.protocols import acp

TRANSCRIPTS = Path(__file__).parent / "transcripts"
ALL = sorted(path.stem for path in TRANSCRIPTS.glob("*.jsonl"))


def records(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in (TRANSCRIPTS / f"{name}.jsonl").read_bytes().splitlines():
        record = json.loads(line)
        yield record["dir"], record["msg"]


def events(name: str) -> list[acp.Event]:
    return [acp.decode(json.dumps(message).encode()) for way, message in records(name) if way == "in"]


def kind_of(event: acp.Event) -> str:
    return event.kind if isinstance(event, acp.Chunk | acp.Update) else type(event).__name__


def responses(name: str) -> list[Any]:
    return [event.result for event in events(name) if isinstance(event, acp.Response)]


def text(name: str, kind: str = "agent_message_chunk") -> str:
    return "".join(event.text for event in events(name) if isinstance(event, acp.Chunk) and event.kind == kind)


KINDS = {
    "auggie-new": "Response 6, agent_message_chunk 11, Request 1, tool_call 1, tool_call_update 1",
    "claude-load": "Response 3, user_message_chunk 3, agent_message_chunk 7, tool_call 1, tool_call_update 1,"
    " Notification 1, available_commands_update 2, session_info_update 1, usage_update 2",
    "claude-new": "Response 7, Notification 1, available_commands_update 2, session_info_update 1, usage_update 7,"
    " agent_message_chunk 12, config_option_update 1, tool_call 1, tool_call_update 3, Request 1",
    "codex-load": "Response 3, Notification 1, available_commands_update 1, session_info_update 4,"
    " user_message_chunk 3, agent_message_chunk 8, tool_call 1, tool_call_update 1, usage_update 2",
    "codex-new": "Response 7, Notification 1, available_commands_update 1, agent_message_chunk 14,"
    " session_info_update 8, usage_update 4, config_option_update 1, tool_call 1, tool_call_update 1",
    "codex-resume": "Response 3, Notification 1, session_info_update 3, usage_update 2, available_commands_update 1,"
    " agent_message_chunk 5",
    "copilot-load": "Response 3, user_message_chunk 3, agent_message_chunk 10, tool_call 1, tool_call_update 1,"
    " available_commands_update 2, usage_update 1",
    "fastagent-load": "Response 3, available_commands_update 1, session_info_update 2, user_message_chunk 3,"
    " agent_message_chunk 8",
    "gemini-load": "Response 3, user_message_chunk 5, agent_message_chunk 7, tool_call 1, available_commands_update 1",
    "opencode-new": "Response 6, available_commands_update 1, agent_message_chunk 11, usage_update 3, tool_call 1,"
    " tool_call_update 4, Request 1",
}


@pytest.mark.parametrize("name", ALL)
def test_each_line_becomes_the_expected_event_and_none_is_noise(name: str) -> None:
    """Counts by kind, from a reading by eye; a transcript without its row fails."""
    counted = Counter(kind_of(event) for event in events(name))
    assert counted == {kind: int(n) for kind, n in (part.split() for part in KINDS[name].split(", "))}


@pytest.mark.parametrize("name", ALL)
def test_chunks_hold_what_the_line_said(name: str) -> None:
    """The short path for chunks gives the same four fields as a plain reading of the JSON."""
    for way, message in records(name):
        event = acp.decode(json.dumps(message, ensure_ascii=False).encode())
        if way == "in" and isinstance(event, acp.Chunk):
            params, update = message["params"], message["params"]["update"]
            said = (params["sessionId"], update["sessionUpdate"], update["content"]["text"], update.get("messageId"))
            assert (event.session_id, event.kind, event.text, event.message_id) == said


@pytest.mark.parametrize("name", ALL)
def test_the_agents_text_is_whole(name: str) -> None:
    """The chunks joined hold the fake model's answers, with the words that the agent remembers."""
    words = "MARK-ALPHA1,MARK-BRAVO2" if name.endswith("-new") else "MARK-ALPHA1,MARK-BRAVO2,MARK-CHARLIE3"
    assert f"marks={words} last=" in text(name)


@pytest.mark.parametrize("name", ALL)
def test_every_turn_ends_with_a_known_reason(name: str) -> None:
    """Each answer to a prompt has a stop reason that the protocol knows."""
    reasons = [acp.stop_reason(r) for r in responses(name) if isinstance(r, dict) and "stopReason" in r]
    assert reasons == [("end_turn", True)] * (3 if name.endswith("-new") else 1)


@pytest.mark.parametrize(
    ("name", "load", "resume", "version", "login"),
    [
        ("auggie-new", True, False, "0.36.0 (commit 7c61e5bb)", ()),
        ("claude-new", True, True, "0.101.0", ()),
        ("codex-new", True, True, "2.6.0", ()),
        (
            "copilot-load",
            True,
            False,
            "1.0.102",
            ("/opt/copilot/node_modules/@github/copilot-linux-x64/copilot", "login"),
        ),
        ("fastagent-load", True, True, "0.10.48", ()),
        ("gemini-load", True, False, "0.61.0", ()),
        ("opencode-new", True, True, "1.18.33", ()),
    ],
)
def test_initialize_is_read(name: str, load: bool, resume: bool, version: str, login: tuple[str, ...]) -> None:  # noqa: FBT001 - a row of the table
    """Version and what each agent advertises; the login command where it tells one."""
    info = acp.AgentInfo.from_initialize(responses(name)[0])
    assert (info.load_session, info.resume_session, info.version) == (load, resume, version)
    commands = [method.command for method in info.auth_methods if method.command]
    assert commands == ([login] if login else [])


@pytest.mark.parametrize(
    ("name", "mode", "options", "own_id"),
    [
        ("auggie-new", "default", 0, True),
        ("claude-load", "default", 5, True),
        ("codex-load", "agent", 3, False),
        ("codex-resume", "agent", 3, False),
        ("fastagent-load", "agent", 0, False),
        ("gemini-load", "default", 0, False),
        ("opencode-new", None, 2, True),
    ],
)
def test_tok_7_set_ups_are_read_with_and_without_an_id(name: str, mode: str | None, options: int, own_id: bool) -> None:  # noqa: FBT001 - a row of the table
    """Mode, number of options, and whether the answer to new, load or resume names a session."""
    setup = acp.session_setup(responses(name)[1])
    assert (setup.current_mode, len(setup.config_options)) == (mode, options)
    assert (setup.session_id is not None) is own_id
    assert mode is None or mode in {choice.id for choice in setup.modes}


def test_hist_1_gemini_replays_after_its_answer() -> None:
    """The recorded fact that the replay gate is built for: one update before the answer to load, the rest behind it."""
    kinds = [kind_of(event) for event in events("gemini-load")]
    answer = [place for place, kind in enumerate(kinds) if kind == "Response"][1]
    assert kinds[1:answer].count("user_message_chunk") == 1
    assert kinds[answer:].count("user_message_chunk") == 4


def test_permission_requests_are_read() -> None:
    """The options of three agents, and what each policy would choose."""
    chosen = {}
    for name in ("auggie-new", "claude-new", "opencode-new"):
        (request,) = [event for event in events(name) if isinstance(event, acp.Request)]
        ask = acp.permission(request.params)
        chosen[name] = (
            ask.kind,
            acp.auto_permission(ask.options, ask.kind, "deny"),
            acp.auto_permission(ask.options, ask.kind, ["execute"]),
        )
    assert chosen == {
        "auggie-new": ("", "session-disable", None),
        "claude-new": ("execute", "reject", "allow-once"),
        "opencode-new": ("execute", "reject", "once"),
    }


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("claude-new", "```console\ndone\n```"),
        ("copilot-load", "done\n<shellId: 0 completed with exit code 0>"),
        ("opencode-new", "done\n"),
        ("auggie-new", "Here are the results from executing the command."),
    ],
)
def test_hist_10_tool_results_have_content(name: str, output: str) -> None:
    """The output of the tool call is found, in its content or in rawOutput."""
    updates = [event for event in events(name) if isinstance(event, acp.Update) and event.kind == "tool_call_update"]
    assert acp.tool_output(updates[-1].body).startswith(output)
