"""The client of an agentctl behind a connection that is cut: each byte once, each line once, and an end in the end."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Self

import pytest

from kandev.errors import AgentctlError
from kandev.runtimes.patient_client import PatientClient
from sidecars import Sidecar, sidecar

TALK = """
import sys, time
for n in range(60):
    sys.stdout.write(f"{n} " + "x" * (n * 3000) + "\\n")
    sys.stdout.flush()
    time.sleep(0.01)
"""
REPEAT = "import sys\nfor line in sys.stdin: sys.stdout.write('heard ' + line); sys.stdout.flush()"


class Cuts:
    """A socket that leads to another one, and cuts each connection after some bytes."""

    def __init__(self, path: Path, target: str, seed: int) -> None:
        self.path, self._target, self._random = path, target, random.Random(seed)
        self.cut = 0
        self.most = 1 << 40
        self.tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._connected, str(self.path))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut_all()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def cut_all(self) -> None:
        for task in self.tasks:
            task.cancel()

    def end(self) -> None:
        """From now on nothing gets through."""
        self.most = 1
        self.cut_all()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._lead(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, out = await asyncio.open_unix_connection(self._target)
        sending = asyncio.create_task(self._send(reader, out))
        left = self._random.randint(1, self.most)
        try:
            while left > 0 and (data := await back.read(min(left, 1 << 15))):
                left -= len(data)
                writer.write(data)
                await writer.drain()
            self.cut += left == 0
        except ConnectionError:
            pass
        finally:
            sending.cancel()
            out.close()
            writer.close()

    async def _send(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 15):
                out.write(data)
                await out.drain()


@pytest.fixture
async def agentctl() -> AsyncIterator[Sidecar]:
    async with sidecar() as one:
        yield one


@contextlib.asynccontextmanager
async def patient(one: Sidecar, cuts: Cuts, *, reach_s: float = 20) -> AsyncIterator[PatientClient]:
    """A client by way of the cuts, which knows the agentctl that is there."""
    health = await one.client.status()
    client = PatientClient(
        f"unix:{cuts.path}",
        instance_id=one.instance.instance_id,
        token="",
        nonce=health.nonce,
        is_gone=lambda: False,
        reach_s=reach_s,
    )
    try:
        yield client
    finally:
        await client.aclose()


async def read(client: PatientClient, each: Callable[[], None]) -> None:
    """Reads the journal to its end, and does something after each piece."""
    async for _ in client.stream(0):
        each()


def target(one: Sidecar) -> str:
    return one.instance.agentctl_url.removeprefix("unix:")


@pytest.mark.parametrize("seed", range(3))
async def test_a_stream_that_is_cut_anywhere_has_each_byte_once(agentctl: Sidecar, seed: int) -> None:
    """Also in the middle of a line: the client takes up at the line's start, and does not repeat what it gave."""
    short = Path(agentctl.instance.directory) / "cuts"
    async with Cuts(short, target(agentctl), seed) as cuts, patient(agentctl, cuts) as client:
        await agentctl.run(TALK)
        cuts.most = 400_000
        got = bytearray()
        async for piece in client.stream(0):
            got += piece
        whole = b"".join(path.read_bytes() for path in sorted(Path(agentctl.journal).glob("*.seg")))
        assert bytes(got) == whole
        assert cuts.cut > 3


async def test_a_line_that_is_sent_through_cuts_arrives_once(agentctl: Sidecar) -> None:
    """An answer that was lost is asked for again, under the line's number."""
    short = Path(agentctl.instance.directory) / "cuts"
    async with Cuts(short, target(agentctl), 1) as cuts, patient(agentctl, cuts) as client:
        await agentctl.run(REPEAT)
        cuts.most = 120
        for n in range(1, 21):
            await client.send(n, b"%d\n" % n)
        assert cuts.cut > 3
    await agentctl.client.stop(grace_s=5)
    output, _ = await agentctl.everything()
    assert output == [b"heard %d" % n for n in range(1, 21)]


async def test_an_agentctl_that_was_started_again_is_another_one(agentctl: Sidecar) -> None:
    """Its agent is gone; a stream that waited for it for ever would hide that."""
    short = Path(agentctl.instance.directory) / "cuts"
    async with Cuts(short, target(agentctl), 1) as cuts, patient(agentctl, cuts) as client:
        await agentctl.run(REPEAT)
        client._nonce = "that of the one before"
        with pytest.raises(AgentctlError) as raised:
            await read(client, cuts.cut_all)
        assert raised.value.reason == "agent_gone"


async def test_what_stays_out_of_reach_is_told_in_the_end(agentctl: Sidecar) -> None:
    """After the time that is given for it, and with what was wrong first."""
    short = Path(agentctl.instance.directory) / "cuts"
    async with Cuts(short, target(agentctl), 1) as cuts, patient(agentctl, cuts, reach_s=0.3) as client:
        await agentctl.run(REPEAT)
        with pytest.raises(AgentctlError) as raised:
            await read(client, cuts.end)
        assert raised.value.reason == "stream_cut"
        with pytest.raises(AgentctlError) as raised:
            await client.send(1, b"hello\n")
        assert raised.value.reason == "unreachable"
