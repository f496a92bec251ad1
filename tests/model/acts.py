"""What people and agents do in a world, and how everything is brought to an end: shared by the model and its examples.

    acts = Acts(world)
    acts.launch("native", "quick")
    acts.settle()
    acts.finish()
    acts.require_lawful()

Sessions are named by a number, modulo how many there are; without any, nothing is done.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from kandev.domain.models import Message
from kandev.lifecycle.batch import Batch, Superseded
from kandev.lifecycle.effects import ExecutionRef
from kandev.lifecycle.protocol_state import ProtocolState
from kandev.orchestrator.event_handlers import store_resume_token
from kandev.orchestrator.views import CreateTask
from model.agent import MODES, PACES
from model.database import rows
from model.laws import SESSIONS, Laws
from model.world import World

MOST_SESSIONS = 4
ROUNDS = 12
LONG_S = 135.0
"""Longer than any deadline of a start, a request or a cancel."""


class Session:
    """A session as clients know it."""

    def __init__(self, session_id: str, task_id: str, kind: str) -> None:
        self.id = session_id
        self.task_id = task_id
        self.kind = kind
        self.sent: list[tuple[str, str]] = []
        self.ids: dict[str, str] = {}


class Acts:
    """Does things to the sessions of a world. Each is asked for, and goes on while the world runs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.laws = Laws(world)
        self.sessions: list[Session] = []
        self._prompts = 0
        self._launched = 0
        self._seen_running: set[str] = set()
        self._withdrawn: set[str] = set()
        self._settings: Counter[str] = Counter()

    def require_lawful(self) -> None:
        """Fail where something was seen that must not happen."""
        assert not self.world.faults, "\n".join(self.world.faults)

    def _session(self, number: int) -> Session | None:
        return self.sessions[number % len(self.sessions)] if self.sessions else None

    def _text(self, manner: str) -> str:
        self._prompts += 1
        return f"prompt {self._prompts} {manner}"

    # ---- people

    def launch(self, kind: str, manner: str, *, start: bool = True) -> None:
        """Create a task."""
        if self._launched >= MOST_SESSIONS:
            return
        self._launched += 1
        request = CreateTask(description=self._text(manner), agent=kind, start=start)

        def created(answer: Any) -> None:
            task, session = answer
            self.sessions.append(Session(session.id, task.id, kind))

        self.world.ask(self.world.backend.tasks.create, request).then = created

    def prompt(self, number: int, manner: str) -> None:
        """Send a message under a client id of its own."""
        session = self._session(number)
        if session is not None:
            text = self._text(manner)
            session.sent.append((f"client-{self._prompts}", text))
            self._send(session, *session.sent[-1])

    def repeat_prompt(self, number: int) -> None:
        """Send the last message once more, as a client does that got no answer (PROMPT-2)."""
        session = self._session(number)
        if session is not None and session.sent:
            self._send(session, *session.sent[-1])

    def _send(self, session: Session, client_id: str, text: str) -> None:
        def answered(message: Message) -> None:
            known = session.ids.setdefault(client_id, message.id)
            if known != message.id:
                self.world.faults.append(f"{client_id} is message {known} and message {message.id}")
            if message.id not in self._withdrawn:
                self.laws.acknowledged[message.id] = (session.id, text)

        add = self.world.backend.messages.add
        self.world.ask(add, session.task_id, session.id, text, client_id).then = answered

    def another_session(self, number: int, kind: str, *, recap: bool) -> None:
        """Make another session of the task: with its description, or with a recap of the first one."""
        session = self._session(number)
        if session is None or self._launched >= MOST_SESSIONS:
            return
        self._launched += 1

        def created(view: Any) -> None:
            self.sessions.append(Session(view.id, session.task_id, kind))

        create = self.world.backend.tasks.create_session
        self.world.ask(create, session.task_id, kind, session.id if recap else None).then = created

    def start(self, number: int) -> None:
        """Start a session that was made without."""
        if (session := self._session(number)) is not None:
            self.world.ask(self.world.backend.operations.start_session, session.id)

    def delete_session(self, number: int) -> None:
        """Delete the session."""
        if (session := self._session(number)) is not None:
            self.world.ask(self.world.backend.deletion.delete_session, session.task_id, session.id, force=True)

    def delete_task(self, number: int) -> None:
        """Delete the task with all of its sessions."""
        if (session := self._session(number)) is not None:
            self.world.ask(self.world.backend.deletion.delete_task, session.task_id, force=True)

    def set_mode(self, number: int, mode: str) -> None:
        """Set the agent's mode, now and for every later start."""
        if (session := self._session(number)) is not None:
            possible = self.world.machine.modes.setdefault(session.id, {MODES[0]})
            self._wanted(session, possible, mode, self.world.backend.settings.set_mode, session.id, mode)

    def set_pace(self, number: int, pace: str) -> None:
        """Set the agent's one option."""
        if (session := self._session(number)) is not None:
            possible = self.world.machine.paces.setdefault(session.id, {PACES[0]})
            set_option = self.world.backend.settings.set_config_option
            self._wanted(session, possible, pace, set_option, session.id, "pace", pace)

    def _wanted(self, session: Session, possible: set[str], value: str, method: Callable[..., Any], *args: str) -> None:
        """Until it is answered, the value may be there or not; then it is, unless another one is on its way."""
        possible.add(value)
        self._settings[session.id] += 1

        def answered(answer: Any) -> None:
            self._settings[session.id] -= 1
            execution = self.world.backend.manager.get(session.id)
            if execution is not None and not answer["applied"] and (execution.ending or execution.ready):
                self.world.machine.excused.add(execution.ref.execution_id)
            if not self._settings[session.id]:
                possible.intersection_update({value})

        self.world.ask(method, *args).then = answered

    def cancel(self, number: int) -> None:
        """Cancel what runs."""
        if (session := self._session(number)) is not None:
            self.world.ask(self.world.backend.operations.cancel_turn, session.task_id, session.id)

    def stop(self, number: int) -> None:
        """Stop the session."""
        if (session := self._session(number)) is not None:
            self.world.ask(self.world.backend.operations.stop_session, session.task_id, session.id)

    def resume(self, number: int, *, asked: bool = False) -> None:
        """Resume, as a page does that is opened, or as a person does who asks for it."""
        if (session := self._session(number)) is not None:
            operations = self.world.backend.operations
            resume = operations.resume_task_session
            self.world.ask(resume, session.task_id, session.id, wait=asked, open_queue=asked)

    def recover(self, number: int, action: str) -> None:
        """Bring the session back in one of the ways."""
        session = self._session(number)
        if session is None:
            return
        wishes = self.laws.wishes
        wishes.fresh_starts[session.id] += action == "fresh_start"
        wishes.retries[session.id] += action == "retry_token"
        self.world.ask(self.world.backend.recovery.recover, session.task_id, session.id, action)

    def withdraw(self, number: int) -> None:
        """Withdraw the last prompt of the queue."""
        session = self._session(number)
        queue = self.world.backend.store.queue(session.id) if session is not None else []
        if session is not None and queue:
            message_id = queue[-1].message_id

            self._withdrawn.add(message_id)  # its answer may be lost, and the withdrawal not
            self.laws.acknowledged.pop(message_id, None)
            session.sent = [(client, text) for client, text in session.sent if text != queue[-1].content]
            self.world.ask(self.world.backend.messages.cancel_queued, session.id, message_id)

    def resume_queue(self, number: int) -> None:
        """Say that the queue goes on."""
        if (session := self._session(number)) is not None:
            self.world.ask(self.world.backend.messages.resume_queue, session.id)

    def answer_permissions(self, number: int, *, cancelled: bool = False) -> None:
        """Answer every question that waits, twice, as two clients may."""
        session = self._session(number)
        if session is None:
            return
        permissions = self.world.backend.permissions
        for request in self.world.backend.store.pending_permissions(session.id):
            for _ in range(2):
                self.world.ask(permissions.respond, session.id, request.id, "yes", cancelled=cancelled)

    def complete(self, number: int) -> None:
        """Complete the task."""
        if (session := self._session(number)) is not None:
            self.world.ask(self.world.backend.tasks.complete, session.task_id)

    # ---- agents

    def let_finish(self, number: int) -> None:
        """A slow turn ends."""
        session = self._session(number)
        instance = self.world.machine.live(session.id) if session is not None else None
        if instance is not None and instance.agent is not None:
            instance.agent.finish()

    def kill_agent(self, number: int) -> None:
        """The agent's process is killed."""
        session = self._session(number)
        instance = self.world.machine.live(session.id) if session is not None else None
        if instance is not None:
            instance.kill_agent()

    def kill_agentctl(self, number: int) -> None:
        """Agentctl is killed, and the agent lives on (CRASH-15)."""
        session = self._session(number)
        for instance in self.world.machine.of_session(session.id) if session is not None else []:
            instance.end_agentctl()

    def freeze_agentctl(self, number: int) -> None:
        """Agentctl is stopped, and answers nothing (CRASH-16)."""
        session = self._session(number)
        for instance in self.world.machine.of_session(session.id) if session is not None else []:
            instance.frozen = instance.up

    def next_restore(self, number: int, how: str) -> None:
        """Choose what comes of the next restore."""
        if (session := self._session(number)) is not None:
            self.world.machine.restores[session.id] = how

    def next_start(self, number: int, how: str) -> None:
        """Choose what comes of the next start."""
        if (session := self._session(number)) is not None:
            self.world.machine.starts[session.id] = how

    def late_events(self, number: int) -> None:
        """An older execution of the session still speaks: nothing changes (RACE-5, TOK-3)."""
        session = self._session(number)
        if session is None:
            return
        current = self.world.backend.store.executor(session.id)
        old = [execution for whose, execution in self.world.machine.executions if whose == session.id]
        if current is None or not old or old[0] == current.agent_execution_id:
            return
        ref = ExecutionRef(session_id=session.id, task_id=session.task_id, execution_id=old[0], agent=session.kind)
        before = _dump(self.world, session.id)
        batch = self.world.loop.inside(lambda: _late_batch(self.world, ref))
        try:
            self.world.database.run(
                lambda tx: batch.apply(tx, session_id=ref.session_id, execution_id=ref.execution_id)
            )
        except Superseded:
            pass
        else:
            self.world.faults.append("a late batch of an older execution was committed")
        self.world.database.run(lambda tx: store_resume_token(tx, ref, "late-token", proven=True))
        after = _dump(self.world, session.id)
        if before != after:
            self.world.faults.append(f"late events changed {before} to {after}")

    # ---- the world

    def settle(self, seconds: float = 3.0) -> None:
        """Let the world come to rest, and look at it."""
        self.world.settle(seconds)
        self.laws.look_settled()

    def restart(self, end: Callable[[], None]) -> None:
        """End the backend in some way, and start another."""
        end()
        self.world.start()
        self._find_sessions()

    def _find_sessions(self) -> None:
        """A task whose creation was not answered may be there all the same."""
        known = {session.id for session in self.sessions}
        for row in rows(self.world.database.connection, "SELECT id, task_id, agent FROM task_sessions"):
            if row["id"] not in known:
                self.sessions.append(Session(row["id"], row["task_id"], row["agent"]))

    def finish(self) -> None:
        """Do what people would do until every prompt is through, and look: nothing is lost, and nothing hangs."""
        self.world.machine.restores.clear()
        self.world.machine.starts.clear()
        self.settle()
        for _ in range(ROUNDS + 4 * self._prompts):  # a deaf agent has to be ended by force for each
            helped = [self._help(number, session) for number, session in enumerate(self.sessions)]
            if all(helped) and all(call.done for call in self.world.calls):
                break
            self.settle(LONG_S)
        else:
            states = [dict(row) for row in rows(self.world.database.connection, SESSIONS)]
            self.world.faults.append(f"not at an end: {states}")
        self.laws.look()
        self._look_finished()

    def _help(self, number: int, session: Session) -> bool:
        """Help a session on; True where nothing is left to do."""
        backend = self.world.backend
        if session.id in self.laws.deleted:
            return True
        stored = backend.store.session(session.id)
        if stored.state == "COMPLETED":
            return True
        self.let_finish(number)
        self.answer_permissions(number)
        if stored.state == "CREATED":
            self.world.ask(backend.operations.start_session, session.id)
        elif stored.state == "RUNNING":
            if session.id in self._seen_running:
                self.cancel(number)
            self._seen_running ^= {session.id}
        elif stored.state in {"FAILED", "CANCELLED"} or stored.parked_reason:
            self.recover(number, "resume")
        elif stored.queue_held or backend.store.queue(session.id):
            self.resume(number, asked=True)
        elif stored.state == "WAITING_FOR_INPUT":
            return True
        return False

    def _look_finished(self) -> None:
        """Every prompt that was acknowledged had its turn; whoever asked got an answer."""
        self.world.faults += [f"{call.what} was never answered" for call in self.world.calls if not call.done]
        received = {(one.session_id, one.text) for one in self.world.machine.received}
        query = """SELECT turns.session_id, messages.content FROM messages JOIN turns ON turns.message_id = messages.id
            WHERE turns.state = 'completed'"""
        for session_id, text in rows(self.world.database.connection, query):
            if (session_id, text) not in received:
                self.world.faults.append(f"{text!r} is completed and was not delivered")


def _dump(world: World, session_id: str) -> list[dict[str, Any]]:
    """All that is stored of a session, but for times."""
    connection = world.database.connection
    found = [dict(row) for row in rows(connection, "SELECT * FROM task_sessions WHERE id = ?", session_id)]
    for table in ("executors_running", "turns", "messages", "queued_prompts", "permission_requests", "outbox"):
        found += [dict(row) for row in rows(connection, f"SELECT * FROM {table} WHERE session_id = ?", session_id)]
    return found


def _late_batch(world: World, ref: ExecutionRef) -> Batch:
    """What an older execution may still say: an agent session of its own, and the end of its process."""
    config = world.backend._registry.get(ref.agent)
    reader = world.backend.manager.ingest(ref, ProtocolState(), 0, config).reader
    rpc_id = reader.begin_request("session/new")
    reader.feed([b'{"jsonrpc":"2.0","id":%d,"result":{"sessionId":"late-token"}}' % rpc_id])
    reader.agent_ended(stderr="")
    return reader.take()
