"""What a session's container on another host is made of, what goes there and comes back, and which way leads there."""

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kandev.config import RemoteDockerConfig
from kandev.errors import Conflict
from kandev.runtimes.base import InstanceRequest
from kandev.runtimes.remote_container import RemoteFiles, journal_from, parcel, remote_spec
from kandev.runtimes.remote_links import SshLink, TlsLink, link_to

CONFIG = RemoteDockerConfig(host="ssh://host", image="image:1")
REQUEST = InstanceRequest(instance_id="i1", session_id="s1", task_id="t1", execution_id="e1", agent="demo")


def spec(config: RemoteDockerConfig = CONFIG, *, publishes: bool = True) -> Any:
    return remote_spec(
        REQUEST, config, home_id="home", volume="vol", user="7:8", environ={"KEY": "value"}, publishes=publishes
    )


def test_everything_of_a_session_is_in_its_volume() -> None:
    """Nothing of this machine is mounted; agentctl's port is on the loopback of the other host only."""
    made = spec()
    assert made["HostConfig"]["Mounts"] == [{"Type": "volume", "Source": "vol", "Target": "/kandev"}]
    assert made["HostConfig"]["PortBindings"] == {"8765/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}
    assert made["Labels"]["kandev.home"] == "home"
    assert made["User"] == "7:8"


def test_where_ports_cannot_be_reached_none_is_published() -> None:
    """As by TLS: the engine is all that there is."""
    made = spec(publishes=False)
    assert made["HostConfig"]["PortBindings"] == made["ExposedPorts"] == {}


def test_limits_network_environment_and_mounts_are_those_configured() -> None:
    """Paths of mounts are the other host's; "$NAME" is this machine's variable."""
    config = RemoteDockerConfig(
        image="i", memory_mb=5, cpus=1.5, network="net", env={"A": "$KEY"}, mounts=("/data:/d:ro",)
    )
    made = spec(config)
    host = made["HostConfig"]
    assert (host["Memory"], host["NanoCpus"], host["NetworkMode"]) == (5 << 20, 1_500_000_000, "net")
    assert made["Env"] == ["A=value", "HOME=/kandev/home"]
    assert host["Mounts"][1] == {"Type": "bind", "Source": "/data", "Target": "/d", "ReadOnly": True}


def unpacked(tar: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        return {entry.name: entry for entry in opened}


def test_what_goes_there_belongs_to_the_containers_user(tmp_path: Path) -> None:
    """Token, login and directories are for nobody else."""
    archive, login = tmp_path / "a.pyz", tmp_path / "auth.json"
    archive.write_bytes(b"zip")
    login.write_bytes(b"secret")
    made = unpacked(
        parcel(
            archive,
            token="t0ken",
            instance_id="i1",
            options=("--cap", "9"),
            config=CONFIG,
            user="7:8",
            logins={"/kandev/home/.agent/deep/auth.json": login},
        )
    )
    assert {(entry.uid, entry.gid) for entry in made.values()} == {(7, 8)}
    assert made["kandev/token"].mode == made["kandev/home/.agent/deep/auth.json"].mode == 0o600
    assert made["kandev/home/.agent"].mode == made["kandev/home/.agent/deep"].mode == 0o700
    assert made["kandev/home/.agent"].isdir()


def test_a_login_goes_there_once_and_again_when_it_is_renewed_here(tmp_path: Path) -> None:
    """A copy that the agent renewed there stays; a new volume has none."""
    files, login = RemoteFiles(tmp_path / "run", "s1"), tmp_path / ".agent/auth.json"
    files.make("i1")
    login.parent.mkdir()
    login.write_text("secret")
    environ, places = {"HOME": str(tmp_path)}, ["~/.agent/auth.json", "$KEY", "~/../outside", "~/.agent/missing"]
    expected = {"/kandev/home/.agent/auth.json": login}
    assert files.logins(places, environ) == expected
    files.note_logins(expected)
    assert files.logins(places, environ) == {}
    os.utime(login, ns=(1, login.stat().st_mtime_ns + 1))
    assert files.logins(places, environ) == expected
    files.note_logins(expected)
    files.forget_brought()
    assert files.logins(places, environ) == expected


def test_agentctl_goes_there_once(tmp_path: Path) -> None:
    """Another one does, too, and the same again in a new volume, or where it did not answer."""
    files = RemoteFiles(tmp_path / "run", "s1")
    files.make("i1")
    first, second = tmp_path / "agentctl-1.pyz", tmp_path / "agentctl-2.pyz"
    assert not files.has_archive(first)
    files.note_archive(first)
    assert (files.has_archive(first), files.has_archive(second)) == (True, False)
    files.forget_brought()
    assert not files.has_archive(first)
    made = unpacked(parcel(None, token="t0ken", instance_id="i1", options=(), config=CONFIG, user="7:8", logins={}))
    assert "kandev/agentctl.pyz" not in made


def test_of_earlier_instances_only_the_last_ones_directory_is_left(tmp_path: Path) -> None:
    """Failed starts do not pile up; what else is kept of the session stays."""
    files = RemoteFiles(tmp_path / "run", "s1")
    home = files.directory / "home"
    for number in range(4):
        files.make(f"i{number}", home)
        os.utime(files.instance_directory(f"i{number}"), ns=(1, number))
    assert sorted(path.name for path in files.directory.iterdir()) == ["home", "i2", "i3", "token"]


async def test_sec_2_of_what_comes_back_only_the_journal_is_taken(tmp_path: Path) -> None:
    """A tar that a container made may hold anything: other names, links and paths that lead outside are left out."""
    tar, directory = tmp_path / "tar", tmp_path / "i1"
    secret = tmp_path / "secret"
    secret.write_text("secret")
    segment = f"{0:020d}.seg"
    with tarfile.open(tar, "w") as made:
        for name, content in (
            (f"i1/journal/{segment}", b"line\n"),
            ("i1/journal/waiting", b"{}"),
            ("i1/stderr.log", b"words"),
            ("i1/journal/../../escaped.seg", b"x"),
            ("i1/journal/other", b"x"),
            ("i1/token", b"x"),
            ("/tmp/1.seg", b"x"),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo(f"i1/journal/{1:020d}.seg")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        made.addfile(link)
    await journal_from(tar, directory)
    found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert found == {f"journal/{segment}", "journal/waiting", "stderr.log"}
    assert (directory / "journal" / segment).read_bytes() == b"line\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i1", "secret", "tar"]


async def test_a_tar_that_ends_too_early_gives_what_it_has(tmp_path: Path) -> None:
    """The way was cut: the journal's reader sees where it ends."""
    tar = tmp_path / "tar"
    tar.write_bytes(b"\0" * 100)
    await journal_from(tar, tmp_path / "i1")
    assert list((tmp_path / "i1/journal").iterdir()) == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (RemoteDockerConfig(), "No engine is configured"),
        (RemoteDockerConfig(host="unix:///var/run/docker.sock"), "not on another host"),
        (RemoteDockerConfig(host="tcp://host:2376"), "with TLS only"),
        (RemoteDockerConfig(host="tcp://host", tls_directory="/nowhere"), "names no host and port"),
        (RemoteDockerConfig(host="tcp://host:2376", tls_directory="/nowhere"), "ca.pem"),
        (RemoteDockerConfig(host="ssh:///socket"), "names no host"),
        (RemoteDockerConfig(context="missing"), "no docker context"),
    ],
)
def test_a_way_that_cannot_be_used_says_why(config: RemoteDockerConfig, words: str, tmp_path: Path) -> None:
    """Above all an engine without TLS, which anybody could use."""
    with pytest.raises(Conflict, match=words):
        link_to(config, {"HOME": str(tmp_path), "DOCKER_HOST": "ssh://not-asked"})


def test_an_address_says_which_way() -> None:
    """By SSH ports of the host can be reached too, by TLS its engine only."""
    link = link_to(RemoteDockerConfig(host="ssh://user@host:2222/run/other.sock"), {})
    assert (link.address, link.reaches_ports) == ("ssh://user@host:2222/run/other.sock", True)
    assert isinstance(link, SshLink)
    assert not TlsLink.reaches_ports
