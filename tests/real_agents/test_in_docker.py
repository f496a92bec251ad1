"""Agents that nobody here wrote in containers of a real engine: their memory and their login lie in what is mounted.

The proof of memory is the model's: its request holds what only an earlier turn had said.
"""

import json
import os
import stat
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from backend import Backend
from real_agents.conftest import Model, serving
from real_agents.install import PLACE, folders, is_installed
from real_agents.setups import CODEX_CONFIG, KEY
from runtimes.contained import Contained
from runtimes.engine import DockerEngine

pytestmark = pytest.mark.real_agent

FIRST = "Please remember MARK-ALPHA1."
SECOND = "Which words, besides MARK-BRAVO2?"
THIRD = "Which words, besides MARK-CHARLIE3?"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One agent as a person has it: a login in the user's home, without which it asks its model nothing.

    `env` and `files`, by their place inside, go into the container; `{url}` in them is the model server's address.
    """

    name: str
    login: str
    content: Mapping[str, object]
    env: Mapping[str, str] = {}
    files: Mapping[str, str] = {}


CODEX_LOGIN = ('env_key = "OPENAI_API_KEY"\nrequires_openai_auth = false', "requires_openai_auth = true")
CASES = (
    Case(
        name="codex",
        login=".codex/auth.json",
        content={"OPENAI_API_KEY": KEY},
        files={"/etc/codex/config.toml": CODEX_CONFIG.replace(*CODEX_LOGIN)},
    ),
    Case(
        name="claude-code",
        login=".claude/.credentials.json",
        content={
            "claudeAiOauth": {
                "accessToken": "sk-ant-oat01-test",
                "refreshToken": "sk-ant-ort01-test",
                "expiresAt": 4102444800000,
                "scopes": ["user:inference", "user:profile"],
                "subscriptionType": "max",
            }
        },
        env={"ANTHROPIC_BASE_URL": "{url}", "DISABLE_TELEMETRY": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    ),
)


@pytest.fixture
def container_model(tmp_path: Path, engine: DockerEngine) -> Iterator[Model]:
    """The model server where containers reach it: at this machine's address in the engine's bridge."""
    with serving(tmp_path / "model.jsonl", engine.gateway) as running:
        yield running


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    """An agent that is installed."""
    found: Case = request.param
    if not is_installed(found.name):
        pytest.skip(f"{found.name} is not in {PLACE}: make real-agents puts it there")
    return found


@pytest.fixture(scope="module")
def image(case: Case, engine: DockerEngine) -> Iterator[str]:
    """An image in which the agent runs; the agent itself, half a gigabyte, is mounted."""
    name = f"kandev-test/{case.name}:1"
    trees, commands = folders(case.name)
    engine.make_image(name, trees, os.pathsep.join([*map(str, commands), "/usr/bin", "/bin"]))
    yield name
    engine.docker("rmi", name)


@pytest.fixture
async def contained_backend(
    tmp_path: Path, case: Case, image: str, engine: DockerEngine, container_model: Model
) -> AsyncIterator[Backend]:
    """A running backend whose user is logged in, and has other things in the home too."""
    mounts = [f"{tree}:{tree}:ro" for tree in folders(case.name)[0]]
    for place, text in case.files.items():
        (tmp_path / Path(place).name).write_text(text.replace("{url}", container_model.url))
        mounts.append(f"{tmp_path / Path(place).name}:{place}:ro")
    env = [f'{name} = "{value.replace("{url}", container_model.url)}"' for name, value in case.env.items()]
    lines = [f'[runtimes.docker]\nimages = {{ {case.name} = "{image}" }}', f"mounts = {json.dumps(mounts)}"]
    config = "\n".join([*lines, "[runtimes.docker.env]", *env])
    async with Backend(tmp_path, config=config, environment={"DOCKER_HOST": engine.url}) as made:
        login = made.user_home / case.login
        login.parent.mkdir(parents=True)
        login.write_text(json.dumps(case.content))
        login.with_name("private-notes").write_text("private")
        await made.start()
        yield made
        async with made.client() as client:
            for task in (await client.call("task.list", {}))["tasks"]:
                await client.call("task.delete", {"task_id": task["id"], "force": True})
        assert engine.docker("ps", "-aq") == ""


async def test_cont_2_a_real_agent_remembers_over_its_container(
    contained_backend: Backend, engine: DockerEngine, container_model: Model, repository: Path, case: Case
) -> None:
    """Killed, the backend attaches; with the container removed, a new one finds the agent's own memory and login."""
    backend = contained_backend
    async with backend.client() as client:
        session = await Contained.create(
            backend, engine, client, description=FIRST, agent=case.name, repository_path=str(repository)
        )
        container, worktree = session.container, (await session.status())["worktree_path"]
        assert container_model.request_with("MARK-ALPHA1")["marks"] == ["MARK-ALPHA1"]
        home = backend.home / "run/docker" / session.id / "home"
        assert stat.S_IMODE((home / case.login).stat().st_mode) == 0o600
        assert not (home / case.login).with_name("private-notes").exists()
        await backend.kill9()

    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        assert "MARK-ALPHA1 MARK-BRAVO2" in await session.say(SECOND)
        assert session.container == container
        assert container_model.request_with("MARK-BRAVO2")["marks"] == ["MARK-ALPHA1", "MARK-BRAVO2"]

        engine.docker("rm", "-f", container)
        assert "MARK-ALPHA1 MARK-BRAVO2 MARK-CHARLIE3" in await session.say(THIRD)
        assert session.container not in {"", container}
        asked = container_model.request_with("MARK-CHARLIE3")
        assert asked["marks"] == ["MARK-ALPHA1", "MARK-BRAVO2", "MARK-CHARLIE3"]
        assert worktree in str(asked["body"])
        assert (await session.status())["how"] == "native"
        assert container_model.strange() == []


async def test_cont_1_a_turn_of_a_real_agent_goes_on(
    contained_backend: Backend, engine: DockerEngine, case: Case
) -> None:
    """The backend is killed in the middle of its turn; the next one has each piece of the answer once."""
    backend = contained_backend
    async with backend.client() as client:
        session = await Contained.create(backend, engine, client, description=FIRST, agent=case.name)
        prompt = (await session.call("message.add", content="slow: 60"))["message"]["id"]
        await client.wait_event("session.message.delta", lambda delta: "piece 3" in delta["text"])
        await backend.kill9()
    await backend.start()
    async with backend.client() as client:
        await session.follow(client)
        assert (await session.status())["how"] == "attached"
        assert (await session.turn_ended())["state"] == "completed"
        said = (await session.answer(prompt)).split()
        assert [word for word in said if word.isdecimal()][:60] == [str(n) for n in range(1, 61)]
