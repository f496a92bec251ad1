"""A disk without room, a database in somebody else's hands, a file that is none: clear errors, nothing lost."""

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from backend import Backend
from conversation import Cast
from wire_client import CallFailed

SIZE_MB = 8
MOUNT = 'config=$(cat "$0/config.toml") && mount -t tmpfs -o size={size}m,mode=700 tmpfs "$0" && '
RUN = 'printf %s "$config" > "$0/config.toml" && exec "$@"'


class SmallHome(Backend):
    """A backend whose home is a file system of its own, of 8 MB, which nobody else sees and which ends with it."""

    async def start(self, *arguments: str) -> None:
        """Starts the backend, whose home is found by way of its process from then on."""
        self._outside = self.home
        await super().start(*arguments)

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        script = MOUNT.format(size=SIZE_MB) + RUN
        process = super()._spawn(["unshare", "-rm", "sh", "-c", script, str(self.home), *command])
        self.home = Path(f"/proc/{process.pid}/root{self.home}")
        return process

    async def _end(self, number: signal.Signals) -> int:
        self.home = self._outside
        return await super()._end(number)

    def fill(self) -> None:
        """Leaves no byte of room."""
        with (self.home / "ballast").open("ab", 0) as file:
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass

    def make_room(self) -> None:
        """Takes the ballast away."""
        (self.home / "ballast").unlink()


@pytest.fixture
def small_mounts() -> None:
    """Skips the test where no private mount is allowed."""
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False).returncode:
        pytest.skip("no private mount is allowed here, so no small file system can be made")


@pytest.fixture
async def small(small_mounts: None, tmp_path: Path, cast: Cast) -> AsyncIterator[SmallHome]:
    """A running backend with a small home."""
    async with SmallHome(tmp_path, config=cast.config) as made:
        await made.start()
        yield made


async def test_hist_12_a_full_disk_is_one_clear_error(small: SmallHome, cast: Cast) -> None:
    """A prompt that finds no room is refused with disk_full; what is stored is read; with room it goes through."""
    async with small.client() as client:
        session = await cast.conversation(client)
        await session.begin()
        before = await session.transcript()
        small.fill()
        text = "word " * 60_000
        for _ in range(2):
            with pytest.raises(CallFailed) as full:
                await session.call("message.add", content=text, client_message_id="c-1")
            assert (full.value.code, full.value.reason) == ("CONFLICT", "disk_full")
        assert await session.transcript() == before
        assert (await session.status())["state"] == "WAITING_FOR_INPUT"
        assert (await client.call("health.check"))["status"] == "ok"
        small.make_room()
        await session.send(text, client_message_id="c-1")
        assert (await session.turn_ended())["state"] == "completed"
        assert session.agent.prompts() == ["first", text]
        assert len(await session.texts("user")) == 2


async def test_hist_12_a_full_disk_slows_an_agent_and_loses_nothing(small: SmallHome, cast: Cast) -> None:
    """In the middle of a turn there is no room: the agent has to wait; with room the turn ends, whole and in order."""
    steps = [{"text": "begin "}, {"gate": "go"}, {"chunks": 4000, "text": "{n}" + "." * 200}]
    async with small.client() as client:
        session = await cast.conversation(client, on={"session/prompt": {"match": "much", "steps": steps}})
        await session.begin()
        await session.send("much")
        await session.event("session.message.delta", text="begin ")
        small.fill()
        session.agent.open_gate("go")
        with pytest.raises(CallFailed) as full:
            await session.call("message.add", content="word " * 60_000)
        assert full.value.reason == "disk_full"
        assert (await session.status())["state"] == "RUNNING"
        small.make_room()
        assert (await session.turn_ended())["state"] == "completed"
        whole = "begin " + "".join(f"{number}{'.' * 200}" for number in range(1, 4001))
        assert "".join((await session.texts("agent"))[1:]) == whole
        assert (await session.say("on"))["state"] == "completed"


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another program that writes, for the time of the block."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


async def test_a_locked_database_is_unavailable_and_nothing_is_lost(killable: Backend, cast: Cast) -> None:
    """Another program holds the database: writers are told so, readers are served, an agent waits."""
    steps = [{"text": "begin "}, {"gate": "go"}, {"chunks": 50, "text": "{n} "}]
    async with killable.client() as client:
        session = await cast.conversation(client, on={"session/prompt": {"match": "much", "steps": steps}})
        await session.begin()
        await session.send("much")
        await session.event("session.message.delta", text="begin ")
        with locked(killable.home / "kandev.db"):
            session.agent.open_gate("go")
            with pytest.raises(CallFailed) as refused:
                await session.call("message.add", content="second", client_message_id="c-1")
            assert refused.value.code == "UNAVAILABLE"
            assert "locked" in refused.value.message
            assert (await session.status())["state"] == "RUNNING"
            assert await session.texts("user") == ["first", "much"]
        await session.turn_ended()
        await session.send("second", client_message_id="c-1")
        await session.turn_ended()
        whole = "begin " + "".join(f"{number} " for number in range(1, 51))
        assert (await session.texts("agent"))[1:] == [whole, "heard: second | memory: 2"]
        assert session.agent.prompts() == ["first", "much", "second"]


# Starts that cannot be


async def serve(backend: Backend, *, before: str = "", home: Path | None = None) -> tuple[int, str]:
    """Runs `kandev serve`, which is expected to end by itself; exit code and what it said on stderr."""
    environment = backend.env() | ({"KANDEV_HOME": str(home)} if home else {})
    command = [sys.executable, "-m", "kandev", "serve", "--port", "0"]
    if before:
        command = ["unshare", "-rm", "sh", "-c", f'{before} exec "$@"', environment["KANDEV_HOME"], *command]
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, check=False, capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


async def test_hist_12_a_start_without_room_says_so(small_mounts: None, backend: Backend) -> None:
    """A home on a full disk: the start ends with the reason and does not hang."""
    fill = 'mount -t tmpfs -o size=256k,mode=700 tmpfs "$0" && dd if=/dev/zero of="$0/ballast" bs=4096 2>/dev/null;'
    code, said = await serve(backend, before=fill)
    assert code not in {0, None}
    assert "room" in said


@pytest.mark.parametrize("content", [b"no database at all, but a text of some length\n" * 20, b""])
async def test_a_file_that_is_no_database_of_ours_is_left_alone(backend: Backend, content: bytes) -> None:
    """Whatever stands at kandev.db is not overwritten; the error names the file. An empty one is filled."""
    database = backend.home / "kandev.db"
    database.write_bytes(content)
    if not content:
        await backend.start()
        return
    code, said = await serve(backend)
    assert code not in {0, None}
    assert str(database) in said
    assert database.read_bytes() == content


async def test_a_home_that_cannot_be_written_is_told(backend: Backend) -> None:
    """A file where the home should be: one sentence with the path."""
    blocked = backend.directory / "file"
    blocked.write_text("")
    code, said = await serve(backend, home=blocked / "home")
    assert code not in {0, None}
    assert str(blocked) in said
