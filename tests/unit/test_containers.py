"""What a session's container is made of, where the engine is looked for, and what is brought into a container."""

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from kandev.agents.base import AgentConfig, launch_command, launch_environment
from kandev.agents.builtin import demo
from kandev.agents.place import Place
from kandev.config import DockerConfig
from kandev.errors import Conflict, Invalid
from kandev.runtimes.base import InstanceRequest
from kandev.runtimes.container_files import ContainerFiles
from kandev.runtimes.container_spec import ARCHIVE, container_name, container_spec, image_of
from kandev.runtimes.container_user import user_of
from kandev.runtimes.docker_address import engine_address

INSIDE = Place(python="python3", demo_agent=("/x/agentctl.pyz", "demo-agent"), own_environment=True)


def spec(tmp_path: Path, *, cwd: str = "", agent: str = "demo", **config: object) -> dict[str, object]:
    request = InstanceRequest(
        instance_id="i", session_id="s", task_id="t", execution_id="e", cwd=cwd, agent=agent, credentials=()
    )
    files = ContainerFiles(tmp_path, "s")
    docker = DockerConfig(**config)  # type: ignore[arg-type]  # as a test gives them
    environ = {"SECRET": "value"}
    return container_spec(
        request, docker, files, archive=Path("/a.pyz"), user=user_of(docker), home_id="home", environ=environ
    )


def host(made: dict[str, object]) -> dict[str, object]:
    found = made["HostConfig"]
    assert isinstance(found, dict)
    return found


def mounts(made: dict[str, object]) -> dict[str, bool]:
    """Targets of the mounts, and whether each may be written."""
    found = host(made)["Mounts"]
    assert isinstance(found, list)
    return {one["Target"]: not one["ReadOnly"] for one in found}


def test_cont_3_a_container_has_the_labels_of_the_contract(tmp_path: Path) -> None:
    """By them the next backend of the same home finds it, and no other."""
    assert spec(tmp_path)["Labels"] == {
        "kandev.managed": "true",
        "kandev.home": "home",
        "kandev.session_id": "s",
        "kandev.task_id": "t",
        "kandev.instance_id": "i",
    }
    assert container_name("0123456789", "s") != container_name("9123456789", "s")


def test_limits_network_and_environment_come_from_the_configuration(tmp_path: Path) -> None:
    """Memory in MiB, cpus in parts, "$NAME" from the backend's environment; a name that is not set is left out."""
    made = spec(tmp_path, memory_mb=512, cpus=0.5, env={"A": "b", "KEY": "$SECRET", "NO": "$MISSING"}, network="net")
    assert host(made)["Memory"] == 512 << 20
    assert host(made)["NanoCpus"] == 500_000_000
    assert host(made)["NetworkMode"] == "net"
    assert host(made)["Init"] is True
    assert made["Env"] == ["A=b", "KEY=value", f"HOME={tmp_path}/s/home"]
    assert made["User"] == f"{os.geteuid()}:{os.getegid()}"


