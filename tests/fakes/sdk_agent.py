"""An agent built with the official SDK: a reading of the protocol that is independent of ours.

Run: python tests/fakes/sdk_agent.py STORE_DIR [--load-only]. Sessions are files in STORE_DIR, so that another process
loads them. It answers a prompt with "N: TEXT | TEXT ...", all texts of the session so far; a prompt that begins with
"ask" makes it ask for permission first and answers "chose OPTION". Load replays; resume does not, and is not offered
with --load-only.
"""

import asyncio
import json
import sys
import uuid
from pathlib import Path
from typing import Any, cast

import acp
from acp import helpers, schema
from acp.interfaces import Client

OPTIONS = [
    schema.PermissionOption(option_id="yes", name="Yes", kind="allow_once"),
    schema.PermissionOption(option_id="no", name="No", kind="reject_once"),
]


class StoringAgent:
    """Keeps each session as a list of [role, text] in one JSON file."""

    def __init__(self, store: Path, *, resumes: bool) -> None:
        self.store = store
        self.resumes = resumes
        self.client: Client
        self.stopping: set[str] = set()

    def on_connect(self, conn: Client) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> schema.InitializeResponse:
        sessions = schema.SessionCapabilities(
            resume=schema.SessionResumeCapabilities() if self.resumes else None,
            close=schema.SessionCloseCapabilities(),
        )
        return schema.InitializeResponse(
            protocol_version=min(protocol_version, acp.PROTOCOL_VERSION),
            agent_capabilities=schema.AgentCapabilities(load_session=True, session_capabilities=sessions),
            agent_info=schema.Implementation(name="sdk-agent", version="1"),
        )

    async def new_session(self, **_: Any) -> schema.NewSessionResponse:
        session_id = uuid.uuid4().hex
        self.save(session_id, [])
        return schema.NewSessionResponse(session_id=session_id, modes=modes())

    async def load_session(self, session_id: str, **_: Any) -> schema.LoadSessionResponse:
        for role, text in self.read(session_id):
            update = acp.update_user_message_text if role == "user" else acp.update_agent_message_text
            await self.client.session_update(session_id, update(text))
        return schema.LoadSessionResponse(modes=modes())

    async def resume_session(self, session_id: str, **_: Any) -> schema.ResumeSessionResponse:
        self.read(session_id)
        return schema.ResumeSessionResponse(modes=modes())

    async def close_session(self, session_id: str, **_: Any) -> None:
        self.read(session_id)

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> None:
        await self.client.session_update(session_id, helpers.update_current_mode(mode_id))

    async def cancel(self, session_id: str, **_: Any) -> None:
        self.stopping.add(session_id)

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> schema.PromptResponse:
        self.stopping.discard(session_id)
        history = self.read(session_id)
        text = "".join(block.text for block in prompt if block.type == "text")
        history.append(("user", text))
        self.save(session_id, history)
        if text.startswith("ask"):
            answer = f"chose {await self.ask(session_id, text)}"
        else:
            said = [old for role, old in history if role == "user"]
            answer = f"{len(said)}: {' | '.join(said)}"
        await self.client.session_update(session_id, acp.update_agent_thought_text("thinking"))
        await self.client.session_update(session_id, acp.update_agent_message_text(answer))
        self.save(session_id, [*history, ("agent", answer)])
        return schema.PromptResponse(stop_reason="cancelled" if session_id in self.stopping else "end_turn")

    async def ask(self, session_id: str, title: str) -> str:
        """Announce a tool call, ask for permission, report the call as done. Returns the chosen option."""
        start = acp.start_tool_call("call-1", title, kind="execute", status="pending")
        await self.client.session_update(session_id, start)
        call = schema.ToolCallUpdate(tool_call_id="call-1", title=title, kind="execute")
        answer = await self.client.request_permission(session_id=session_id, tool_call=call, options=OPTIONS)
        outcome = answer.outcome
        chosen = outcome.option_id if outcome.outcome == "selected" else "nothing"
        content: list[Any] = [acp.tool_content(acp.text_block("ran")), acp.tool_diff_content("/a.txt", "new", "old")]
        await self.client.session_update(
            session_id, acp.update_tool_call("call-1", status="completed", content=content)
        )
        return chosen

    def path(self, session_id: str) -> Path:
        return self.store / f"{session_id}.json"

    def save(self, session_id: str, history: list[tuple[str, str]]) -> None:
        self.path(session_id).write_text(json.dumps(history))

    def read(self, session_id: str) -> list[tuple[str, str]]:
        if not (session_id.isalnum() and self.path(session_id).exists()):
            raise acp.RequestError.resource_not_found(session_id)
        return [(role, text) for role, text in json.loads(self.path(session_id).read_text())]


def modes() -> schema.SessionModeState:
    known = [schema.SessionMode(id="code", name="Code"), schema.SessionMode(id="plan", name="Plan")]
    return schema.SessionModeState(current_mode_id="code", available_modes=known)


if __name__ == "__main__":
    storing = StoringAgent(Path(sys.argv[1]), resumes="--load-only" not in sys.argv)
    # Without the flag the SDK refuses session/resume and session/close, which are stable since April 2026.
    storing_agent = cast("acp.Agent", storing)  # the SDK looks methods up by name
    asyncio.run(acp.run_agent(storing_agent, use_unstable_protocol=True))
