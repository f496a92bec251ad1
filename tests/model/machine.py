"""The machine that agents run on: it outlives the backend, and does one thing at a time when it is told to.

Each instance is an agentctl with a journal in memory and an agent by script. A line that was sent is announced in the
journal, put into the pipe, recorded as written, and acknowledged, in steps; an agent's words reach the journal in
steps too. So a kill may fall between any two of them.
"""

import asyncio
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from invariants import request_in
from kandev.agentctl import API_VERSION, records
from kandev.agentctl.identity import Identity, write_identity
from kandev.agentctl.segments import journal_in, segment_path
from kandev.errors import AgentctlError, AgentDied
from kandev.runtimes.base import InstanceRequest
from model.agent import MODES, PACES, Received, ScriptedAgent

MOST_AFTER_DEATH = 6
"""So many things may still happen on the machine between a backend's death and the end of its agents."""


class Line:
    """A line on its way to an agent: sent, announced in the journal, in the pipe."""

    def __init__(self, n: int, data: bytes, taken: "asyncio.Future[None]") -> None:
        self.n = n
        self.data = data
        self.taken = taken
        self.announced = False


class MemoryInstance:
    """An agentctl and its agent. `up`: agentctl runs; `frozen`: it was stopped and answers nothing."""

    def __init__(self, machine: "Machine", request: InstanceRequest, directory: str) -> None:
        self.machine = machine
        self.request = request
        self.directory = directory
        self.journal = bytearray()
        self.acknowledged = 0
        self.kind = ""
        self.up = True
        self.frozen = False
        self.agent: ScriptedAgent | None = None
        self.exited = False
        self.lines: deque[Line] = deque()
        self.taken: dict[int, bytes] = {}
        self.changed: set[asyncio.Event] = set()
        self._at_line_start = True

    @property
    def lives(self) -> bool:
        """True while there is a process of the agent."""
        return self.agent is not None and not self.exited

    def start_agent(self, agent: ScriptedAgent) -> None:
        """Start the agent's process."""
        self.agent = agent
        self._record(records.Started(gen=1, pid=1, start_time=1, pgid=1))

    def possible(self) -> Iterator[Callable[[], None]]:
        """Yield what could happen next: on the side of the input, of the agent, and of the output."""
        agent = self.agent
        if self.up and not self.frozen:
            if self.lines:
                yield self._take_line
            if agent is not None and not self.exited and (agent.out or agent.dying):
                yield self._hear
        if agent is not None and not self.exited and not agent.dying and agent.stdin:
            yield agent.read

    def _take_line(self) -> None:
        """Announce the first line, or put an announced one into the pipe."""
        line = self.lines[0]
        if not line.announced:
            if self.agent is None or self.exited or self.agent.dying:
                self.lines.popleft()
                _fail(line.taken, AgentDied("The agent has ended.", exit_code=1))
                return
            line.announced = True
            self.taken[line.n] = line.data
            self.machine.begun(self.request.session_id, line.data)
            self._record(records.StdinLine(n=line.n))
            return
        self.lines.popleft()
        if self.agent is None or self.exited or self.agent.dying:
            _fail(line.taken, AgentDied("The agent has ended.", exit_code=1))
            return
        self.agent.stdin.append(line.data)
        self._record(records.StdinWritten(n=line.n))
        if not line.taken.done():
            line.taken.set_result(None)

    def _hear(self) -> None:
        """Put the agent's next message into the journal; one that is dying says what is left, and then is gone."""
        assert self.agent is not None
        if not self.agent.out:
            self.end_agent(code=1)
            return
        message = self.agent.out.popleft()
        self._write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.machine.journalled(self.request.session_id, message)

    def kill_agent(self) -> None:
        """The agent is killed; some of what it was about to say is lost."""
        if self.agent is not None and self.lives:
            for _ in range(self.machine.random.randrange(len(self.agent.out) + 1)):
                self.agent.out.pop()
            self.agent.dying = True
            if not self.up:
                self.end_agent()

    def end_agent(self, *, code: int | None = None, signal: int | None = None) -> None:
        """The agent is gone, at once; its end is the last record, where agentctl lives to write it."""
        if self.agent is None or self.exited:
            return
        self.exited = True
        self.agent.stdin.clear()
        if self.up:
            self._record(records.Exited(code=code, signal=signal))
        for line in self.lines:
            _fail(line.taken, AgentDied("The agent has ended.", exit_code=code))
        self.lines.clear()

    def kill_all(self) -> None:
        """Agentctl and agent are killed by identity; one that was stopped writes no record of it."""
        if self.frozen:
            self.end_agentctl()
        self.end_agent(signal=9)
        self.end_agentctl()

    def end_agentctl(self) -> None:
        """Agentctl is gone, its connections with it; its agent lives on."""
        self.up = False
        for line in self.lines:
            _fail(line.taken, AgentctlError("agentctl cannot be reached.", reason="unreachable"))
        self.lines.clear()
        self._tell()

    def keep(self) -> None:
        """Put the journal where a later reader finds it, and the proof that nothing of the instance lives."""
        directory = journal_in(self.directory)
        os.makedirs(directory, exist_ok=True)
        start = self.machine.random.choice([0, self.acknowledged])
        Path(segment_path(directory, start)).write_bytes(bytes(self.journal[start:]))
        identity = Identity(
            api_version=API_VERSION,
            instance_id=self.request.instance_id,
            nonce="n",
            pid=0,
            start_time=0,
            boot_id="",
            ended=True,
        )
        write_identity(self.directory, identity)

    def _record(self, record: records.Record) -> None:
        self._write(records.encode(record))

    def _write(self, line: bytes) -> None:
        self.journal += line
        self._tell()

    def _tell(self) -> None:
        for event in self.changed:
            event.set()


