"""A client of an agentctl behind a connection that may be cut, and whose place may sleep: it goes on where it was.

A place that sleeps is not kept awake for nothing: a stream that is cut after a silence is opened again when somebody
has something to ask, as in a turn, when agentctl is asked every few seconds.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any, Final

from kandev.errors import AgentctlError
from kandev.runtimes.agentctl_client import CALL_TIMEOUT_S, AgentctlClient

__all__ = ["PatientClient"]

QUIET_S: Final = 20.0
"""After so long without a word in either direction a cut is a place that fell asleep."""
_PAUSES_S: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
_CUT: Final = frozenset({"stream_cut", "unreachable", "no_answer"})


class PatientClient(AgentctlClient):
    """An AgentctlClient. `nonce` is that of the agentctl that started the agent, '' until it was asked.

    `is_gone` tells that the place is known to be gone for good. One that is out of reach for `reach_s` is given up.
    """

    def __init__(
        self,
        url: str,
        *,
        instance_id: str,
        token: str,
        nonce: str,
        is_gone: Callable[[], bool],
        reach_s: float,
    ) -> None:
        super().__init__(url, instance_id=instance_id, token=token)
        self._nonce = nonce
        self._is_gone = is_gone
        self._reach_s = reach_s
        self._heard_at = 0.0
        self._heard = asyncio.Event()

    async def send(self, n: int, line: bytes) -> None:
        """Write line `n` to the agent's stdin, at most once; a cut connection is opened again for it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._reach_s
        for pause in _pauses():
            try:
                await super().send(n, line)
            except AgentctlError as error:
                if error.reason not in _CUT or self._is_gone() or loop.time() > deadline:
                    raise
            else:
                return
            await asyncio.sleep(pause)

    async def stream(self, offset: int) -> AsyncGenerator[bytes, None]:
        """Yield raw bytes of the journal from `offset` on, each once, through cuts.

        Raises AgentctlError, besides what AgentctlClient raises: agent_gone when agentctl was started again, and the
        last error when it stays out of reach.
        """
        line = position = offset
        while True:
            try:
                async with contextlib.aclosing(super().stream(line)) as pieces:
                    at = line
                    async for piece in pieces:
                        self._note()
                        newline = piece.rfind(b"\n")
                        line = at + newline + 1 if newline >= 0 else line
                        fresh = piece[max(0, position - at) :]
                        at += len(piece)
                        position = max(position, at)
                        if fresh:
                            yield fresh
            except AgentctlError as error:
                if error.reason not in _CUT:
                    raise
                await self._reach_again(error)
            else:
                return

    async def _reach_again(self, cut: AgentctlError) -> None:
        """Return once the same agentctl answers. Raises agent_gone, and `cut` where it stays out of reach."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._heard_at > QUIET_S and not self._is_gone():
            self._heard.clear()
            await self._heard.wait()
        deadline = loop.time() + self._reach_s
        for pause in _pauses():
            try:
                health = await self.status()
            except AgentctlError as error:
                if error.reason not in _CUT or self._is_gone() or loop.time() > deadline:
                    raise cut from error
                await asyncio.sleep(pause)
                continue
            if health.nonce != self._nonce or health.agent.state not in {"running", "exited"}:
                raise AgentctlError("agentctl was started again; its agent is gone.", reason="agent_gone")
            return

    async def _call(
        self, method: str, target: str, content: bytes | Mapping[str, Any] = b"", *, timeout_s: float = CALL_TIMEOUT_S
    ) -> bytes:
        answer = await super()._call(method, target, content, timeout_s=timeout_s)
        self._note()
        return answer

    def _note(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._heard.set()


def _pauses() -> Iterator[float]:
    yield from _PAUSES_S
    while True:
        yield _PAUSES_S[-1]
