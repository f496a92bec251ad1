"""Between a session's directory here and the one where its agent works, when these have no file system in common."""

import asyncio
import re
from typing import Final

import msgspec

from kandev.agentctl.failpoints import failpoint
from kandev.errors import AgentctlError, Conflict, KandevError
from kandev.runtimes.agentctl_client import AgentctlClient, Work
from kandev.worktrees import Workspace
from kandev.worktrees.carrying import Carrying, Packed, Placed, Verdict

__all__ = ["Carrier", "Journey"]

_COMMIT: Final = re.compile(r"|[0-9a-f]{40}|[0-9a-f]{64}")
_SHOWN: Final = 500
_OUT_OF_REACH: Final = frozenset({"unreachable", "no_answer", "stream_cut"})


class Journey(msgspec.Struct, frozen=True, kw_only=True):
    """Which directory is carried for which session, and its `path` where the agent works."""

    session_id: str
    workspace: Workspace
    path: str


class Carrier:
    """Sends sources before an agent starts, and brings its work home when a turn ended. Safe to call again."""

    def __init__(self, carrying: Carrying) -> None:
        self._carrying = carrying

    async def carry_in(self, journey: Journey, client: AgentctlClient) -> list[str]:
        """Make sure that the directory is there; return lines for the transcript.

        One that is there stays as it is, and what the agent did in it since comes home first. Raises AgentctlError,
        and Conflict for what cannot be carried.
        """
        workspace = journey.workspace
        if workspace.kind == "in_place":
            raise Conflict(
                f"{workspace.path} is used in place, which an agent elsewhere cannot. Use a worktree of a repository.",
                reason="in_place_elsewhere",
            )
        state = await client.sources_state(journey.path)
        if state == "foreign":
            raise Conflict(f"{journey.path} is something else there, and was left alone.", reason="workspace_foreign")
        if workspace.kind == "empty":
            await self._check_out(journey, client, None)
            return []
        settled = await self._carrying.settle(workspace, journey.session_id)
        if state == "ready":
            return await self._catch_up(journey, client) or _said(settled)
        packed = await self._carrying.pack(workspace, journey.session_id)
        try:
            failpoint("sources.before_send")
            await client.send_sources(packed.bundle)
            failpoint("sources.after_send")
        finally:
            await asyncio.to_thread(packed.bundle.unlink, missing_ok=True)
        await self._check_out(journey, client, packed)
        return [*_said(settled), *packed.notes]

    async def _catch_up(self, journey: Journey, client: AgentctlClient) -> list[str]:
        """Bring home what an earlier end left; where git cannot, that is said, and is no reason not to start."""
        try:
            return await self.bring_home(journey, client)
        except (AgentctlError, Conflict) as error:
            if error.reason in _OUT_OF_REACH:
                raise
            return [not_home(error)]

    async def _check_out(self, journey: Journey, client: AgentctlClient, packed: Packed | None) -> None:
        how = (
            {
                "branch": packed.branch,
                "commit": packed.commit,
                "uncommitted": packed.uncommitted,
                "name": packed.name,
                "email": packed.email,
            }
            if packed
            else {}
        )
        failpoint("sources.before_checkout")
        await client.check_out(journey.path, how)
        failpoint("sources.after_checkout")

    async def bring_home(self, journey: Journey, client: AgentctlClient) -> list[str]:
        """Fetch what the agent did into the session's branch; return lines for the transcript.

        Raises AgentctlError, and Conflict where git fails; then the work is where it was, and the next time brings it.
        """
        workspace = journey.workspace
        if workspace.kind != "worktree":
            return []
        known = await self._carrying.known(workspace, journey.session_id)
        failpoint("work.before_collect")
        work = await client.collect_work(journey.path, branch=workspace.branch, known=known)
        failpoint("work.after_collect")
        if not _COMMIT.fullmatch(work.tip):
            raise AgentctlError("agentctl's answer names no commit.", reason="bad_answer")
        bundle = self._carrying.bundle_in(journey.session_id) if work.size else None
        if bundle is not None:
            failpoint("work.before_receive")
            await client.fetch_work(bundle)
            failpoint("work.after_receive")
        placed = await self._carrying.place(workspace, journey.session_id, work=work.tip, bundle=bundle)
        return [*_said(placed), *(notes_of(work, journey) if bundle is not None else [])]


def not_home(error: KandevError) -> str:
    """Return the line for the transcript that says so, and what comes next."""
    return (
        f"The agent's work did not come home: {error.message} "
        "It is kept where the agent works, and the end of the next turn tries again."
    )


def _said(placed: Placed) -> list[str]:
    quiet = not placed.note or placed.verdict is Verdict.NOTHING
    return [] if quiet else [placed.note]


def notes_of(work: Work, journey: Journey) -> list[str]:
    """Return what a person must know of work that came, beyond what became of the branch."""
    notes = []
    if work.elsewhere:
        where = f"on branch {work.branch}" if work.branch else "on no branch (detached HEAD)"
        notes.append(f"The agent is {where}; what it has there is kept as refs/kandev/{journey.session_id}/elsewhere.")
    if work.gitlinks:
        names = ", ".join(work.gitlinks)[:_SHOWN]
        notes.append(f"Of submodules and repositories within only the commit's number came home: {names}.")
    if work.incomplete:
        notes.append(f"Some files could not be read and did not come home: {work.incomplete[:_SHOWN]}")
    return notes
