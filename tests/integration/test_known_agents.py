"""What agents let know while they run is kept: their versions with what these offer, refusals, and logins."""

from collections.abc import Iterator
from typing import Any

import pytest

from backend import Backend
from conversation import LOGIN_HINT, Cast, Conversations
from kandev.agents import AgentConfig, SessionConfig
from kandev.domain.known_agents import KnownLogin, KnownVersion
from kandev.lifecycle.reader import Reader
from kandev.orchestrator.known_agents import how_it_resumes, login_view
from kandev.protocols import acp
from kandev.store.sqlite import SqliteDatabase
from stored import TOKEN, StoredSession, answer, chunk, refusal, stored, update


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    """One database for the module; each test has an agent of its own name in it."""
    with stored(tmp_path_factory.mktemp("known")) as opened:
        yield opened


def introduction(version: str = "1", **capabilities: Any) -> dict[str, Any]:
    """An answer to initialize."""
    methods = [{"id": "key", "name": "A key"}]
    info = {"name": "program", "version": version}
    return {"protocolVersion": 1, "agentInfo": info, "agentCapabilities": capabilities, "authMethods": methods}


async def introduce(session: StoredSession, reader: Reader, **fields: Any) -> None:
    request_id = await session.request(reader, "initialize", lambda n: acp.initialize(n, "0"))
    reader.feed([answer(request_id, introduction(**fields))])
    await session.commit(reader)


async def test_each_version_of_an_agent_is_kept_with_its_last_answer(database: SqliteDatabase) -> None:
    """The newest comes first; the same version again replaces what it said before, and keeps when it was first seen."""
    session = await StoredSession.create(database)
    reader = session.reader()
    await introduce(session, reader, version="1", loadSession=False)
    await introduce(session, reader, version="2", loadSession=True)
    await introduce(session, reader, version="1", loadSession=True)
    found = session.store.known_versions(session.ref.agent)
    assert {one.version for one in found} == {"1", "2"}
    assert all(one.initialize["agentCapabilities"] == {"loadSession": True} for one in found)
    assert found[0].seen_at >= found[1].seen_at
    (first,) = [one for one in found if one.version == "1"]
    assert (first.program, first.refuses_restore) == ("program", False)
    assert first.first_seen_at <= first.seen_at


async def test_tok_13_a_login_is_needed_until_the_agent_works_again(database: SqliteDatabase) -> None:
    """Asked for by a prompt's error, in the agent's words; open once a session opens; good once a turn has ended."""
    session = await StoredSession.create(database)
    reader = session.reader()

    def login() -> tuple[str, str]:
        known = session.store.known_login(session.ref.agent)
        return (known.state, known.said) if known else ("", "")

    await session.opened(reader)
    _turn, request_id = await session.prompt(reader)
    reader.feed([refusal(request_id, -32000, "Please log in")])
    await session.commit(reader)
    assert login() == ("needed", "Please log in")
    reader.feed([update("session_info_update", title="T")])
    await session.commit(reader)
    assert login() == ("needed", "Please log in")
    loading = await session.loading(reader)
    reader.feed([answer(loading, {})])
    await session.commit(reader)
    assert login() == ("", "")
    _turn, request_id = await session.prompt(reader)
    reader.feed([chunk("Hi"), answer(request_id, {"stopReason": "end_turn"})])
    await session.commit(reader)
    assert login() == ("worked", "")
    assert session.row.resume_token == TOKEN


async def test_tok_9_an_agent_that_names_its_session_while_it_wants_a_login(conversation: Conversations) -> None:
    """Its words are kept and shown, the id in them is not."""
    session = await conversation()
    await session.begin()
    token = session.agent.requests("session/prompt")[0]["params"]["sessionId"]
    await session.lose_agent()
    error = {"code": -32000, "message": f"Log in to go on with {token}", "data": {"session": token}}
    session.agent.update(on={"session/prompt": {"error": error}})
    await session.say("second")
    status = await session.status()
    shown = [status, await session.transcript(), session.client.events]
    shown.append(await session.client.call("agent.check", {"name": status["agent"]}))
    assert "Log in to go on with …" in status["login"]["said"]
    assert "Log in to go on with …" in status["last_turn"]["error"]
    assert token not in repr(shown)


def version(*, refuses: bool = False, methods: Any = (), **capabilities: Any) -> KnownVersion:
    return KnownVersion(
        agent="a",
        version="1",
        program="p",
        initialize={**introduction(**capabilities), "authMethods": list(methods)},
        refuses_restore=refuses,
        first_seen_at="",
        seen_at="",
    )


