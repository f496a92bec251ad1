"""One agentctl: holds the journal and the agent's runs together, and knows when to end."""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kandev.agentctl import API_VERSION
from kandev.agentctl.awake import EVERY_S, hold
from kandev.agentctl.failpoints import failpoint
from kandev.agentctl.git import Git
from kandev.agentctl.identity import AgentIdentity, Identity, write_identity
from kandev.agentctl.journal import Journal
from kandev.agentctl.platform import boot_id, process_stat
from kandev.agentctl.process import AgentRun, Surroundings
from kandev.agentctl.programs import Programs
from kandev.agentctl.refusal import Refusal
from kandev.agentctl.segments import journal_in
from kandev.agentctl.sources import Sources
from kandev.agentctl.spawn import Launch, environment_of, refused, spawn
from kandev.agentctl.tree import ProcessTree

__all__ = ["CAP_BYTES", "WRITE_TIMEOUT_S", "Options", "Sidecar"]

CAP_BYTES: Final = 256 << 20
"""How many bytes of the journal may wait for their reader before the agent has to."""
WRITE_TIMEOUT_S: Final = 10.0
"""How long a request waits for an agent that does not read its stdin."""
BACKEND_GONE_GRACE_S: Final = 2.0
"""How long the agent of a transient instance has after its backend died: stdin is closed, then the tree is killed."""
TERMINATE_GRACE_S: Final = 8.0
"""How long an agent has when agentctl itself gets SIGTERM: some agents need this long to end in order."""
RUN_S: Final = 60.0
"""How long a short command of the agent's may take."""
_RUN_BYTES: Final = 64 << 10
_LAST_WORDS_BYTES: Final = 2048
_ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an agentctl is set up. `lifeline` is a pipe whose end-of-file says that the backend is gone; -1 for none.

    Without one it outlives its backend. It ends by itself after `idle_s` in which nobody asked it for anything and the
    agent said nothing; 0 is never. `awake` is the socket of a sandbox's service that is told when something goes on.
    """

    instance_id: str
    directory: str
    token: str = ""
    lifeline: int = -1
    cap_bytes: int = CAP_BYTES
    write_timeout_s: float = WRITE_TIMEOUT_S
    idle_s: float = 0
    awake: str = ""


class Sidecar:
    """What the requests act on. Errors are Refusals. Made inside its running loop."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.ending = asyncio.Event()
        """Set when agentctl is to end, and nothing of the agent is left."""
        self.growth: set[asyncio.Event] = set()
        """One event of each reader, set when the journal grew or when there is news about its end."""
        self._stirred = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tree = ProcessTree(self._loop)
        self.journal = Journal(journal_in(options.directory), on_growth=self.wake_readers)
        self._programs = Programs(self._tree)
        self.sources = Sources(options.directory, Git(self._programs))
        self._launch: Launch | None = None
        self._run: AgentRun | None = None
        self._gen = 0
        self._refusing = ""
        self._end: asyncio.Task[None] | None = None
        stat = process_stat(os.getpid())
        assert stat is not None
        self._identity = Identity(
            api_version=API_VERSION,
            instance_id=options.instance_id,
            nonce=secrets.token_hex(8),
            pid=stat.pid,
            start_time=stat.start_time,
            boot_id=boot_id(),
        )
        write_identity(options.directory, self._identity)
        for number in _ENDING_SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal)
        if options.lifeline >= 0:
            os.set_inheritable(options.lifeline, False)
            self._loop.add_reader(options.lifeline, self._on_lifeline)
        self._active_at = self._loop.time()
        self._awake_watch = self._loop.create_task(self._stay_awake(), name="awake") if options.awake else None
        self._idle_watch = self._loop.create_task(self._watch_idle(), name="idle") if options.idle_s > 0 else None

    def health(self) -> Mapping[str, Any]:
        """Return the answer of GET /health and GET /status."""
        run = self._run
        return {
            "status": "ok",
            "api_version": API_VERSION,
            "instance_id": self.options.instance_id,
            "nonce": self._identity.nonce,
            "pid": self._identity.pid,
            "start_time": self._identity.start_time,
            "agent": self._agent_health(),
            "journal": {
                "start": self.journal.start,
                "end": self.journal.end,
                "acked": self.journal.acknowledged,
                "paused": run.output.paused if run else "",
                "trouble": self.journal.trouble,
            },
            "last_line": run.stdin.last_line if run else 0,
        }

    def configure(self, payload: Mapping[str, Any]) -> None:
        """Take command, env, cwd and perhaps tmpdir for the next start; with `inherit` env is added to our own."""
        launch = self._asked(payload)
        self._refuse_while_running()
        failpoint("agentctl.before_configure")
        self._launch = launch
        failpoint("agentctl.after_configure")

    async def run(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run a short command of the agent's before that is started, in the surroundings that `configure` gives."""
        launch = self._asked(payload)
        self._refuse_while_running()
        environment = environment_of(launch, instance_id=self.options.instance_id)
        try:
            ended = await self._programs.run(
                launch.command, env=environment, limit_s=RUN_S, kept_bytes=_RUN_BYTES, cwd=launch.cwd
            )
        except TimeoutError:
            raise Refusal(504, "command_late", f"{launch.command[0]} did not end within {RUN_S:g} s.") from None
        except (OSError, ValueError) as error:
            raise refused(error, launch) from error
        return {
            "code": ended.code,
            "out": ended.out.decode("utf-8", "replace"),
            "err": ended.err.decode("utf-8", "replace"),
        }

    def _asked(self, payload: Mapping[str, Any]) -> Launch:
        command, env, cwd = payload.get("command"), payload.get("env"), payload.get("cwd")
        tmpdir = payload.get("tmpdir", os.path.join(self.options.directory, "tmp"))
        if not (isinstance(command, list) and command and all(isinstance(part, str) for part in command)):
            raise Refusal(400, "bad_request", "command is no list of words.")
        if not (isinstance(env, dict) and all(isinstance(value, str) for value in env.values())):
            raise Refusal(400, "bad_request", "env is no object of strings.")
        if not (isinstance(cwd, str) and isinstance(tmpdir, str)):
            raise Refusal(400, "bad_request", "cwd and tmpdir are paths.")
        if payload.get("inherit"):
            env = {**os.environ, **env}
        return Launch(command=tuple(command), env=env, cwd=cwd, tmpdir=tmpdir)

    def start(self) -> Mapping[str, Any]:
        """Start the configured agent."""
        if self._launch is None:
            raise Refusal(409, "not_configured", "The agent was not configured.")
        self._refuse_while_running()
        failpoint("agentctl.before_spawn")
        spawned = spawn(self._launch, instance_id=self.options.instance_id)
        failpoint("agentctl.after_spawn")
        self._gen += 1
        around = Surroundings(
            directory=self.options.directory,
            journal=self.journal,
            tree=self._tree,
            cap_bytes=self.options.cap_bytes,
        )
        self._run = AgentRun(spawned, launch=self._launch, gen=self._gen, around=around)
        agent = AgentIdentity(pid=spawned.pid, start_time=spawned.start_time, pgid=spawned.pid)
        self._identity = replace(self._identity, agent=agent)
        failpoint("agentctl.after_start")
        with contextlib.suppress(OSError):  # no room: the instance id in the agent's environment still proves it
            write_identity(self.options.directory, self._identity)
        failpoint("agentctl.after_identity")
        return self._agent_health()

    async def send(self, n: int, line: bytes) -> None:
        """Write line `n` to the agent, at most once."""
        if b"\n" in line[:-1] or not line.strip(b"\n"):
            raise Refusal(400, "bad_request", "The body is not one line.")
        run = self._run
        if run is None:
            raise Refusal(409, "not_started", "The agent was not started.")
        if run.exit is not None:
            stderr = self.stderr(_LAST_WORDS_BYTES).decode("utf-8", "replace")
            raise Refusal(409, "agent_exited", "The agent has ended.", **self._agent_health(), stderr=stderr)
        if self._refusing:
            raise Refusal(409, "stopping", self._refusing)
        await run.stdin.send(n, line, timeout_s=self.options.write_timeout_s)

    async def stop(self, grace_s: float) -> None:
        """End the agent and its tree; nothing to do when none runs."""
        failpoint("agentctl.before_stop")
        if self._run is not None and not await self._run.stop(grace_s=grace_s):
            raise Refusal(500, "tree_alive", "A process of the agent hangs in the kernel and did not die.")
        failpoint("agentctl.after_stop")

    def acknowledge(self, offset: int) -> None:
        """Forget the journal before `offset`; an agent that stood at the cap goes on."""
        failpoint("agentctl.before_ack")
        self.journal.acknowledge(offset)
        failpoint("agentctl.after_ack")
        if self._run is not None and self._run.output.paused == "cap":
            self._run.output.adjust()

    def stderr(self, limit: int) -> bytes:
        """Return the last bytes of the agent's stderr."""
        return self._run.stderr.tail(limit) if self._run else b""

    def is_complete(self) -> bool:
        """True when nothing can be added to the journal any more, unless the agent is started again."""
        run = self._run
        return self.ending.is_set() or (run is not None and run.recorded and not self.journal.trouble)

    def wake_readers(self) -> None:
        """Let every reader look again."""
        self.active()
        for event in self.growth:
            event.set()

    def active(self) -> None:
        """Note that somebody asked for something, or that the agent said something."""
        self._active_at = self._loop.time()
        self._stirred.set()

    async def _stay_awake(self) -> None:
        """Hold the sandbox awake as long as somebody asks for the agent, or it says something."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            if self._run is not None and self._run.exit is None:
                await hold(self.options.awake)
                await asyncio.sleep(EVERY_S)

    def close(self) -> None:
        """Write that nothing is left, and close the journal."""
        for number in _ENDING_SIGNALS:
            self._loop.remove_signal_handler(number)
        for watch in (self._idle_watch, self._awake_watch):
            if watch is not None:
                watch.cancel()
        self._tree.close()
        self.journal.close()
        with contextlib.suppress(OSError):  # no room: then the next start proves it by a scan
            write_identity(self.options.directory, replace(self._identity, ended=True))

    def _refuse_while_running(self) -> None:
        if self._refusing:
            raise Refusal(409, "stopping", self._refusing)
        if self._run is not None and not self._run.finished:
            raise Refusal(409, "already_started", "The agent runs already.", **self._agent_health())

    def _agent_health(self) -> Mapping[str, Any]:
        run = self._run
        if run is None:
            return {"state": "configured" if self._launch else "none"}
        health: dict[str, Any] = {"state": "running", "pid": run.pid, "start_time": run.start_time, "pgid": run.pid}
        if run.exit is not None:
            health.update(state="exited", exit_code=run.exit.code, signal=run.exit.signal)
        return health

    def _on_lifeline(self) -> None:
        try:
            if os.read(self.options.lifeline, 1024):
                return
        except OSError:
            pass
        self._loop.remove_reader(self.options.lifeline)
        self._begin_end("The backend is gone.", grace_s=BACKEND_GONE_GRACE_S, term_grace_s=0)

    async def _watch_idle(self) -> None:
        """End where nobody reads and nothing was heard for long: whoever wanted this agent does not come back."""
        while not self._refusing:
            if self.growth:
                self.active()
            left = self._active_at + self.options.idle_s - self._loop.time()
            if left <= 0:
                self._begin_end("Nobody asked for the agent any more.", grace_s=TERMINATE_GRACE_S, term_grace_s=2.0)
                return
            await asyncio.sleep(left)

    def _on_signal(self) -> None:
        if self._refusing and self._run is not None:  # asked again: no grace is left
            self._hurry = self._loop.create_task(self._run.stop(grace_s=0), name="kill at once")
        self._begin_end("agentctl is ending.", grace_s=TERMINATE_GRACE_S, term_grace_s=2.0)

    def _begin_end(self, why: str, *, grace_s: float, term_grace_s: float) -> None:
        if self._end is None:
            self._refusing = why
            self._end = self._loop.create_task(self._finish(grace_s, term_grace_s), name="end of agentctl")

    async def _finish(self, grace_s: float, term_grace_s: float) -> None:
        if self._run is not None:
            await self._run.stop(grace_s=grace_s, term_grace_s=term_grace_s)
        self.ending.set()
        self.wake_readers()
