"""What goes wrong: each fault strikes, lasts, and is undone; what it hit is written down."""

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from chaos.cast import Part
from chaos.schedule import Fault
from chaos.stage import DidNotStart, Process, Stage
from chaos.tabs import Tab
from kandev.agentctl import records
from kandev.agentctl.platform import children, descendants, open_process, process_stat
from kandev.agentctl.segments import journal_in, read_journal
from kandev.lifecycle.protocol_state import decode_state

LIVE_ROWS: Final = "SELECT * FROM executors_running WHERE status IN ('creating', 'starting', 'ready')"


class Faults:
    """Strikes on one stage. `tainted` are agents whose agentctl was hit: what they said may be lost, honestly."""

    def __init__(self, stage: Stage, parts: Sequence[Part], tabs: Sequence[Tab]) -> None:
        self.counts: Counter[str] = Counter()
        self.told: list[str] = []
        self.problems: list[str] = []
        self.tainted: set[int] = set()
        self.certain: dict[str, bool] = {}
        self._stage = stage
        self._parts = parts
        self._tabs = tabs
        self._disk_full = 0

    async def strike(self, fault: Fault) -> None:
        """Does it, and undoes it in the end."""
        await getattr(self, f"_{fault.kind}")(fault)

    def _tell(self, fault: Fault, whom: str = "") -> None:
        self.counts[fault.kind] += 1
        self.told.append(f"{fault.at:.2f} s {fault.kind} {whom}".rstrip() + f" for {fault.lasts:g} s")

    # The backend

    async def _kill_backend(self, fault: Fault) -> None:
        self._tell(fault, str(self._stage.pid))
        await self._stage.end(signal.SIGKILL)
        await asyncio.sleep(fault.lasts if fault.target % 2 else 0)
        await self._up()

    async def _kill_backend_in_start(self, fault: Fault) -> None:
        self._tell(fault, str(self._stage.pid))
        await self._stage.end(signal.SIGKILL)
        self._stage.spawn()
        await asyncio.sleep(fault.lasts)
        await self._stage.end(signal.SIGKILL)
        await self._up()

    async def _term_backend(self, fault: Fault) -> None:
        self._tell(fault, str(self._stage.pid))
        try:
            code = await self._stage.end(signal.SIGTERM)
        except TimeoutError:
            self.problems.append("the backend did not end within 40 s of SIGTERM")
            await self._stage.end(signal.SIGKILL)
        else:
            if code and not self._disk_full:
                self.problems.append(f"SIGTERM ended the backend with {code}")
        await self._up()

    async def _stop_backend(self, fault: Fault) -> None:
        self._tell(fault, str(self._stage.pid))
        stat = process_stat(self._stage.pid)
        if stat is not None:
            await self._frozen((stat.pid, stat.start_time), fault.lasts)

    async def _kill_all(self, fault: Fault) -> None:
        """Backend, agentctls and agents at one blow; what is certain then is read from the journals."""
        stage, pid = self._stage, self._stage.pid
        self._tell(fault, str(pid))
        os.kill(pid, signal.SIGSTOP)
        for one in (pid, *descendants(pid)):
            self._signal_pid(one, signal.SIGSTOP)
        stage.meet()
        victims = descendants(pid)
        self.tainted |= set(victims)
        for one in victims:
            self._signal_pid(one, signal.SIGKILL)
        await stage.end(signal.SIGKILL)
        await asyncio.sleep(0.05)
        self.certain |= dict(self._what_is_certain())
        await self._up()

    async def _up(self) -> None:
        try:
            await self._stage.ensure_up()
        except DidNotStart as error:
            if not self._disk_full:
                self.problems.append(f"the backend did not start: {error}")

    def _what_is_certain(self) -> Iterator[tuple[str, bool]]:
        """For each open turn whose writer is dead: whether its prompt's line was begun, by the whole journal."""
        query = """SELECT turns.id, turns.line, last_event_seq, protocol_state, instance_id FROM turns
            JOIN executors_running USING (session_id, agent_execution_id) WHERE state = 'open'"""
        with tempfile.TemporaryDirectory() as copy:
            for name in ("kandev.db", "kandev.db-wal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(self._stage.home / name, copy)
            with contextlib.closing(sqlite3.connect(Path(copy) / "kandev.db")) as database:
                turns = database.execute(query).fetchall()
        for turn_id, line, position, state, instance_id in turns:
            begun = decode_state(state).lines_begun
            for record in self._records(instance_id, position):
                if isinstance(record, records.StdinLine):
                    begun = max(begun, record.n)
            yield turn_id, bool(line) and begun >= line

    def _records(self, instance_id: str, position: int) -> Iterator[records.Record | None]:
        journal = b"".join(read_journal(journal_in(str(self._stage.home / "run" / instance_id)), position))
        return (records.parse(line) for line in journal.split(b"\n") if line.startswith(records.MARK))

    # Agents and agentctls

    async def _kill_agent(self, fault: Fault) -> None:
        if (victim := self._an_agent(fault)) is not None:
            self._tell(fault, str(victim[0]))
            self._signal(victim, signal.SIGKILL)

    async def _stop_agent(self, fault: Fault) -> None:
        if (victim := self._an_agent(fault)) is not None:
            self._tell(fault, str(victim[0]))
            await self._frozen(victim, fault.lasts)

    async def _kill_agentctl(self, fault: Fault) -> None:
        if (victim := self._an_agentctl(fault)) is not None:
            self._tell(fault, str(victim[0]))
            self.tainted |= set(descendants(victim[0]))
            self._signal(victim, signal.SIGKILL)

    async def _stop_agentctl(self, fault: Fault) -> None:
        if (victim := self._an_agentctl(fault)) is not None:
            self._tell(fault, str(victim[0]))
            await self._frozen(victim, fault.lasts)

    async def _kill_fork_server(self, fault: Fault) -> None:
        for pid in children(self._stage.pid) if self._stage.up else ():
            self._tell(fault, str(pid))
            self._signal_pid(pid, signal.SIGKILL)

    def _an_agent(self, fault: Fault) -> Process | None:
        alive = [pid for part in self._parts for pid in part.agent.pids()[-1:]]
        return self._choose(fault, [stat for pid in alive if (stat := process_stat(pid)) and stat.alive])

    def _an_agentctl(self, fault: Fault) -> Process | None:
        rows = self._stage.glance(LIVE_ROWS)
        found = [(row, process_stat(row["agentctl_pid"])) for row in rows if row["agentctl_pid"]]
        return self._choose(
            fault,
            [stat for row, stat in found if stat and stat.alive and stat.start_time == row["agentctl_start_time"]],
        )

    def _choose(self, fault: Fault, found: Sequence[Any]) -> Process | None:
        if not found:
            return None
        stat = found[fault.target % len(found)]
        return stat.pid, stat.start_time

    async def _frozen(self, victim: Process, seconds: float) -> None:
        """Stops a process for a while; what its agents say meanwhile may be lost, if somebody kills it then."""
        self.tainted |= {victim[0], *descendants(victim[0])}
        self._signal(victim, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
            self.tainted |= {victim[0], *descendants(victim[0])}
        finally:
            self._signal(victim, signal.SIGCONT)

    def _signal(self, victim: Process, number: signal.Signals) -> None:
        pidfd = open_process(*victim)
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)
            os.close(pidfd)

    def _signal_pid(self, pid: int, number: signal.Signals) -> None:
        stat = process_stat(pid)
        if stat is not None:
            self._signal((pid, stat.start_time), number)

    # What is around them

    async def _lock_database(self, fault: Fault) -> None:
        with self._stage.locked() as held:
            if held:
                self._tell(fault)
                await asyncio.sleep(fault.lasts)

    async def _fill_disk(self, fault: Fault) -> None:
        self._tell(fault)
        self._disk_full += 1
        try:
            self._taint_all()
            self._stage.fill()
            await asyncio.sleep(fault.lasts)
        finally:
            self._taint_all()
            self._stage.make_room()
            self._disk_full -= 1

    def _taint_all(self) -> None:
        """An agentctl without room for its journal loses, honestly, what it cannot write before it is killed."""
        self.tainted |= {pid for part in self._parts for pid in part.agent.alive()}

    async def _cut_sockets(self, fault: Fault) -> None:
        tabs = [tab for number, tab in enumerate(self._tabs) if fault.target >> number & 1] or self._tabs
        self._tell(fault, ", ".join(tab.name for tab in tabs))
        for tab in tabs:
            tab.cut()
