"""Every error that this project raises on purpose.

KandevError                     base: code (wire), reason (details.reason), message
 +- BadRequest                  BAD_REQUEST        the frame or request cannot be read
 +- Invalid                     VALIDATION_ERROR   a field is missing, of the wrong type, or out of bounds
 +- NotFound                    NOT_FOUND          no such task, session, message, turn or request
 +- Conflict                    CONFLICT           the state does not allow it (reason says why)
 |   +- SessionEnded            reason session_ended or session_completed
 |   +- Parked                  reason parked
 |   +- WorkspaceMissing        reason workspace_missing
 |   +- StorageFull             reason disk_full
 +- Unauthorized                UNAUTHORIZED       no or wrong token
 +- Forbidden                   FORBIDDEN          Origin, Host or path not allowed
 +- UnknownAction               UNKNOWN_ACTION
 +- Unavailable                 UNAVAILABLE        try later
 |   +- Stopping                reason stopping
 |   +- StorageLocked           the database is locked by another program
 |   +- HomeInUse               another backend owns this home
 +- TimedOut                    TIMEOUT
 +- Internal                    INTERNAL_ERROR
 +- AgentError                  what went wrong with an agent; never crosses the wire as such
     +- ExecutionNotFoundError  no live execution: the prompt provably reached nobody
     +- AgentDied               exit code and stderr tail
     +- AgentNotFound           the command is missing or cannot be executed
     +- AgentSilent             no message within the inactivity deadline
     +- RequestFailed           the agent answered a request with a JSON-RPC error
     +- AgentctlError           agentctl refused or could not be reached
     +- RuntimeUnreachable      an engine or a host does not answer: what runs there is unknown
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class KandevError(Exception):
    """Base. `code` and `reason` are stable and go over the wire; `message` is for a person."""

    code: ClassVar[str] = "INTERNAL_ERROR"

    def __init__(self, message: str, *, reason: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.details: dict[str, Any] = details

    def payload(self) -> Mapping[str, Any]:
        """The payload of an error frame: {code, message, details: {reason, ...}}."""
        details = {"reason": self.reason, **self.details} if self.reason else dict(self.details)
        return {"code": self.code, "message": self.message, "details": details}


class BadRequest(KandevError):
    """Raised when a frame is not JSON, not an object, or too large."""

    code = "BAD_REQUEST"


class Invalid(KandevError):
    """Raised when a field is missing, of the wrong type, or out of bounds; details.field names it."""

    code = "VALIDATION_ERROR"


class NotFound(KandevError):
    """Raised for an unknown id, and for a session of another task."""

    code = "NOT_FOUND"


class Conflict(KandevError):
    """Raised when the present state does not allow the request."""

    code = "CONFLICT"


class SessionEnded(Conflict):
    """Raised when a terminal session is asked to go on."""


class Parked(Conflict):
    """Raised when a session is not started by itself any more, because its agent ended again and again (STATE-5)."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, reason="parked", **details)


class WorkspaceMissing(Conflict):
    """Raised when the session's directory is gone and cannot be rebuilt, or is something else now."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, reason="workspace_missing", **details)


class StorageFull(Conflict):
    """Raised when SQLite, a history file or a journal finds no room. Earlier data is intact."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, reason="disk_full", **details)


class Unauthorized(KandevError):
    """Raised when the token is missing or wrong."""

    code = "UNAUTHORIZED"


class Forbidden(KandevError):
    """Raised when Origin, Host or a path is not allowed."""

    code = "FORBIDDEN"


class UnknownAction(KandevError):
    """Raised for an action that this server does not have."""

    code = "UNKNOWN_ACTION"


class Unavailable(KandevError):
    """Raised when the same request may succeed later."""

    code = "UNAVAILABLE"


class Stopping(Unavailable):
    """Raised for work that comes in while the backend stops."""

    def __init__(self, message: str = "The backend is stopping; nothing was lost. Try again after its start.") -> None:
        super().__init__(message, reason="stopping")


class StorageLocked(Unavailable):
    """Raised when another program holds the database longer than the busy timeout."""


class HomeInUse(Unavailable):
    """Raised when another backend owns the home; details name its pid and the lock file."""


class TimedOut(KandevError):
    """Raised when something did not happen within its named limit."""

    code = "TIMEOUT"


class Internal(KandevError):
    """Raised for what should not happen; the log has the traceback."""


class AgentError(KandevError):
    """Base of what goes wrong with an agent."""


class ExecutionNotFoundError(AgentError):
    """Raised when no live execution exists: the prompt provably reached nobody."""


class AgentDied(AgentError):
    """Raised to whoever waits for an agent that ended; carries exit code and the last lines of stderr."""

    def __init__(self, message: str, *, exit_code: int | None = None, stderr: str = "") -> None:
        super().__init__(message, exit_code=exit_code, stderr=stderr)
        self.exit_code = exit_code
        self.stderr = stderr


class AgentNotFound(AgentError):
    """Raised when the agent's command does not exist or cannot be executed."""


class AgentSilent(AgentError):
    """Raised when a request got no message at all within its inactivity deadline."""


class RequestFailed(AgentError):
    """Raised when the agent answered with a JSON-RPC error; `error` is the raw error object."""

    def __init__(self, message: str, *, method: str, rpc_code: int | None, error: Any = None) -> None:
        super().__init__(message, method=method, rpc_code=rpc_code)
        self.method = method
        self.rpc_code = rpc_code
        self.error = error


class AgentctlError(AgentError):
    """Raised when agentctl refuses a call or cannot be reached."""


class RuntimeUnreachable(AgentError):
    """Raised when an engine or a host does not answer. What runs there is unknown, so nothing is deleted (CONT-5)."""
