"""Talks to one agentctl: configure, start, send, stream, stop. The one client for every runtime."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from kandev.agentctl import API_VERSION
from kandev.agentctl.sidecar import RUN_S
from kandev.errors import AgentctlError, AgentDied, AgentError, AgentNotFound, TimedOut, WorkspaceMissing
from kandev.runtimes.http_pool import READ_BYTES, Answer, HttpPool

__all__ = ["AgentHealth", "AgentProcess", "AgentctlClient", "Health", "JournalHealth", "Ran", "Work"]

OK: Final = HTTPStatus.OK.value

CALL_TIMEOUT_S: Final = 10.0
"""How long agentctl may take to answer a call that waits for nothing (CRASH-16)."""
STOP_MARGIN_S: Final = 20.0
"""What a stop may take beyond its grace: SIGTERM, the kill of the tree, and the exit record."""
GIT_TIMEOUT_S: Final = 1800.0
"""What a few gits over all files of a large repository may take; agentctl gives each of them 300 s."""
_SEND_TRIES: Final = 3
_READY_PAUSE_S: Final = (0.01, 0.02, 0.05, 0.1)

T = TypeVar("T")


class AgentProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's process on agentctl's machine; `start_time` is in clock ticks since its boot."""

    pid: int
    start_time: int
    process_group: int = msgspec.field(name="pgid")


class AgentHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The agent as agentctl sees it: state is none, configured, running or exited."""

    state: str
    pid: int | None = None
    start_time: int | None = None
    pgid: int | None = None
    exit_code: int | None = None
    signal: int | None = None


class JournalHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of the journal. `paused` tells why stdout is not read: cap, disk_full, or ''."""

    start: int
    end: int
    acked: int
    paused: str = ""
    trouble: str = ""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What agentctl says of itself. A new nonce means that agentctl was started again: its agent is gone."""

    status: str
    api_version: int
    instance_id: str
    nonce: str
    pid: int
    start_time: int
    agent: AgentHealth
    journal: JournalHealth
    last_line: int

    @property
    def is_spoken(self) -> bool:
        """Whether this backend can talk to it; also in the version before its own, which it meets after an upgrade."""
        return self.api_version in {API_VERSION, API_VERSION - 1}


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent did in a directory that is not here, as agentctl's `Sources.collect` tells it; `size` in bytes."""

    tip: str
    elsewhere: str
    size: int = msgspec.field(name="bytes")
    branch: str = ""
    uncommitted: bool = False
    gitlinks: list[str] = []
    incomplete: str = ""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How a short command ended, the begin of what it wrote (64 KiB), and the end of its complaints."""

    code: int
    out: str
    err: str


class AgentctlClient:
    """A client of the instance `instance_id` at `url` ("unix:/path" or "http://host:port").

    Every call may raise AgentctlError. Its reason is `unreachable` when agentctl could not be reached, `no_answer` when
    it did not answer in time, else the code that agentctl gave; its details are what agentctl said.
    """

    def __init__(self, url: str, *, instance_id: str, token: str = "") -> None:
        self._instance_id = instance_id
        self._is_local = url.startswith("unix:")
        self._pool = HttpPool(url, token=token)
        self._sending = asyncio.Lock()

    async def wait_ready(self, timeout_s: float) -> Health:
        """Wait until agentctl answers, and check that it is ours.

        Raises TimedOut, or AgentctlError with reason instance_mismatch, api_version, or unreachable when it is dead.
        """
        try:
            async with asyncio.timeout(timeout_s):
                health = await self._first_answer()
        except TimeoutError:
            raise TimedOut(f"agentctl did not answer within {timeout_s:g} s.", reason="agentctl_not_ready") from None
        if health.instance_id != self._instance_id:
            raise AgentctlError("Another agentctl answers at this address.", reason="instance_mismatch")
        if not health.is_spoken:
            raise AgentctlError(
                f"agentctl speaks version {health.api_version}, this backend {API_VERSION}.", reason="api_version"
            )
        return health

    async def configure(
        self, *, command: Sequence[str], env: Mapping[str, str], cwd: str, inherit: bool = False
    ) -> None:
        """Tell what to start. `env` is the agent's whole environment, but for KANDEV_INSTANCE_ID and TMPDIR.

        `inherit` lays it over agentctl's own, which is that of a container.
        """
        payload = {"command": list(command), "env": dict(env), "cwd": cwd, "inherit": inherit}
        await self._call("POST", "/configure", payload)

    async def run(self, *, command: Sequence[str], env: Mapping[str, str], cwd: str, inherit: bool = False) -> Ran:
        """Run a short command before the agent is started, in the surroundings that `configure` would give it.

        Raises AgentNotFound, WorkspaceMissing, and AgentctlError command_late.
        """
        payload = {"command": list(command), "env": dict(env), "cwd": cwd, "inherit": inherit}
        return _decode(await self._call("POST", "/run", payload, timeout_s=RUN_S + CALL_TIMEOUT_S), Ran)

    async def start(self) -> AgentProcess:
        """Start the agent. Raises AgentNotFound, WorkspaceMissing."""
        return _decode(await self._call("POST", "/start"), AgentProcess)

    async def send(self, n: int, line: bytes) -> None:
        """Write line `n` (from 1 on) to the agent's stdin, at most once; a lost answer is asked for again.

        Raises AgentDied when the agent has ended or closed its stdin: with its exit code (a signal is its negative
        number; None while it still runs) and its last words. The journal tells whether the line was begun.
        """
        async with self._sending:
            for left in reversed(range(_SEND_TRIES)):
                try:
                    await self._call("POST", f"/send?n={n}", line, timeout_s=2 * CALL_TIMEOUT_S)
                except AgentctlError as error:
                    if error.reason != "unreachable" or not left:
                        raise
                else:
                    return

    async def stream(self, offset: int) -> AsyncGenerator[bytes, None]:
        """Yield raw bytes of the journal from `offset`, a line's start; ends behind the exit record.

        Reading slowly slows the agent. Raises AgentctlError: offset_refused and instance_mismatch (details start and
        end), stream_cut when agentctl died or was cut off.
        """
        target = f"/stream?from={offset}&instance_id={self._instance_id}"
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                pieces = await self._pool.stream(target)
        except ConnectionError as error:
            raise _unreachable(error) from error
        except TimeoutError:
            raise _no_answer(target) from None
        if isinstance(pieces, Answer):
            raise _refused(pieces)
        try:
            async for piece in pieces:
                yield piece
        except ConnectionError as error:
            raise AgentctlError(f"The stream was cut: {error}", reason="stream_cut") from error
        finally:
            await pieces.aclose()

    async def ack(self, offset: int) -> None:
        """Tell that everything before `offset` is stored; agentctl deletes it."""
        await self._call("POST", "/ack", {"offset": offset})

    async def stop(self, *, grace_s: float) -> None:
        """End the agent and its whole tree; agentctl stays. Safe to call again, also with a shorter grace."""
        await self._call("POST", "/stop", {"grace_s": grace_s}, timeout_s=grace_s + STOP_MARGIN_S)

    async def status(self) -> Health:
        """Return how agentctl, agent and journal are."""
        return _decode(await self._call("GET", "/status"), Health)

    async def stderr_tail(self, limit: int = 4096) -> str:
        """Return the last `limit` bytes of the agent's stderr; bytes that are no UTF-8 are replaced."""
        return str(msgspec.json.decode(await self._call("GET", f"/stderr?limit={limit}"))["text"])

    async def send_sources(self, bundle: Path) -> None:
        """Bring a git bundle to agentctl, piece by piece; `check_out` makes a directory of it."""
        try:
            with bundle.open("rb") as file:
                answer = await self._pool.upload("/sources", iter(partial(file.read, READ_BYTES), b""), _size(file))
        except ConnectionError as error:
            raise _unreachable(error) from error
        if answer.status != OK:
            raise _refused(answer)

    async def sources_state(self, path: str) -> str:
        """Tell whether a directory is there: missing, ready or foreign."""
        answer = await self._call("GET", f"/sources/state?path={path.encode().hex()}")
        return str(msgspec.json.decode(answer)["state"])

    async def check_out(self, path: str, how: Mapping[str, Any]) -> bool:
        """Make a directory there, as `how` says (agentctl's `Sources.check_out`); False when it was there already."""
        answer = await self._call("POST", "/sources/checkout", {"path": path, **how}, timeout_s=GIT_TIMEOUT_S)
        return bool(msgspec.json.decode(answer)["made"])

    async def collect_work(self, path: str, *, branch: str, known: Sequence[str]) -> Work:
        """Have the work put into a bundle, but for the commits in `known`; nothing of the agent's state is changed."""
        payload = {"path": path, "branch": branch, "known": list(known)}
        return _decode(await self._call("POST", "/work/collect", payload, timeout_s=GIT_TIMEOUT_S), Work)

    async def fetch_work(self, bundle: Path) -> None:
        """Write the bundle that was collected to a file, piece by piece."""
        try:
            pieces = await self._pool.stream("/work")
        except ConnectionError as error:
            raise _unreachable(error) from error
        if isinstance(pieces, Answer):
            raise _refused(pieces)
        try:
            with bundle.open("wb") as file:
                async for piece in pieces:
                    file.write(piece)
        except ConnectionError as error:
            raise AgentctlError(f"The work was cut off on its way: {error}", reason="stream_cut") from error
        finally:
            await pieces.aclose()

    async def aclose(self) -> None:
        """Close all connections; calls and streams in flight end with AgentctlError."""
        await self._pool.aclose()

    async def _first_answer(self) -> Health:
        for attempt in range(1 << 30):
            try:
                return await self.status()
            except AgentctlError as error:
                # A local agentctl got its listening socket at birth: where nobody listens, it is dead.
                if error.reason != "unreachable" or (self._is_local and _is_refused(error)):
                    raise
            await asyncio.sleep(_READY_PAUSE_S[min(attempt, len(_READY_PAUSE_S) - 1)])
        raise AssertionError

    async def _call(
        self, method: str, target: str, content: bytes | Mapping[str, Any] = b"", *, timeout_s: float = CALL_TIMEOUT_S
    ) -> bytes:
        body = content if isinstance(content, bytes) else msgspec.json.encode(content)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._pool.call(method, target, body)
        except ConnectionError as error:
            raise _unreachable(error) from error
        except TimeoutError:
            raise _no_answer(target) from None
        if answer.status != OK:
            raise _refused(answer)
        return answer.body


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise AgentctlError(f"agentctl's answer cannot be read: {error}", reason="bad_answer") from error


