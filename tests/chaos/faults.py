"""What goes wrong: each fault strikes, lasts, and is undone; what it hit is written down."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from chaos.cast import Part
from chaos.places import LIVE_ROWS, Name, Sidecar
from chaos.schedule import AMBUSHES, Fault
from chaos.stage import DidNotStart, Process, Stage
from chaos.tabs import Tab
from kandev.agentctl import records
from kandev.agentctl.platform import children, descendants, open_process, process_stat
from kandev.agentctl.segments import read_journal
from kandev.lifecycle.protocol_state import decode_state

EARLY: Final = -signal.SIGTERM
"""How a backend ends that got SIGTERM before it could listen for it."""
NO_ROOM: Final = 5
"""How one ends that found its disk full at its start."""
AMBUSH_S: Final = 2.0
"""How long somebody waits for an event to strike behind."""


class Faults:
    """Strikes on one stage.

    `counts` are faults by kind, `kills` the processes that SIGKILL reached, by what they were. `tainted` are agents
    whose agentctl was hit: what was not journalled is lost, honestly. `last_words` is the last chunk that was
    journalled when an agent's agentctl was killed. `outages` counts how often what agents run in was away.
    """

    def __init__(self, stage: Stage, parts: Sequence[Part], tabs: Sequence[Tab]) -> None:
        self.counts: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.told: list[str] = []
        self.problems: list[str] = []
        self.tainted: set[Name] = set()
        self.certain: dict[str, bool] = {}
        self.last_words: dict[Name, str] = {}
        self.outages = 0
        self._stage = stage
        self._place = stage.place
        self._parts = parts
        self._tabs = tabs
        self._disk_full = 0
        self._fills = 0

    async def strike(self, fault: Fault) -> None:
        """Does it, and undoes it in the end."""
        await getattr(self, f"_{fault.kind}")(fault)

    async def strike_life(self, fault: Fault) -> None:
        """The same for what hits the backend itself, which may not have come up without room on its disk."""
        if not self._stage.up:
            await self._up()
        if self._stage.up:
            await self.strike(fault)

    def _tell(self, fault: Fault, whom: str = "") -> None:
        self.counts[fault.kind] += 1
        self.told.append(f"{fault.at:.2f} s {fault.kind} {whom}".rstrip() + f" for {fault.lasts:g} s")

    # The backend

    async def _kill_backend(self, fault: Fault) -> None:
        self._tell(fault, str(self._stage.pid))
        await self._kill_backend_now()
        await asyncio.sleep(fault.lasts if fault.target % 2 else 0)
        await self._up()

    async def _kill_backend_now(self) -> None:
        self.kills["backend"] += await self._stage.end(signal.SIGKILL) == -signal.SIGKILL

    async def _kill_backend_in_start(self, fault: Fault) -> None:
        self._tell(fault, str(self._stage.pid))
        await self._kill_backend_now()
        self._stage.spawn()
        await asyncio.sleep(fault.lasts)
        await self._kill_backend_now()
        await self._up()

    async def _term_backend(self, fault: Fault) -> None:
        self._tell(fault, str(self._stage.pid))
        await self.restart_backend()

    async def _term_backend_in_start(self, fault: Fault) -> None:
        self._tell(fault, str(self._stage.pid))
        await self._kill_backend_now()
        full = self._disk_full
        self._stage.spawn()
        await asyncio.sleep(fault.lasts)
        await self._term(EARLY, *([NO_ROOM] if full else []))
        await self._up()

    async def _kill_backend_in_stop(self, fault: Fault) -> None:
        self._tell(fault, str(self._stage.pid))
        os.kill(self._stage.pid, signal.SIGTERM)
        await asyncio.sleep(fault.lasts)
        await self._kill_backend_now()
        await self._up()

    async def _term(self, *good: int) -> None:
        fills, full = self._fills, self._disk_full
        try:
            code = await self._stage.end(signal.SIGTERM)
        except TimeoutError:
            self.problems.append("the backend did not end within 40 s of SIGTERM")
            return
        if code and code not in good and fills == self._fills and not full:
            self.problems.append(f"SIGTERM ended the backend with {code}")

    async def restart_backend(self) -> None:
        """Ends the backend in order, and starts it."""
        await self._term()
        await self._up()

    async def _stop_backend(self, fault: Fault) -> None:
        self._tell(fault, str(self._stage.pid))
        with self._hanging():
            await asyncio.sleep(fault.lasts)

    @contextlib.contextmanager
    def _hanging(self) -> Iterator[None]:
        """The backend, if it runs, does nothing for the time of the block."""
        stat = process_stat(self._stage.pid) if self._stage.up else None
        if stat is None:
            yield
            return
        with self._stopped((stat.pid, stat.start_time)):
            yield

    async def _kill_frozen_backend(self, fault: Fault) -> None:
        """A backend that hangs, and is killed then: the journals hold what it did not read."""
        self._tell(fault, str(self._stage.pid))
        self._signal_pid(self._stage.pid, signal.SIGSTOP)
        await asyncio.sleep(fault.lasts)
        await self._kill_backend_now()
        await self._up()

    async def _ambush_backend(self, fault: Fault) -> None:
        if await self._seen(fault):
            await self._kill_backend_now()
            await self._up()

    async def _kill_all_stalled(self, fault: Fault) -> None:
        """Before everything is killed the agentctls take nothing for a while: prompts are on their way to them."""
        for sidecar in self._place.sidecars():
            self._taint(sidecar)
            self._signal((sidecar.pid, sidecar.start_time), signal.SIGSTOP)
        await asyncio.sleep(fault.lasts)
        await self._kill_all(fault)

    async def _kill_all(self, fault: Fault) -> None:
        """Backend, agentctls and agents at one blow; what is certain then is read from the journals."""
        stage, pid = self._stage, self._stage.pid
        self._tell(fault, str(pid))
        self._signal_pid(pid, signal.SIGSTOP)
        # Agentctls that lost their fork server are not below the backend any more.
        sidecars = self._place.sidecars()
        agentctls = [sidecar.pid for sidecar in sidecars]
        victims = {one for root in (pid, *agentctls) for one in (root, *descendants(root))}
        for one in victims:
            self._signal_pid(one, signal.SIGSTOP)
        agents = {one for root in agentctls for one in children(root)}
        stage.meet()
        for row in stage.glance(LIVE_ROWS):
            self._hear(row["session_id"], row["instance_id"])
        for sidecar in sidecars:
            self._taint(sidecar)
        for one in victims - {pid}:
            whom = "agentctl" if one in agentctls else "agent" if one in agents else "fork server or tool"
            self._kill_pid(one, whom)
        await self._kill_backend_now()
        await asyncio.sleep(0.05)
        self.certain |= dict(self._what_is_certain())
        await self._up()

    async def _up(self) -> None:
        fills = self._fills
        full = self._disk_full
        try:
            await self._stage.ensure_up()
        except DidNotStart as error:
            if not full and fills == self._fills:
                self.problems.append(f"the backend did not start: {error}")

    def _what_is_certain(self) -> Iterator[tuple[str, bool]]:
        """For each open turn whose writer is dead: whether its prompt's line was begun, by the whole journal."""
        query = """SELECT turns.id, session_id, turns.line, last_event_seq, protocol_state, instance_id FROM turns
            JOIN executors_running USING (session_id, agent_execution_id) WHERE state = 'open'"""
        with tempfile.TemporaryDirectory() as copy:
            for name in ("kandev.db", "kandev.db-wal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(self._stage.home / name, copy)
            with contextlib.closing(sqlite3.connect(Path(copy) / "kandev.db")) as database:
                turns = database.execute(query).fetchall()
        lasting = {part.session_id for part in self._parts}  # others may be deleted, and their turns with them
        for turn_id, session_id, line, position, state, instance_id in turns:
            if session_id not in lasting:
                continue
            begun = decode_state(state).lines_begun
            for record in self._records(session_id, instance_id, position):
                if isinstance(record, records.StdinLine):
                    begun = max(begun, record.n)
            yield turn_id, bool(line) and begun >= line

    def _records(self, session_id: str, instance_id: str, position: int) -> Iterator[records.Record | None]:
        lines = self._journal(session_id, instance_id, position)
        return (records.parse(line) for line in lines if line.startswith(records.MARK))

    def _journal(self, session_id: str, instance_id: str, position: int) -> list[bytes]:
        """The lines of a journal that nobody writes just now; one that is half there is none."""
        journal = b"".join(read_journal(self._place.journal(session_id, instance_id), position))
        return journal.split(b"\n")[:-1]

    def _hear(self, session_id: str, instance_id: str) -> None:
        """Remember the last chunk in the journal of an agentctl that is stopped, and about to be killed."""
        pid, said = 0, ""
        for line in self._journal(session_id, instance_id, 0):
            record = records.parse(line)
            if isinstance(record, records.Started):
                pid, said = record.pid, ""
            elif isinstance(record, records.StdinLine):
                said = ""
            elif record is None and b'"agent_message_chunk"' in line:
                with contextlib.suppress(ValueError):  # the last line may be half there
                    said = json.loads(line)["params"]["update"]["content"]["text"]
        if pid and said:
            self.last_words[self._place.name_told(instance_id, pid)] = said

    # Agents and agentctls

    async def _kill_agent(self, fault: Fault) -> None:
        if (victim := self._an_agent(fault)) is not None:
            self._tell(fault, str(victim[0]))
            self._kill(victim, "agent")

    async def _stop_agent(self, fault: Fault) -> None:
        if (victim := self._an_agent(fault)) is not None:
            self._tell(fault, str(victim[0]))
            with self._stopped(victim):
                await asyncio.sleep(fault.lasts)

    async def _kill_agentctl(self, fault: Fault) -> None:
        if (victim := self._an_agentctl(fault)) is not None:
            self._tell(fault, str(victim.pid))
            self._kill_agentctl_now(victim)

    async def _kill_agentctl_unread(self, fault: Fault) -> None:
        """Its journal holds what the backend did not read, and nobody streams it any more."""
        if (victim := self._an_agentctl(fault)) is not None:
            self._tell(fault, str(victim.pid))
            with self._hanging():
                await asyncio.sleep(fault.lasts)
                self._kill_agentctl_now(victim)

    def _kill_agentctl_now(self, victim: Sidecar) -> None:
        self._hear_last(victim)
        self._kill((victim.pid, victim.start_time), "agentctl")

    def _hear_last(self, victim: Sidecar) -> None:
        """Stop an agentctl that is about to be killed, and remember what it had journalled."""
        self._signal((victim.pid, victim.start_time), signal.SIGSTOP)
        self._taint(victim)
        self._hear(victim.session_id, victim.instance_id)

    def _taint(self, sidecar: Sidecar) -> None:
        self.tainted |= {self._place.name(sidecar, pid) for pid in descendants(sidecar.pid)}

    async def _ambush_agent(self, fault: Fault) -> None:
        if session_id := await self._seen(fault):
            part = next(part for part in self._parts if part.session_id == session_id)
            for pid in self._place.agents(part.agent)[-1:]:
                self._kill_pid(pid, "agent")

    async def _ambush_agentctl(self, fault: Fault) -> None:
        if session_id := await self._seen(fault):
            for sidecar in self._place.sidecars():
                if sidecar.session_id == session_id:
                    self._kill_agentctl_now(sidecar)

    async def _seen(self, fault: Fault) -> str:
        """The session of the next event that the fault waits for; '' when none came in time."""
        action, stage = AMBUSHES[fault.target % len(AMBUSHES)]
        seen = self._tabs[0].next_event(
            lambda event: event["action"] == action and event["payload"].get("stage", "") == stage
        )
        try:
            event = await asyncio.wait_for(seen, AMBUSH_S)
        except TimeoutError:
            return ""
        session_id = str(event["payload"]["session_id"])
        self._tell(fault, f"behind {action} {stage} of {session_id}")
        return session_id

    async def _stop_agentctl(self, fault: Fault) -> None:
        """What its agents say meanwhile may be lost, if somebody kills it then."""
        if (victim := self._an_agentctl(fault)) is not None:
            self._tell(fault, str(victim.pid))
            self._taint(victim)
            with self._stopped((victim.pid, victim.start_time)):
                await asyncio.sleep(fault.lasts)
                self._taint(victim)

    async def _kill_fork_server(self, fault: Fault) -> None:
        for pid in children(self._stage.pid) if self._stage.up else ():
            self._tell(fault, str(pid))
            self._kill_pid(pid, "fork server or tool")

    def _an_agent(self, fault: Fault) -> Process | None:
        alive = [pid for part in self._parts for pid in self._place.agents(part.agent)[-1:]]
        found = [stat for pid in alive if (stat := process_stat(pid)) and stat.alive]
        return (found[fault.target % len(found)].pid, found[fault.target % len(found)].start_time) if found else None

    def _an_agentctl(self, fault: Fault) -> Sidecar | None:
        found = self._place.sidecars()
        return found[fault.target % len(found)] if found else None

    @contextlib.contextmanager
    def _stopped(self, victim: Process) -> Iterator[None]:
        self._signal(victim, signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(victim, signal.SIGCONT)

    def _kill(self, victim: Process, whom: str) -> None:
        self.kills[whom] += self._signal(victim, signal.SIGKILL)

    def _kill_pid(self, pid: int, whom: str) -> None:
        stat = process_stat(pid)
        if stat is not None:
            self._kill((pid, stat.start_time), whom)

    def _signal(self, victim: Process, number: signal.Signals) -> bool:
        """Whether the process was still there to get it; one that has ended gets nothing."""
        pidfd = open_process(*victim)
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True

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
        self._fills += 1
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
        self.tainted |= self._place.everybody(part.agent for part in self._parts)

    async def _cut_sockets(self, fault: Fault) -> None:
        tabs = [tab for number, tab in enumerate(self._tabs) if fault.target >> number & 1] or self._tabs
        self._tell(fault, ", ".join(tab.name for tab in tabs))
        for tab in tabs:
            tab.cut()

    async def _deaf_clients(self, fault: Fault) -> None:
        self._tell(fault)
        for tab in self._tabs:
            tab.listen(again=False)
        await asyncio.sleep(fault.lasts)
        for tab in self._tabs:
            tab.listen(again=True)
