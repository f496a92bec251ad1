"""The agent's mode and options: set now where it runs, and kept for every later start (WIRE-12)."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.domain.constants import Timing
from kandev.domain.models import Event, now
from kandev.errors import Conflict, RequestFailed
from kandev.lifecycle.execution import AgentExecution
from kandev.store.database import Tx
from kandev.store.rows import to_json
from kandev.store.store import Store


class SessionSettings:
    """Sets what a session wants of its agent. `settled` waits for a start under way, and finds the live agent."""

    def __init__(
        self,
        store: Store,
        *,
        settled: Callable[[str], Awaitable[AgentExecution | None]],
        timing: Timing,
        publish: Callable[[Sequence[Event]], None],
    ) -> None:
        self._store = store
        self._settled = settled
        self._timing = timing
        self._publish = publish

    async def set_mode(self, session_id: str, mode_id: str) -> dict[str, Any]:
        """Set the agent's mode and keep it for every later start (WIRE-12).

        Without an agent, or one that is only told at its start, it is kept.
        """
        return await self._set(
            session_id,
            method="session/set_mode",
            mode=mode_id,
            values=(mode_id,),
            keep=lambda tx: tx.run("session_set_mode", id=session_id, mode=mode_id, now=now()),
            told=Event(action="session.mode_changed", session_id=session_id, payload={"mode": mode_id}),
        )

    async def set_config_option(self, session_id: str, config_id: str, value: str | bool) -> dict[str, Any]:  # noqa: FBT001 - the option's value
        """Set one of the agent's options and keep it for every later start."""
        options = {**self._store.session(session_id).config_options, config_id: value}
        return await self._set(
            session_id,
            method="session/set_config_option",
            values=(config_id, value),
            keep=lambda tx: tx.run("session_set_options", id=session_id, config_options=to_json(options), now=now()),
            told=Event(action="session.options_changed", session_id=session_id, payload={"chosen": options}),
        )

    async def _set(
        self,
        session_id: str,
        *,
        method: str,
        values: Sequence[Any],
        keep: Callable[[Tx], object],
        told: Event,
        mode: str = "",
    ) -> dict[str, Any]:
        session = self._store.session(session_id)
        # A start has read what is wanted already. One that begins later finds what is stored here (WIRE-12).
        execution = await self._settled(session_id)
        if execution is not None and not execution.takes_settings:
            execution = None  # it gets them on its command line, at its next start
        answer: Any = None
        if execution is not None:
            try:
                response = await execution.ingest.request(
                    method,
                    lambda n: execution.dialect.setting(n, execution.agent_session_id, method, *values),
                    mode=mode,
                    inactivity_s=self._timing.rpc_inactivity_s,
                )
            except RequestFailed as error:
                raise Conflict(f"The agent refused: {error.message}", reason="agent_refused") from error
            answer = response.result
        failpoint("settings.before_store")
        await self._store.write(keep)
        failpoint("settings.after_store")
        self._publish([msgspec.structs.replace(told, task_id=session.task_id)])
        return {"applied": execution is not None, "answer": answer}
