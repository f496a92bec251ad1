"""The reader of one journal: lines in wire order become messages, effects, and answers to our own requests (WIRE-6).

The same reader goes through a live stream and through what a killed backend left behind; then it is offline, and
whatever would be sent is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kandev.agentctl import records
from kandev.agentctl.failpoints import failpoint
from kandev.domain.models import Message
from kandev.lifecycle.batch import Applied, Batch, Change
from kandev.lifecycle.effects import (
    AcpSessionCreated,
    AgentExited,
    AgentIntroduced,
    CompleteStreamEvent,
    Effect,
    EventHandlers,
    ExecutionRef,
    PromptAccepted,
    PromptFailed,
    SessionStatusEvent,
)
from kandev.lifecycle.last_words import refusal
from kandev.lifecycle.protocol_state import InFlight, Phase, ProtocolState, small, told_of_turn
from kandev.lifecycle.questions import PERMISSION, Questions
from kandev.lifecycle.transcript import AGENT_STATE, TEXT_TYPES, Transcript
from kandev.protocols import acp
from kandev.protocols.dialect import Burst, Event, SessionNamed
from kandev.store.database import Tx
from kandev.store.rows import to_json

SAID_NOTHING = frozenset({"available_commands_update", "current_mode_update", "config_option_update"})
MIB = 1 << 20


class Reader:
    """Applies lines to a `ProtocolState` and gathers what follows from them in a batch.

    `on_answer`, once set, makes the reader live: it is called after the commit of each answer to a request of ours.
    `dialect` follows from the state: what an agent speaks is stored with how far it was read.
    """

    def __init__(
        self,
        ref: ExecutionRef,
        state: ProtocolState,
        position: int,
        *,
        handlers: EventHandlers,
        next_seq: Callable[[], int],
        load_message: Callable[[str], Message | None],
        permissions: str | Sequence[str],
    ) -> None:
        self.ref = ref
        self.state = state
        self.dialect = state.dialect()
        self.position = position
        self.noise = 0
        self._handlers = handlers
        self.on_answer: Callable[[int, acp.Response], None] | None = None
        self.transcript = Transcript(ref, state, next_seq=next_seq, load_message=load_message)
        self._questions = Questions(
            ref, state, self.transcript, policy=permissions, dialect=self.dialect, send=self.queue_line
        )

    @property
    def batch(self) -> Batch:
        """The batch that is being filled."""
        return self.transcript.batch

    def feed(self, lines: Sequence[bytes]) -> None:
        """Apply whole lines, without their newlines, in order."""
        before = self.position
        position = before
        transcript, decode = self.transcript, self.dialect.decode
        live = self.state.phase is Phase.LIVE  # no line closes the replay gate
        for line in lines:
            position += len(line) + 1
            if line[:1] == records.MARK:
                self._marked(line)
                continue
            event = decode(line)
            if live and type(event) is acp.Chunk and transcript.continues(event):
                continue
            self._event(event)
        self.position = position
        self.batch.size += position - before

    def too_long(self, length: int, *, limit: int) -> None:
        """Skip a line over the limit, and say so in the transcript (WIRE-2). In bytes; `length` counts its newline."""
        self.position += length
        self.batch.size += 1
        if not self._gate("line_too_long", {}):
            return
        self.transcript.close_text()
        self.transcript.message(
            author_type="system",
            type_="error",
            content=f"The agent sent one line of {length / MIB:.1f} MiB; the limit is {limit / MIB:.1f} MiB. "
            "That line was skipped; the session goes on.",
            metadata={"kind": "line_too_long", "bytes": length},
        )

    def take(self) -> Batch:
        """Return the batch that has gathered, with position and state, and begin a new one."""
        self.transcript.flush_text()
        batch = self.transcript.batch
        batch.position = self.position
        batch.state = self.state.encode()
        self.transcript.batch = Batch()
        return batch

    def begin_turn(self, turn_id: str, *, injected: str) -> None:
        """Open the gate for a turn: its prompt is the next line, and what the agent says from here on belongs to it."""
        state = self.state
        self.transcript.begin_turn(turn_id)
        if state.phase is not Phase.LIVE and state.replayed:
            self.batch.add(self._replayed(dict(state.replayed)))
        state.phase = Phase.LIVE
        state.turn_accepted, state.turn_injected = False, injected
        state.turn_said, state.turn_usage = False, {}
        state.prompt_line = line = state.next_line

        def set_line(tx: Tx, _applied: Applied) -> None:
            tx.run("turn_set_line", id=turn_id, line=line)

        self.batch.add(set_line)

    def _replayed(self, counts: Mapping[str, int]) -> Change:
        """Store again what a restore repeated: some agents answer first, and repeat afterwards (HIST-1)."""
        key = {"session_id": self.ref.session_id, "agent_execution_id": self.ref.execution_id}

        def change(tx: Tx, _applied: Applied) -> None:
            tx.run("resume_set_replayed", **key, replayed=to_json(counts))

        return change

    def begin_request(self, method: str, turn_id: str = "", mode: str = "") -> int:
        """Give out the id of a request of ours, and remember what it is for."""
        request_id = self.state.next_rpc
        self.state.next_rpc += 1
        self.state.in_flight[request_id] = InFlight(method=method, turn_id=turn_id, mode=mode)
        return request_id

    def queue_line(self, line: bytes) -> int:
        """Give a line to the agent its number; it is sent after the commit that stores it. Offline: 0, nothing."""
        if self.on_answer is None:
            return 0
        number = self.state.next_line
        self.state.next_line += 1
        ref = self.ref

        def store(tx: Tx, _applied: Applied) -> None:
            tx.run("outbox_insert", agent_execution_id=ref.execution_id, n=number, session_id=ref.session_id, line=line)

        self.batch.add(store)
        self.batch.lines.append((number, line))
        self.batch.urgent = True
        return number

    def effect(self, effect: Effect) -> None:
        """Hand an effect to the handlers: in the transaction, and after its commit."""
        handlers, ref = self._handlers, self.ref
        for notice in handlers.notices(ref, effect):
            self.transcript.message(
                author_type="system", type_=notice.type, content=notice.content, metadata=notice.metadata
            )

        def change(tx: Tx, applied: Applied) -> None:
            applied.events.extend(handlers.in_commit(tx, ref, effect))

        self.batch.add(change)
        self.batch.after.append(lambda: handlers.committed(ref, effect))
        self.batch.urgent = True

    def agent_ended(self, *, stderr: str, why: str = "") -> None:
        """Close everything of this execution: its agent is proven dead and its journal was read whole."""
        self.on_answer = None  # whatever would be sent from here on is left out
        if not why and (said := refusal(self.state, stderr)) is not None:
            self._response(said)
        exited = self.state.exited
        turn = next((flight.turn_id for flight in self.state.in_flight.values() if flight.turn_id), "")
        delivered = self.state.prompt_begun
        self.transcript.end_turn(tools="unknown")
        self._questions.end_agent()
        self.state.in_flight = {}
        self.effect(
            AgentExited(
                turn_id=turn,
                exit_code=exited.code if exited else None,
                signal=exited.signal if exited else None,
                stderr=stderr,
                delivered=delivered,
                why=why,
            )
        )

    def _marked(self, line: bytes) -> None:
        record = records.parse(line)
        match record:
            case None:
                self._event(self.dialect.decode(records.unescape(line)))
            case records.StdinLine():
                self.state.lines_begun = max(self.state.lines_begun, record.n)
            case records.StdinWritten():
                self._written(record.n)
            case records.Exited():
                self.state.exited = record
                self.batch.urgent = True
            case _:
                pass

    def _written(self, number: int) -> None:
        self.state.lines_written = max(self.state.lines_written, number)
        execution_id = self.ref.execution_id

        def forget(tx: Tx, _applied: Applied) -> None:
            tx.run("outbox_written", agent_execution_id=execution_id, n=number)

        self.batch.add(forget)

    def _event(self, event: Event) -> None:
        match event:
            case acp.Chunk():
                self._chunk(event)
            case acp.Update():
                if self._gate(event.kind, event.body):
                    self._update(event)
            case acp.Response():
                self._response(event)
            case acp.Request():
                self._request(event)
            case acp.Notification(method="$/cancel_request"):
                self._questions.withdraw(event.params)
            case Burst():
                for one in event.events:
                    self._event(one)
            case SessionNamed():
                self._named(event)
            case _:
                self.noise += isinstance(event, acp.Noise)  # else a notification that a client may ignore

    def _chunk(self, chunk: acp.Chunk) -> None:
        if self._gate(chunk.kind, {}):
            self._heard()
            self.state.turn_said |= chunk.kind in TEXT_TYPES and bool(chunk.text)
            self.transcript.chunk(chunk)

    def _named(self, named: SessionNamed) -> None:
        """Store the token that an agent tells by itself. A restored session's new id waits for the end of a turn."""
        known, token = self.state.agent_session_id, named.session_id
        self.state.agent_session_id = token
        if known == token:
            self.effect(SessionStatusEvent(token=token, last_message_uuid=named.last_message_uuid))
        elif not self.state.restored:
            self.effect(AcpSessionCreated(token=token))

    def _gate(self, kind: str, body: Any) -> bool:
        """Tell whether an update is live. A replay's content is counted and dropped (HIST-1, HIST-2)."""
        if self.state.phase is Phase.LIVE:
            return True
        self.state.count_replayed(kind)
        self.batch.size += 1
        if kind in AGENT_STATE:
            self.transcript.agent_state(kind, body)
        elif kind == "plan":
            self.transcript.set_agent_state("plan", body.get("entries"), "session.plan_changed")
        return False

    def _update(self, update: acp.Update) -> None:
        if update.kind == "usage_update":
            self.state.turn_usage = small({k: v for k, v in update.body.items() if k != "sessionUpdate"})
            return
        if update.kind == "session_info_update":
            urgent = self.batch.urgent
            self.effect(SessionStatusEvent(token=self.state.agent_session_id))
            self.batch.urgent = urgent  # it can wait, unless something else cannot
            return
        if update.kind not in SAID_NOTHING:
            self._heard()
            self.state.turn_said |= update.kind != "user_message_chunk"
        self.transcript.update(update)

    def _heard(self) -> None:
        if self.state.turn_accepted or not any(f.turn_id for f in self.state.in_flight.values()):
            return
        self._accepted()

    def _accepted(self) -> None:
        self.state.turn_accepted = True
        if self.state.turn_injected:
            self.state.resume_context_injected |= self.state.turn_injected == "history"
            self.effect(PromptAccepted(turn_id=self.state.turn_id, injected=self.state.turn_injected))

    def _response(self, response: acp.Response) -> None:
        flight = self.state.in_flight.pop(response.id, None) if response.id is not None else None
        if flight is None or response.id is None:
            return
        match flight.method:
            case "initialize" if response.error is None:
                self.state.initialize = small(response.result) if isinstance(response.result, dict) else {}
                self.effect(AgentIntroduced(initialize=self.state.initialize))
                if self.state.stream is not None:  # which has restored its session by then, if it had one
                    method = "session/resume" if self.state.agent_session_id else "session/new"
                    self._session_answered(method, response.result)
            case "session/new" | "session/load" | "session/resume" if response.error is None:
                self._session_answered(flight.method, response.result)
            case "session/prompt":
                self._prompt_answered(flight.turn_id, response)
            case "session/set_mode" if response.error is None:
                # The answer is empty, and not every agent sends an update of its own with it (seen: Codex).
                self.transcript.set_agent_state("mode", flight.mode, "session.mode_changed")
            case "session/set_config_option" if response.error is None:
                self.transcript.set_up(acp.session_setup(response.result))
            case _:
                pass
        self.batch.urgent = True
        if self.on_answer is not None:
            answer, request_id = self.on_answer, response.id
            self.batch.after.append(lambda: answer(request_id, response))

    def _session_answered(self, method: str, result: Any) -> None:
        setup = acp.session_setup(result)
        if method == "session/new":
            self.state.agent_session_id = setup.session_id or ""
            self.state.phase = Phase.LIVE
            if setup.session_id:
                self.effect(AcpSessionCreated(token=setup.session_id))
        else:
            self.state.restored = True
            self.effect(SessionStatusEvent(token=self.state.agent_session_id, opened=True))
        self.transcript.set_up(setup)
        failpoint("token.answered")

    def _prompt_answered(self, turn_id: str, response: acp.Response) -> None:
        reason, known = acp.stop_reason(response.result)
        self.transcript.end_turn(tools="cancelled" if reason == "cancelled" else "unknown" if response.error else "")
        self._questions.end_turn()
        restored = self.state.restored
        if response.error is not None:
            self.effect(
                PromptFailed(
                    turn_id=turn_id,
                    error=response.error,
                    restored=restored,
                    accepted=self.state.turn_accepted,
                )
            )
            return
        if not self.state.turn_accepted:
            self._accepted()
        self.state.restored = False
        self.effect(
            CompleteStreamEvent(
                turn_id=turn_id,
                token=self.state.agent_session_id,
                stop_reason=reason,
                known=known,
                usage={**self.state.turn_usage, **acp.usage(response.result)},
                silent=not self.state.turn_said,
                restored=restored,
                **told_of_turn(self.state, response.result),
            )
        )
        failpoint("turn.answered")

    def _request(self, request: acp.Request) -> None:
        if request.method != PERMISSION:
            self.queue_line(self.dialect.refuse(request.id, -32601, f"Method not found: {request.method}"))
            return
        self._heard()
        self.state.turn_said = True
        self._questions.ask(request)
