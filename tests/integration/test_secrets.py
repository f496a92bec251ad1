"""What a running backend tells to whom: where it listens, what its logs hold, what a browser may do (SEC)."""

import asyncio
import http.client
import json
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from backend import Backend
from conversation import Conversation
from fakes import FakeAgent
from leftovers import processes_naming
from wire_client import Client

SECRET = "sk-in-the-environment-0123456789"
PROMPT = "a prompt that nobody else may read"
ANSWER = "<script>alert('an answer that nobody else may read')</script>"
TOKEN = "agent-session-of-nobody-else"
COMPLAINT = "an error that holds a secret of the model"


SAYS = [
    {"match": "fail", "error": {"code": -32603, "message": COMPLAINT}},
    {"match": "die", "steps": [{"text": ANSWER}, {"die": 3}]},
    {"steps": [{"text": ANSWER}]},
]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> FakeAgent:
    """The agent that is given the secret."""
    return FakeAgent(tmp_path_factory.mktemp("agent"), log_env=["MODEL_KEY"], on={"session/prompt": SAYS})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory, agent: FakeAgent) -> AsyncIterator[Backend]:
    """A backend with a secret in its environment, which the agent is given by its table."""
    config = (
        f"[agents.trusted]\ncommand = {json.dumps(agent.command)}\nnative_session_resume = true\n"
        'env = { MODEL_KEY = "$SECRET_KEY" }\n'
    )
    async with Backend(tmp_path_factory.mktemp("stage"), config=config, environment={"SECRET_KEY": SECRET}) as backend:
        await backend.start()
        yield backend


async def begun(client: Client, agent: FakeAgent) -> Conversation:
    """A session that has had its first turn."""
    created = await client.call("task.create", {"agent": "trusted", "description": PROMPT, "start": False})
    session = Conversation(client, agent, created["task"]["id"], created["session"]["id"])
    await session.follow(client)
    await session.begin()
    return session


def logs_of(backend: Backend) -> Iterator[tuple[str, str]]:
    """Everything that the backend itself wrote for people: name and text."""
    yield "standard output", backend.log.read_text(errors="replace")
    for path in sorted((backend.home / "logs").rglob("*")):
        if path.is_file() and path.parent.name != "agents":  # an agent's own stderr is the agent's business
            yield path.name, path.read_text(errors="replace")


async def test_sec_3_no_log_holds_prompts_answers_tokens_or_the_environment(stage: Backend, agent: FakeAgent) -> None:
    """After turns, errors, deaths, a rejected token, refused requests and a restart the logs have none of it."""
    async with stage.client() as client:
        session = await begun(client, agent)
        await session.say(f"fail {PROMPT}")
        await session.say(f"die {PROMPT}")
        await session.resume()
        await session.lose_agent()
        agent.update(on={"session/load": {"error": {"code": -32002, "message": f"Session {PROMPT} not found"}}})
        agent.update(resume=False)
        await session.fail_to_resume()
        assert stage.get(f"/?token={stage.token}")[0] == 303
        assert stage.get("/nothing?token=wrong-token-of-somebody")[0] == 404
    assert agent.events("start")[0]["values"] == {"MODEL_KEY": SECRET}
    named = next(message["params"]["sessionId"] for message in agent.requests("session/prompt"))
    secrets = [SECRET, PROMPT, "nobody else may read", COMPLAINT, stage.token, "wrong-token-of-somebody", named]
    await stage.restart()
    for name, text in logs_of(stage):
        assert [secret for secret in secrets if secret in text] == [], name
    assert any(name == "backend.log" and text for name, text in logs_of(stage))


async def test_sec_3_a_secret_is_on_no_command_line_and_in_no_answer(stage: Backend, agent: FakeAgent) -> None:
    """Whoever lists processes or settings sees the name of the variable at most."""
    agent.update(on={"session/prompt": SAYS})
    async with stage.client() as client:
        await begun(client, agent)
        shown = json.dumps([await client.call("agent.list"), await client.call("task.list")])
    listed = "\n".join(processes_naming(str(stage.home)).values())
    config = await stage.cli("config")
    assert SECRET not in shown + listed + json.dumps(config.answer)
    assert stage.token not in listed


async def test_sec_1_the_backend_listens_on_loopback_only(stage: Backend) -> None:
    """Nothing of its process group listens on another address, as the kernel sees it."""
    addresses = await asyncio.to_thread(_listening, stage.pid)
    assert addresses
    assert all(address.startswith(("0100007F:", "00000000000000000000000001000000:")) for address in addresses)


def _listening(pid: int) -> list[str]:
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(link) if link.is_symlink() else ""
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]
        if Path(f"/proc/{pid}/net/{kind}").exists()
    ]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]


async def test_sec_1_without_a_token_there_is_nothing_beyond_loopback(tmp_path: Path) -> None:
    """--no-auth with another address ends with 2 before anything listens, and says why."""
    async with Backend(tmp_path) as backend:
        result = await backend.cli("serve", "--host", "0.0.0.0", "--port", "0", "--no-auth")
        assert result.code == 2
        assert "loopback" in result.answer["error"]["message"]
        assert not (backend.home / "server.json").exists()


async def test_sec_1_the_token_is_made_once_and_is_the_owners(stage: Backend) -> None:
    """0600, long, and the same after a restart; `server.json` does not hold it."""
    path = stage.home / "token"
    token = stage.token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) >= 32
    assert token not in (stage.home / "server.json").read_text()
    await stage.restart()
    assert stage.token == token


async def test_sec_4_no_answer_lets_a_script_of_an_agent_run(stage: Backend, agent: FakeAgent) -> None:
    """Every answer forbids inline scripts and frames; what an agent said is served as data, never as a page."""
    agent.update(on={"session/prompt": SAYS})
    async with stage.client() as client:
        session = await begun(client, agent)
    export = f"/api/sessions/{session.id}/export"
    for path, status in [("/", 200), ("/healthz", 200), (export, 200), ("/nothing", 404), ("/api/sessions/x/y", 404)]:
        connection = http.client.HTTPConnection(stage.url.removeprefix("http://"), timeout=10)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {stage.token}"})
            answer = connection.getresponse()
            body = answer.read().decode()
        finally:
            connection.close()
        assert answer.status == status, path
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        if path == export:
            assert "<script>" in body
            assert answer.headers["Content-Type"].startswith("application/x-ndjson")
            assert answer.headers["Content-Disposition"].startswith("attachment")
        elif "html" in answer.headers["Content-Type"]:
            assert "<script>" not in body