NATIVE = SessionConfig(native_session_resume=True)
BOTH = SessionConfig(native_session_resume=True, history_context_injection=True)
RESUME: dict[str, Any] = {"sessionCapabilities": {"resume": {}}}


@pytest.mark.parametrize(
    ("session", "known", "words"),
    [
        (NATIVE, None, "restores its own session"),
        (NATIVE, version(loadSession=True), "session/load"),
        (NATIVE, version(loadSession=True, **RESUME), "session/resume"),
        (NATIVE, version(), "starts new"),
        (NATIVE, version(loadSession=True, refuses=True), "starts new"),
        (BOTH, version(), "recorded conversation"),
        (SessionConfig(history_context_injection=True), version(loadSession=True), "recorded conversation"),
        (SessionConfig(), version(loadSession=True), "starts without memory"),
        (SessionConfig(resume_flag="--resume"), None, "by its command line"),
        (SessionConfig(continue_session_cmd=("a", "continue")), None, "by its command line"),
    ],
)
def test_tok_4_what_a_version_says_wins_where_it_says_no(
    session: SessionConfig, known: KnownVersion | None, words: str
) -> None:
    """The flags say what is wanted; a capability that is missing takes it away, and one that is there adds nothing."""
    config = AgentConfig(name="a", display_name="A", command=("a",), session=session)
    assert how_it_resumes(config, known) == words


@pytest.mark.parametrize(
    ("hint", "method", "command"),
    [
        ("a login", {"id": "m"}, "a login"),
        ("", {"id": "m"}, ""),
        ("", {"id": "m", "type": "terminal", "args": ["--cli", "auth login"]}, "a --cli 'auth login'"),
        ("", {"id": "m", "_meta": {"terminal-auth": {"command": "/x/a", "args": ["login"]}}}, "/x/a login"),
        ("", {"id": "m", "_meta": {"terminal-auth": {"command": 7, "args": "login"}}}, ""),
    ],
)
def test_the_agents_own_command_is_shown_where_none_is_configured(
    hint: str, method: dict[str, Any], command: str
) -> None:
    """By the protocol's terminal login, which is the agent itself with other arguments, or by the older extension."""
    config = AgentConfig(name="a", display_name="A", command=("a", "--acp"), login_hint=hint)
    login = KnownLogin(agent="a", state="needed", said="Log in", at="now")
    view = login_view(config, version(methods=[method]), login)
    assert (view.state, view.said, view.command) == ("needed", "Log in", command)
    assert [one.id for one in view.methods] == ["m"]


async def test_tok_13_a_login_that_is_needed_is_told_wherever_one_looks(conversation: Conversations) -> None:
    """Status, notice and list tell that it is needed, in whose words, how, by which methods; then, that it worked."""
    needed = {"error": {"code": -32000, "message": "Authentication required"}}
    methods = [{"id": "browser", "name": "In the browser", "description": "Opens a page"}]
    session = await conversation(on={"session/new": needed}, auth_methods=methods)
    await session.act("task.session.start")
    await session.event("session.resume.failed")
    status = await session.status()
    name, login = status["agent"], status["login"]
    assert (login["state"], login["said"], login["command"]) == ("needed", "Authentication required", LOGIN_HINT)
    assert login["methods"] == [{**methods[0], "command": ""}]
    listed = (await session.client.call("agent.check", {"name": name}))["login"]
    assert {**login, "credentials": []} == listed
    assert (await session.notice("login"))["metadata"]["methods"] == login["methods"]
    session.agent.update(on={})
    await session.act("task.session.recover", action="resume")
    await session.turn_ended()
    assert (await session.status())["login"] is None
    assert (await session.client.call("agent.check", {"name": name}))["login"]["state"] == "worked"


async def test_tok_8_a_refusal_is_known_after_a_restart_of_the_backend(killable: Backend, cast: Cast) -> None:
    """What a version cannot do is kept for it alone, and read by the next backend."""
    refused = {"error": {"code": -32601, "message": "Method not found"}}
    async with killable.client() as client:
        session = await cast.conversation(client, on=dict.fromkeys(["session/resume", "session/load"], refused))
        await session.begin()
        await session.lose_agent()
        assert (await session.resume())["how"] == "fresh"
        await session.say("second")
        name = (await session.status())["agent"]
        assert (await client.call("agent.check", {"name": name}))["resumes"] == "starts new"
    session.agent.update(on={})
    await killable.kill9()
    await killable.start()
    async with killable.client() as client:
        await session.follow(client)
        await session.resume()
        assert session.methods() == ["initialize", "session/new"]
        await session.say("third")
        session.agent.update(version="2")
        await session.lose_agent()
        assert (await session.resume())["how"] == "native"
        assert (await client.call("agent.check", {"name": name}))["resumes"] == "session/resume"
