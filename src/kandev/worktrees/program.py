"""A program of somebody else, run to its end: it cannot prompt, hang, flood memory or outlive its time."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from kandev.errors import TimedOut, Unavailable

KEEP_BYTES: Final = 64 * 1024  # of each stream, its end
_TERMINATE_S: Final = 0.5  # from SIGTERM to SIGKILL; a cancelled resume must be over within a second (RACE-6)
_DRAIN_S: Final = 0.2  # output is read so long after the exit, when a child in the background holds the stream


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended: its exit code (negative: the signal), and the end of what it wrote."""

    code: int
    stdout: str
    stderr: str

    @property
    def last_words(self) -> str:
        """The last lines of stderr, else of stdout; for an error's text."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return " ".join(line.strip() for line in lines[-3:])


async def run_program(
    command: Sequence[str],
    *,
    cwd: str,
    environ: Mapping[str, str],
    timeout_s: float,
    inherit: Sequence[int] = (),
) -> Finished:
    """Run `command` without a terminal and without input, in a process group of its own.

    Raises `Unavailable` when it cannot be started, and `TimedOut` after `timeout_s`. Then, and when the caller is
    cancelled, the whole group is ended before this returns. A child that was left in the background on purpose is
    not waited for, although it may hold the output open. The descriptors in `inherit` are passed on.
    """
    with _capture() as stdout, _capture() as stderr:
        await asyncio.gather(stdout.open(), stderr.open())
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=cwd,
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout.writer,
                stderr=stderr.writer,
                start_new_session=True,
                pass_fds=inherit,
            )
        except OSError as error:
            raise Unavailable(f"{command[0]} cannot be started: {error.strerror}") from error
        stdout.close_writer()
        stderr.close_writer()
        await _wait(process, command[0], timeout_s)
        await asyncio.gather(stdout.drain(), stderr.drain())
        assert process.returncode is not None, "it was waited for"
        return Finished(code=process.returncode, stdout=stdout.text(), stderr=stderr.text())


async def _wait(process: asyncio.subprocess.Process, name: str, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    except TimeoutError as error:
        await _end(process)
        raise TimedOut(f"{name} did not end within {timeout_s:g} s and was stopped") from error
    except asyncio.CancelledError:
        await _end(process)
        raise


async def _end(process: asyncio.subprocess.Process) -> None:
    _signal_group(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(_TERMINATE_S):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        # Also when the program itself is gone: its children may have ignored SIGTERM.
        _signal_group(process, signal.SIGKILL)
    await process.wait()


def _signal_group(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


class _Capture(asyncio.Protocol):
    """The end of one output stream. asyncio's own pipes would make `wait` wait for background children too."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        self._kept = bytearray()
        self._ended = asyncio.Event()
        self._transport: asyncio.ReadTransport | None = None

    async def open(self) -> None:
        pipe = os.fdopen(self._reader, "rb", 0)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, pipe)

    def data_received(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > 2 * KEEP_BYTES:
            del self._kept[:-KEEP_BYTES]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        self._ended.set()

    async def drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await self._ended.wait()

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        if self._transport is None:
            os.close(self._reader)
        else:
            self._transport.close()

    def text(self) -> str:
        return bytes(self._kept[-KEEP_BYTES:]).decode("utf-8", "replace")


@contextlib.contextmanager
def _capture() -> Iterator[_Capture]:
    capture = _Capture()
    try:
        yield capture
    finally:
        capture.close()
