"""The payload of each action's request, typed (contract: table of actions).

Unknown fields are ignored, so that a newer client can talk to an older server; wrong types are refused. `null` in an
optional field is the same as leaving it out. Ids have a pattern and so never become paths (SEC-2): see `fields`.
"""

from typing import Literal

import msgspec

from kandev.gateway.fields import ClientId, Id, Limit, Line, LogLimit, SearchText, Seq, Text
from kandev.gateway.hub import Since


class Nothing(msgspec.Struct, frozen=True, kw_only=True):
    """health.check, runtime.list."""


class AgentList(msgspec.Struct, frozen=True, kw_only=True):
    """agent.list."""

    installed_versions: bool = False


class AgentCheck(msgspec.Struct, frozen=True, kw_only=True):
    """agent.check."""

    name: Line


class Resolve(msgspec.Struct, frozen=True, kw_only=True):
    """id.resolve: a session's or a task's id, or the beginning of one."""

    id: Id


class TaskCreate(msgspec.Struct, frozen=True, kw_only=True):
    """task.create."""

    description: Text
    agent: Line
    title: Line | None = None
    runtime: Line | None = None
    repository_path: Line | None = None
    base_branch: Line | None = None
    model: Line | None = None
    mode: Line | None = None
    start: bool | None = None
    client_task_id: ClientId | None = None
    in_place: bool | None = None


class TaskList(msgspec.Struct, frozen=True, kw_only=True):
    """task.list."""

    state: Line | None = None
    limit: Limit | None = None
    cursor: Line | None = None


class TaskBoard(msgspec.Struct, frozen=True, kw_only=True):
    """task.board: a page of all tasks, or one task."""

    task_id: Id | None = None
    limit: Limit | None = None
    cursor: Line | None = None


class TaskRef(msgspec.Struct, frozen=True, kw_only=True):
    """task.get, task.complete, task.session.list."""

    task_id: Id


class TaskUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """task.update."""

    task_id: Id
    title: Line


class TaskDelete(msgspec.Struct, frozen=True, kw_only=True):
    """task.delete."""

    task_id: Id
    force: bool | None = None
    delete_branch: bool | None = None


class TaskSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """task.subscribe, task.unsubscribe: one task, or all."""

    task_id: Id | None = None


class SessionCreate(msgspec.Struct, frozen=True, kw_only=True):
    """task.session.create."""

    task_id: Id
    agent: Line | None = None
    from_session_id: Id | None = None


class SessionRef(msgspec.Struct, frozen=True, kw_only=True):
    """Actions on a session; where the task is named too, it must be the session's."""

    session_id: Id
    task_id: Id | None = None


class TaskSessionRef(msgspec.Struct, frozen=True, kw_only=True):
    """task.session.status, cancel, stop, delete."""

    task_id: Id
    session_id: Id


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """task.session.resume. `open_queue`: a person asked, so a queue that waited for a person goes on."""

    task_id: Id
    session_id: Id
    wait: bool | None = None
    open_queue: bool | None = None


class Recover(msgspec.Struct, frozen=True, kw_only=True):
    """task.session.recover."""

    task_id: Id
    session_id: Id
    action: Literal["resume", "fresh_start", "recap", "retry_token"]


class SetMode(msgspec.Struct, frozen=True, kw_only=True):
    """session.set_mode."""

    session_id: Id
    mode_id: Line


class SetConfigOption(msgspec.Struct, frozen=True, kw_only=True):
    """session.set_config_option."""

    session_id: Id
    config_id: Line
    value: Line | bool


class Logs(msgspec.Struct, frozen=True, kw_only=True):
    """session.logs."""

    session_id: Id
    limit: LogLimit | None = None


class SessionSubscribe(msgspec.Struct, frozen=True, kw_only=True):
    """session.subscribe."""

    session_id: Id
    since: Since | None = None


class MessageAdd(msgspec.Struct, frozen=True, kw_only=True):
    """message.add."""

    task_id: Id
    session_id: Id
    content: Text
    client_message_id: ClientId | None = None


class MessageList(msgspec.Struct, frozen=True, kw_only=True):
    """message.list."""

    session_id: Id
    before: Seq | None = None
    after: Seq | None = None
    limit: Limit | None = None


class MessageRef(msgspec.Struct, frozen=True, kw_only=True):
    """message.get; where the session is named too, it must be the message's."""

    message_id: Id
    session_id: Id | None = None


class MessageSearch(msgspec.Struct, frozen=True, kw_only=True):
    """message.search."""

    text: SearchText
    task_id: Id | None = None


class QueuedRef(msgspec.Struct, frozen=True, kw_only=True):
    """message.queue.cancel."""

    session_id: Id
    message_id: Id


class TurnRef(msgspec.Struct, frozen=True, kw_only=True):
    """turn.send_again."""

    session_id: Id
    turn_id: Id


class PermissionList(msgspec.Struct, frozen=True, kw_only=True):
    """permission.list: of one session, or of all."""

    session_id: Id | None = None


class PermissionRespond(msgspec.Struct, frozen=True, kw_only=True):
    """permission.respond: an option, or cancelled."""

    session_id: Id
    request_id: Id
    option_id: Line | None = None
    cancelled: bool | None = None