def _unreachable(error: ConnectionError) -> AgentctlError:
    return AgentctlError(f"agentctl cannot be reached: {error}", reason="unreachable")


def _is_refused(error: AgentctlError) -> bool:
    return isinstance(error.__cause__, ConnectionRefusedError)


def _no_answer(target: str) -> AgentctlError:
    return AgentctlError(f"agentctl did not answer {target.partition('?')[0]} in time.", reason="no_answer")


def _refused(answer: Answer) -> AgentError | WorkspaceMissing:
    """Turn an answer that is not 200 into the error that fits."""
    try:
        details: dict[str, Any] = msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.MsgspecError:
        details = {}
    code = str(details.pop("code", f"http_{answer.status}"))
    message = str(details.pop("message", f"agentctl answered {answer.status}."))
    reason = details.pop("reason", "")
    if code == "agent_not_found":
        return AgentNotFound(message, reason=str(reason or code), **details)
    if code == "cwd_missing":
        return WorkspaceMissing(message, **details)
    if code in {"agent_exited", "stdin_closed"}:
        exit_code, number = details.get("exit_code"), details.get("signal")
        return AgentDied(
            message,
            exit_code=-number if isinstance(number, int) else exit_code,
            stderr=str(details.get("stderr", "")),
        )
    return AgentctlError(message, reason=code, **details)