@pytest.mark.parametrize("network", ["none", "host"])
def test_without_a_network_of_its_own_no_port_is_published(tmp_path: Path, network: str) -> None:
    """Then there is the socket only; in the network of the machine agentctl would listen to everybody."""
    assert host(spec(tmp_path, network=network))["PortBindings"] == {}
    assert host(spec(tmp_path))["PortBindings"] == {"8765/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}


def test_the_worktree_is_writable_and_what_git_obeys_is_not(tmp_path: Path) -> None:
    """Hooks and configuration of the repository, and the pointer to it, are read-only; each at its own path."""
    common, worktree = tmp_path / "repo/.git", tmp_path / "work"
    administration = common / "worktrees/work"
    administration.mkdir(parents=True)
    (administration / "commondir").write_text("../..\n")
    worktree.mkdir()
    (worktree / ".git").write_text(f"gitdir: {administration}\n")
    made = mounts(spec(tmp_path / "run", cwd=str(worktree)))
    assert made == {
        str(tmp_path / "run/s"): True,
        ARCHIVE: False,
        str(worktree): True,
        str(worktree / ".git"): False,
        str(common): True,
        str(common / "hooks"): False,
        str(common / "config"): False,
    }
    assert (common / "hooks").is_dir(), "where there were none, the agent cannot make some"


def test_a_directory_without_git_is_all_that_is_mounted(tmp_path: Path) -> None:
    """Even if it lies in a repository: what stands around it is none of the agent's business."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "plain").mkdir()
    made = mounts(spec(tmp_path / "run", cwd=str(tmp_path / "plain")))
    assert set(made) == {str(tmp_path / "run/s"), ARCHIVE, str(tmp_path / "plain")}


def test_extra_mounts_are_paths_and_perhaps_read_only(tmp_path: Path) -> None:
    """The same path inside unless another is named; what is none is refused with its text."""
    made = mounts(spec(tmp_path, mounts=("/data", "/cache:/in:ro", "/c:/d:rw")))
    assert {path: made[path] for path in ("/data", "/in", "/d")} == {"/data": True, "/in": False, "/d": True}
    for wrong in ("data", "/a:b", "/a:/b:rx", ""):
        with pytest.raises(Invalid, match="is no mount"):
            spec(tmp_path, mounts=(wrong,))


def test_an_agent_may_have_an_image_of_its_own() -> None:
    """Else the one for all."""
    config = DockerConfig(image="all:1", images={"codex": "codex:2"})
    assert (image_of(config, "codex"), image_of(config, "demo")) == ("codex:2", "all:1")


def test_the_engine_is_the_one_of_the_docker_command(tmp_path: Path) -> None:
    """Configuration, then DOCKER_HOST, then contexts, then the default; a context that is not there is named."""
    environ = {"DOCKER_CONFIG": str(tmp_path)}
    assert engine_address("", "", environ) == "unix:///var/run/docker.sock"
    meta = tmp_path / "contexts/meta" / sha256(b"mine").hexdigest() / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Endpoints": {"docker": {"Host": "unix:///mine.sock"}}}))
    (tmp_path / "config.json").write_text('{"currentContext": "mine"}')
    assert engine_address("", "", environ) == "unix:///mine.sock"
    assert engine_address("", "", {**environ, "DOCKER_HOST": "unix:///h.sock"}) == "unix:///h.sock"
    assert engine_address("", "mine", {**environ, "DOCKER_HOST": "unix:///h.sock"}) == "unix:///mine.sock"
    assert engine_address("unix:///c.sock", "mine", environ) == "unix:///c.sock"
    with pytest.raises(Conflict, match="no docker context 'other'"):
        engine_address("", "other", environ)


def test_only_login_files_are_brought_into_the_session_home(tmp_path: Path) -> None:
    """Private copies, renewed when the user logged in again, and not when the agent renewed its own."""
    user = tmp_path / "user"
    (user / ".agent").mkdir(parents=True)
    login = user / ".agent/auth.json"
    login.write_text("first")
    (user / ".agent/history").write_text("none of its business")
    environ = {"HOME": str(user)}
    files = ContainerFiles(tmp_path, "s")
    places = ("$AGENT_KEY", "${AGENT_HOME:-~/.agent}/auth.json", "~/.agent/missing", "/etc/passwd")
    files.bring_login(places, environ)
    copy = files.home / ".agent/auth.json"
    assert [path for path in files.home.rglob("*") if path.is_file()] == [copy]
    assert (copy.read_text(), copy.stat().st_mode & 0o777) == ("first", 0o600)
    copy.write_text("renewed inside")
    files.bring_login(places, environ)
    assert copy.read_text() == "renewed inside"
    login.write_text("logged in again")
    os.utime(login, (copy.stat().st_mtime + 5,) * 2)
    files.bring_login(places, environ)
    assert copy.read_text() == "logged in again"


def test_the_token_is_private_and_stays_for_the_session(tmp_path: Path) -> None:
    """The next backend reads it to attach; the arguments name the instance that the container was started for."""
    files = ContainerFiles(tmp_path, "s")
    assert (files.token, files.instance_id) == ("", "")
    files.prepare("one", cap_bytes=1, idle_s=0, listens_on_network=True)
    token = files.token
    assert len(token) == 64
    assert (tmp_path / "s/token").stat().st_mode & 0o777 == 0o600
    files.prepare("two", cap_bytes=1, idle_s=0, listens_on_network=False)
    assert (files.token, files.instance_id) == (token, "two")
    words = files.arguments.read_text().splitlines()
    assert [word for word in words if word.startswith(("unix:", "tcp:"))] == [f"unix:{files.socket('two')}"]


def test_a_socket_path_that_is_too_long_leaves_the_port(tmp_path: Path) -> None:
    """107 bytes are the most that a Unix socket's path may have."""
    files = ContainerFiles(tmp_path / ("x" * 100), "s")
    assert files.socket("i") == ""


def test_a_command_finds_python_and_the_demo_agent_inside() -> None:
    """The demo agent is in the file that is mounted; this machine's paths mean nothing there."""
    assert launch_command(demo.AGENT, place=INSIDE) == ["python3", "-I", "-S", "/x/agentctl.pyz", "demo-agent"]


def test_the_environment_inside_is_the_container_s_own() -> None:
    """Of the backend's only what the agent's table names goes there, and no paths."""
    config = AgentConfig(name="a", display_name="A", command=("a",), env={"MINE": "$SECRET"}, env_allow=("KEY", "A_*"))
    environ = {"PATH": "/bin", "HOME": "/home/me", "KEY": "k", "A_HOME": "/home/me/.a", "A_MODE": "m", "SECRET": "s"}
    assert launch_environment(config, environ, INSIDE) == {"KEY": "k", "A_MODE": "m", "MINE": "s"}


def test_a_user_is_told_by_numbers() -> None:
    """A name is one of the image's, which nobody here knows: nothing could be given to it."""
    assert [user_of(DockerConfig(user=user)).gid for user in ("7", "7:8")] == [7, 8]
    assert user_of(DockerConfig()).uid == os.geteuid()
    for name in ("node", "7:node", ":"):
        with pytest.raises(Conflict, match="is a name"):
            user_of(DockerConfig(user=name))


def test_another_user_needs_a_repository_that_it_may_write_to(tmp_path: Path) -> None:
    """Or none at all: a directory of ours is given to it; nothing of a person's is."""
    other = user_of(DockerConfig(user=str(os.geteuid() + 1)))
    repository = tmp_path / "repository"
    objects = repository / ".git/objects"
    objects.mkdir(parents=True)
    (repository / ".git/HEAD").write_text("ref: refs/heads/main")
    if os.geteuid() != 0:
        with pytest.raises(Conflict, match="only where root runs the backend"):
            other.require_place(str(tmp_path))
        return
    other.require_place(str(tmp_path))
    with pytest.raises(Conflict, match=f"may not write to {repository}"):
        other.require_place(str(repository))
    for path in (repository, objects):
        path.chmod(0o777)
    other.require_place(str(repository))
