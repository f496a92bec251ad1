"""One run of one agent process, in memory. Everything that must survive it is in the store."""

import asyncio

import msgspec

from kandev.agents.base import AgentConfig
from kandev.domain.models import ExecutionId
from kandev.domain.resume import LaunchAgentRequest
from kandev.errors import AgentDied, ExecutionNotFoundError
from kandev.lifecycle.effects import ExecutionRef
from kandev.lifecycle.ingest import Ingest
from kandev.lifecycle.protocol_state import ProtocolState
from kandev.protocols.acp import AgentInfo
from kandev.protocols.dialect import Dialect
from kandev.runtimes.agentctl_client import AgentctlClient
from kandev.runtimes.base import Instance, Runtime


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the session wants the agent to be set to, applied again after every start (WIRE-12)."""

    mode: str = ""
    model: str = ""
    options: dict[str, str | bool] = {}


class AgentExecution:
    """A live, or starting, agent: its instance, its ingest, and the flags of the specification.

    `ending` is why it is being ended on purpose; empty while nobody asked for that. `fork_failed` is why the agent made
    no copy of the session that this one was to begin as.
    """

    def __init__(
        self,
        ref: ExecutionRef,
        request: LaunchAgentRequest,
        config: AgentConfig,
        *,
        runtime: Runtime,
        instance: Instance,
        client: AgentctlClient,
        ingest: Ingest,
        wanted: Wanted,
    ) -> None:
        self.ref = ref
        self.request = request
        self.config = config
        self.runtime = runtime
        self.instance = instance
        self.client = client
        self.ingest = ingest
        self.wanted = wanted
        self.info = AgentInfo()
        self.ready = False
        self.responding = True  # its agentctl answers; see `watch_agentctl`
        self.initialized = False
        self.ending = ""
        self.fork_failed = ""
        self.ended = asyncio.Event()
        self.leaving = asyncio.Event()  # the backend stops, and the agent outlives it
        self.active_at = asyncio.get_running_loop().time()
        self.runner: asyncio.Task[None] | None = None

    @property
    def id(self) -> ExecutionId:
        """The execution's own id; only the start of a process makes a new one."""
        return ExecutionId(self.ref.execution_id)

    @property
    def state(self) -> ProtocolState:
        """The reader's state, which is stored with the position."""
        return self.ingest.reader.state

    @property
    def dialect(self) -> Dialect:
        """What the agent speaks."""
        return self.ingest.reader.dialect

    @property
    def takes_settings(self) -> bool:
        """False for an agent that cannot be told anything but prompts while it runs."""
        return self.config.protocol != "amp"

    @property
    def history_enabled(self) -> bool:
        """Gates both recording and injection."""
        return self.state.history_enabled

    @property
    def needs_resume_context(self) -> bool:
        """True when history exists and goes with the next prompt."""
        return self.state.needs_resume_context

    @property
    def resume_context_injected(self) -> bool:
        """True after the agent accepted a prompt with the context: it is injected once."""
        return self.state.resume_context_injected

    @property
    def in_turn(self) -> bool:
        """True while a prompt has no answer."""
        return any(flight.turn_id for flight in self.state.in_flight.values())

    @property
    def silent_s(self) -> float:
        """For how many seconds the agent is silent in its turn; 0 without one, and while it waits for a person."""
        if not self.in_turn or self.state.asked_in_turn:
            return 0.0
        return asyncio.get_running_loop().time() - self.ingest.last_heard

    @property
    def agent_session_id(self) -> str:
        """The agent's own session id: the resume token. Not to be logged (TOK-9)."""
        return self.state.agent_session_id

    @property
    def live(self) -> bool:
        """True when a prompt can reach the agent now."""
        return self.ready and not self.ending and self.responding and self.ingest.open

    @property
    def stays(self) -> bool:
        """True when the agent goes on after this backend: it came up, nobody ends it, and its runtime outlives us."""
        return self.runtime.lasting and self.ready and not self.ending

    def require_live(self) -> None:
        """Raise ExecutionNotFoundError unless a prompt can reach the agent now."""
        if not self.live:
            raise ExecutionNotFoundError("No agent runs for this session.")

    def require_not_ending(self) -> None:
        """Raise AgentDied when somebody ended the execution while it started."""
        if self.ending:
            raise AgentDied(f"The start was given up: {self.ending}.")
