"""What else goes wrong where agents run in containers: somebody ends or holds one, or the engine is away."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from typing import Final

from chaos.faults import Faults
from chaos.places import Sidecar
from chaos.schedule import Fault
from runtimes.engine import DockerEngine

MANAGED: Final = ("--no-trunc", "--filter", "label=kandev.managed=true")
CHOSEN: Final = '{{.ID}} {{.Label "kandev.session_id"}}'


class ContainerFaults(Faults):
    """Strikes on one stage and its engine."""

    @property
    def _engine(self) -> DockerEngine:
        assert self._stage.engine is not None, "containers have an engine"
        return self._stage.engine

    # Containers

    async def _kill_container(self, fault: Fault) -> None:
        await self._end_container(fault, "kill")

    async def _remove_container(self, fault: Fault) -> None:
        await self._end_container(fault, "rm", "-f")

    async def _end_container(self, fault: Fault, *command: str) -> None:
        """Before it dies its agentctl is held, so that it is known what it had journalled."""
        if (chosen := await self._a_container(fault)) is None:
            return
        container, session_id = chosen
        victims = self._sidecars_of(session_id)
        for victim in victims:
            self._hear_last(victim)
        self.kills["container"] += bool(await self._docker(*command, container))
        for victim in victims:  # where it lives on after all
            self._signal((victim.pid, victim.start_time), signal.SIGCONT)

    async def _stop_container(self, fault: Fault) -> None:
        """In order: what was written until then is journalled. The engine may go while it waits."""
        if (chosen := await self._a_container(fault)) is not None:
            with contextlib.suppress(AssertionError):
                await asyncio.to_thread(self._engine.docker, "stop", chosen[0])

    async def _pause_container(self, fault: Fault) -> None:
        """What its agents say meanwhile may be lost, if somebody ends it then."""
        if (chosen := await self._a_container(fault)) is None:
            return
        container, session_id = chosen
        await self._docker("pause", container)
        try:
            await asyncio.sleep(fault.lasts)
            for sidecar in self._sidecars_of(session_id):
                self._taint(sidecar)
        finally:
            await self._docker("unpause", container)

    async def _a_container(self, fault: Fault) -> tuple[str, str] | None:
        """One that runs: its id, and its session."""
        found = sorted((await self._docker("ps", *MANAGED, "--format", CHOSEN)).splitlines())
        if not found:
            return None
        container, _, session_id = found[fault.target % len(found)].partition(" ")
        self._tell(fault, f"of {session_id}")
        return container, session_id

    def _sidecars_of(self, session_id: str) -> list[Sidecar]:
        return [sidecar for sidecar in self._place.sidecars() if sidecar.session_id == session_id]

    async def _docker(self, *command: str) -> str:
        """What a command printed; '' where it failed, because the container is gone or ended by now."""
        async with self._stage.engine_free:
            with contextlib.suppress(AssertionError):
                return await asyncio.to_thread(self._engine.docker, *command)
        return ""

    # The engine

    async def _kill_engine(self, fault: Fault) -> None:
        await self._without_engine(fault, self._engine.kill)

    async def _stop_engine(self, fault: Fault) -> None:
        await self._without_engine(fault, self._engine.stop)

    async def _without_engine(self, fault: Fault, end: Callable[[], None]) -> None:
        async with self._stage.engine_free:
            self._tell(fault)
            self.outages += 1
            await asyncio.to_thread(end)
            try:
                await asyncio.sleep(fault.lasts)
            finally:
                await asyncio.to_thread(self._engine.start)

    async def _freeze_engine(self, fault: Fault) -> None:
        async with self._stage.engine_free:
            self._tell(fault)
            self.outages += 1
            self._signal_pid(self._engine.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.lasts)
            finally:
                self._signal_pid(self._engine.pid, signal.SIGCONT)
