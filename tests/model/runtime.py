"""The runtime and the client of a world: what the backend sees of its `Machine`."""

# ruff: noqa: ARG002 - the interface has parameters that nothing in memory needs

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from kandev.agentctl import API_VERSION
from kandev.agents.place import HERE
from kandev.errors import AgentctlError, AgentDied, AgentNotFound
from kandev.runtimes.agentctl_client import AgentctlClient, AgentHealth, AgentProcess, Health, JournalHealth
from kandev.runtimes.base import Instance, InstanceRequest, Named, RuntimeReport
from model.machine import Line, Machine, MemoryInstance

NO_ANSWER_S = 10.0
START_FAULTS = ("no instance", "not ready", "command missing")


class MemoryRuntime:
    """One backend's way to the machine. After `cut` the backend is dead, and nothing of it reaches anything."""

    name = "standalone"
    lasting = False
    place = HERE

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.cut = False

    def require_alive(self) -> None:
        """Raise where the backend that asks is dead."""
        if self.cut:
            raise AgentctlError("This backend is dead.", reason="unreachable")

    async def create_instance(self, request: InstanceRequest) -> Instance:
        await asyncio.sleep(0)
        self.require_alive()
        if self.machine.starts.get(request.session_id) == "no instance":
            del self.machine.starts[request.session_id]
            raise AgentctlError("No instance can be made.", reason="no_room")
        instance = self.machine.create(request)
        return Instance(
            instance_id=request.instance_id,
            runtime=self.name,
            directory=instance.directory,
            agentctl_url="unix:/memory",
            agentctl_pid=0,
            agentctl_start_time=0,
            boot_id="",
        )

    async def recover_instances(self) -> list[Instance]:
        return []

    async def stop_instance(self, instance: Instance, *, grace_s: float) -> None:
        await asyncio.sleep(0)
        self.require_alive()
        found = self.machine.instances.get(instance.instance_id)
        if found is not None:
            found.kill_all()

    def connect(self, instance: Instance) -> AgentctlClient:
        return MemoryClient(self, instance.instance_id)

    def locate(self, session_id: str, instance_id: str) -> Instance:
        return Instance(
            instance_id=instance_id,
            runtime=self.name,
            directory=self.machine.directory(instance_id),
            agentctl_url="unix:/memory",
            agentctl_pid=0,
            agentctl_start_time=0,
            boot_id="",
        )

    async def clear_leftovers(self, instances: Sequence[Instance]) -> list[str]:
        for instance in instances:
            await self.stop_instance(instance, grace_s=0)
            found = self.machine.instances.get(instance.instance_id)
            if found is not None:
                found.keep()
        return []

    async def strays(self, named: Named) -> list[Instance]:
        return []

    async def forget_session(self, session_id: str) -> None:
        pass

    async def report(self) -> RuntimeReport:
        return RuntimeReport(name=self.name, problem="", survives=(), on_backend_restart="", on_host_restart="")

    async def discard(self, instance: Instance) -> None:
        await asyncio.sleep(0)
        self.require_alive()
        found = self.machine.instances.get(instance.instance_id)
        if found is not None:
            self.machine.remove(found)

    async def aclose(self) -> None:
        for instance in list(self.machine.instances.values()):
            instance.kill_all()


class MemoryClient(AgentctlClient):
    """Calls an agentctl in memory. As over a socket, whoever answers may be gone when the answer comes."""

    def __init__(self, runtime: MemoryRuntime, instance_id: str) -> None:
        super().__init__("unix:/memory", instance_id=instance_id)
        self._runtime = runtime
        self._id = instance_id

    async def _reach(self) -> MemoryInstance:
        await asyncio.sleep(0)
        self._runtime.require_alive()
        instance = self._runtime.machine.instances.get(self._id)
        if instance is None or not instance.up:
            raise AgentctlError("agentctl cannot be reached.", reason="unreachable")
        if instance.frozen:
            await asyncio.sleep(NO_ANSWER_S)
            raise AgentctlError("agentctl did not answer in time.", reason="no_answer")
        return instance

    async def wait_ready(self, timeout_s: float) -> Health:
        instance = await self._reach()
        if self._runtime.machine.starts.get(instance.request.session_id) == "not ready":
            del self._runtime.machine.starts[instance.request.session_id]
            instance.end_agentctl()
        return await self.status()

    async def configure(
        self, *, command: Sequence[str], env: Mapping[str, str], cwd: str, inherit: bool = False
    ) -> None:
        instance = await self._reach()
        instance.kind = command[0]

    async def start(self) -> AgentProcess:
        instance = await self._reach()
        machine = self._runtime.machine
        if machine.starts.get(instance.request.session_id) == "command missing":
            del machine.starts[instance.request.session_id]
            raise AgentNotFound("There is no such command.")
        machine.start(instance)
        await asyncio.sleep(0)
        return AgentProcess(pid=1, start_time=1, process_group=1)

    async def send(self, n: int, line: bytes) -> None:
        instance = await self._reach()
        if instance.exited or instance.agent is None:
            raise AgentDied("The agent has ended.", exit_code=1)
        if n != len(instance.taken) + 1 + sum(not waiting.announced for waiting in instance.lines):
            self._runtime.machine.faults.append(f"line {n} was sent after line {len(instance.taken)}")
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        instance.lines.append(Line(n, line, taken))
        try:
            await asyncio.wait_for(asyncio.shield(taken), 2 * NO_ANSWER_S)
        except TimeoutError:
            raise AgentctlError("agentctl did not answer in time.", reason="no_answer") from None

    async def stream(self, offset: int) -> AsyncGenerator[bytes, None]:
        instance = await self._reach()
        changed = asyncio.Event()
        instance.changed.add(changed)
        try:
            while True:
                changed.clear()
                self._runtime.require_alive()
                if not instance.up:
                    raise AgentctlError("The stream was cut.", reason="stream_cut")
                if offset < len(instance.journal) and not instance.frozen:
                    end = self._piece_end(instance, offset)
                    yield bytes(instance.journal[offset:end])
                    offset = end
                elif instance.exited:
                    return
                else:
                    await changed.wait()
        finally:
            instance.changed.discard(changed)

    def _piece_end(self, instance: MemoryInstance, offset: int) -> int:
        """A piece ends anywhere, also in the middle of a line."""
        random = self._runtime.machine.random
        whole = len(instance.journal)
        return whole if random.random() < 0.7 else random.randrange(offset, whole) + 1

    async def ack(self, offset: int) -> None:
        instance = await self._reach()
        if offset and instance.journal[offset - 1 : offset] != b"\n":
            self._runtime.machine.faults.append(f"position {offset} was acknowledged, which is no line's end")
        instance.acknowledged = max(instance.acknowledged, offset)

    async def stop(self, *, grace_s: float) -> None:
        instance = await self._reach()
        if grace_s:
            await asyncio.sleep(min(grace_s, 0.05))  # it ends by itself once its stdin is closed
            code = {"code": 0}
        else:
            code = {"signal": 9}
        await self._reach()  # it may have been stopped meanwhile
        instance.end_agent(**code)

    async def status(self) -> Health:
        instance = await self._reach()
        return Health(
            status="ok",
            api_version=API_VERSION,
            instance_id=self._id,
            nonce="n",
            pid=0,
            start_time=0,
            agent=AgentHealth(state="exited" if instance.exited else "running"),
            journal=JournalHealth(start=0, end=len(instance.journal), acked=instance.acknowledged),
            last_line=len(instance.taken),
        )

    async def stderr_tail(self, limit: int = 4096) -> str:
        await self._reach()
        return ""

    async def aclose(self) -> None:
        """There is no connection."""
