"""Running real agents behind a real agentctl: small programs that misbehave, and reading what was journalled."""

import os
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from kandev.agentctl.platform import instances
from kandev.agentctl.records import Record, parse
from kandev.runtimes import AgentctlClient, AgentProcess, Instance, InstanceRequest, StandaloneRuntime

PYTHON = [sys.executable, "-I", "-S", "-u", "-c"]
ENVIRONMENT = {"PATH": os.environ["PATH"]}
_numbers = iter(range(1 << 30))


def new_instance_id() -> str:
    """An id that no other run of the tests uses: processes are found by it."""
    return f"test-{os.getpid()}-{next(_numbers)}"


def request_for(instance_id: str) -> InstanceRequest:
    return InstanceRequest(instance_id=instance_id, session_id="session", task_id="task", execution_id="execution")


def processes_of(instance_id: str) -> list[int]:
    """Live processes, no zombies, that carry the instance id in their environment."""
    return [process.pid for process in instances().get(instance_id, [])]


class Sidecar:
    """An instance, and a client of it."""

    def __init__(self, runtime: StandaloneRuntime, instance: Instance) -> None:
        self.runtime = runtime
        self.instance = instance
        self.client: AgentctlClient = runtime.connect(instance)

    async def run(self, program: str | Sequence[str], *, cwd: str | None = None) -> AgentProcess:
        """Start an agent: a Python program, or a command."""
        command = [*PYTHON, program] if isinstance(program, str) else list(program)
        await self.client.configure(command=command, env=ENVIRONMENT, cwd=cwd or self.instance.directory)
        return await self.client.start()

    @property
    def journal(self) -> str:
        return os.path.join(self.instance.directory, "journal")

    async def lines(self, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """Lines of the journal from an offset on, as they come, without their newlines; the end after the exit."""
        rest = b""
        stream = self.client.stream(offset)
        try:
            async for piece in stream:
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line
        finally:
            await stream.aclose()
        assert not rest

    async def line(self, wanted: bytes) -> None:
        """Wait for a line."""
        lines = self.lines()
        async for line in lines:
            if line == wanted:
                break
        else:
            raise AssertionError(wanted)
        await lines.aclose()

    async def everything(self) -> tuple[list[bytes], list[Record]]:
        """Read to the end of the run: the agent's lines, and the records."""
        output, records = [], []
        async for line in self.lines():
            record = parse(line)
            if record is None:
                output.append(line)
            else:
                records.append(record)
        return output, records

    async def aclose(self) -> None:
        await self.client.aclose()

    async def __aenter__(self) -> Self:
        await self.client.wait_ready(60)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@asynccontextmanager
async def sidecar(**limits: float) -> AsyncIterator[Sidecar]:
    """A new instance of the standalone runtime, ready; whatever it started is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="kandev-") as home:
        runtime = StandaloneRuntime(str(Path(home) / "run"), **limits)  # type: ignore[arg-type]  # whole numbers
        instance = await runtime.create_instance(request_for(new_instance_id()))
        try:
            async with Sidecar(runtime, instance) as made:
                yield made
        finally:
            await runtime.aclose()
        assert processes_of(instance.instance_id) == []