class Machine:
    """All instances of one home, and what its agents keep and did: a `Chronicle`.

    `faults` are things that must never happen. `restores` says of a session what its next restore comes to, `starts`
    what its next start of an instance, or of the agent, comes to. `modes` and `paces` are those that a session may be
    set to just now; `excused` the executions that were already ending when they were chosen.
    """

    def __init__(self, run: Path, random: Random) -> None:
        self.random = random
        self.instances: dict[str, MemoryInstance] = {}
        self.known: dict[str, int] = {}
        self.ended: set[str] = set()
        self.made: dict[str, str] = {}
        self.refused: list[tuple[str, str, str]] = []
        self.received: list[Received] = []
        self.begun_prompts: list[tuple[str, str]] = []
        self.said: dict[tuple[str, str], list[str]] = {}
        self.modes: dict[str, set[str]] = {}
        self.paces: dict[str, set[str]] = {}
        self.excused: set[str] = set()
        self.answers: dict[str, list[Any]] = {}
        self.faults: list[str] = []
        self.executions: list[tuple[str, str]] = []
        self.restores: dict[str, str] = {}
        self.starts: dict[str, str] = {}
        self._run = run

    def create(self, request: InstanceRequest) -> MemoryInstance:
        """Start an agentctl."""
        if request.instance_id in self.instances:
            self.faults.append(f"instance {request.instance_id} was made twice")
        instance = MemoryInstance(self, request, self.directory(request.instance_id))
        self.instances[request.instance_id] = instance
        return instance

    def directory(self, instance_id: str) -> str:
        """Return where an instance is, or was: what it left is found there."""
        return str(self._run / instance_id)

    def start(self, instance: MemoryInstance) -> None:
        """Start an agent. No other of its session may live (RACE-10)."""
        session_id = instance.request.session_id
        if any(one.lives for one in self.of_session(session_id)):
            self.faults.append(f"two agents of session {session_id} live at once")
        self.executions.append((session_id, instance.request.execution_id))
        restore = self.restores.pop(session_id, "good")
        execution_id = instance.request.execution_id
        instance.start_agent(ScriptedAgent(instance.kind, session_id, execution_id, self, restore=restore))

    def of_session(self, session_id: str) -> list[MemoryInstance]:
        """Return the instances of a session, oldest first."""
        return [one for one in self.instances.values() if one.request.session_id == session_id]

    def live(self, session_id: str) -> MemoryInstance | None:
        """Return the instance whose agent lives."""
        return next((one for one in self.of_session(session_id) if one.lives), None)

    def works_on(self, session_id: str) -> bool:
        """Tell whether an agent of the session works, will never answer, or cannot be heard just now."""
        return any(
            one.frozen or (one.lives and one.agent is not None and (one.agent.work is not None or one.agent.deaf))
            for one in self.of_session(session_id)
        )

    def possible(self) -> list[Callable[[], None]]:
        """Return what could happen next."""
        return [deed for instance in self.instances.values() for deed in instance.possible()]

    def work(self) -> bool:
        """Let one thing happen; False when nothing can."""
        deeds = self.possible()
        if deeds:
            self.random.choice(deeds)()
        return bool(deeds)

    def begun(self, session_id: str, line: bytes) -> None:
        """Note that a line is about to be written: a prompt among them may have reached its agent."""
        message = json.loads(line)
        if message.get("method") == "session/prompt":
            self.begun_prompts.append((session_id, request_in(message["params"]["prompt"][0]["text"])))

    def took(self, prompt: Received) -> None:
        """Note a prompt that an agent has read: it must be set as the session wants it by then (WIRE-12)."""
        self.received.append(prompt)
        modes = self.modes.get(prompt.session_id, {MODES[0]})
        paces = self.paces.get(prompt.session_id, {PACES[0]})
        if prompt.execution_id not in self.excused and (prompt.mode not in modes or prompt.pace not in paces):
            self.faults.append(f"{prompt} was taken, wanted was one of {modes} and {paces}")

    def journalled(self, session_id: str, message: dict[str, Any]) -> None:
        """Note what of a turn's text is in a journal."""
        update = (message.get("params") or {}).get("update") or {}
        text = (update.get("content") or {}).get("text", "")
        if update.get("sessionUpdate") == "agent_message_chunk" and text.startswith("["):
            self.said.setdefault((session_id, text[1:-1].rpartition(" ")[0]), []).append(text)

    def remove(self, instance: MemoryInstance) -> None:
        """Remove an ended instance and its directory."""
        if instance.lives:
            self.faults.append(f"instance {instance.request.instance_id} was removed while its agent lives")
        self.instances.pop(instance.request.instance_id, None)
        shutil.rmtree(instance.directory, ignore_errors=True)

    def backend_died(self) -> None:
        """Each agentctl sees that its backend is gone, and ends its agent; journals stay where they are."""
        for _ in range(self.random.randrange(MOST_AFTER_DEATH)):
            self.work()
        for instance in self.instances.values():
            instance.lines.clear()
            instance.kill_all()
            instance.keep()
        self.instances.clear()


def _fail(taken: "asyncio.Future[None]", error: Exception) -> None:
    if not taken.done():
        taken.set_exception(error)
        taken.exception()
