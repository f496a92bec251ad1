"""Tasks that come and go in a round: made under an id of the client, then completed or deleted, often in mid-turn."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from chaos.people import AGAIN_S, PATIENCE_S, TRY_AGAIN, People
from chaos.stage import Stage
from chaos.tabs import CallFailed, Tab

ENDS: Final = ("task.delete", "task.delete", "task.complete", "task.session.delete", "task.session.stop")
LONGEST_S: Final = 0.5
"""How long such a task may live, in seconds."""


class Fleeting(msgspec.Struct, kw_only=True):
    """One such task. `end` is how it was to end, `done` whether that was acknowledged."""

    client_id: str
    task_ids: set[str] = msgspec.field(default_factory=set)
    session_id: str = ""
    worktree: str = ""
    end: str = ""
    done: bool = False


class FleetingTasks:
    """All of an episode."""

    def __init__(self, stage: Stage, people: People, *, agent: str, repository: str, seed: str) -> None:
        self.all: list[Fleeting] = []
        self._stage = stage
        self._people = people
        self._agent = agent
        self._repository = repository
        self._chance = random.Random(f"{seed}/fleeting")

    async def live(self, tab: Tab, other: Tab) -> None:
        """Makes one, from two tabs at once, and ends it."""
        text = self._people.next_text(self._chance.choice(("slow", "flood", "spawn", "short")))
        one = Fleeting(client_id=f"t-{text}")
        self.all.append(one)
        request: dict[str, Any] = {"agent": self._agent, "description": text, "client_task_id": one.client_id}
        if self._chance.random() < 0.5:
            request["repository_path"] = self._repository
        await asyncio.gather(self._create(tab, one, request), self._create(other, one, request))
        if not one.task_ids:
            return
        await asyncio.sleep(self._chance.uniform(0, LONGEST_S))
        one.end = self._chance.choice(ENDS)
        self._people.counts[f"fleeting {one.end}"] += 1
        one.done = await self._end(tab, one)

    async def _create(self, tab: Tab, one: Fleeting, request: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        created = await tab.call("task.create", request)
                    except CallFailed as refused:
                        if refused.code not in TRY_AGAIN and refused.reason != "disk_full":
                            self._people.problems.append(f"task.create {request}: {refused}")
                            return
                    except ConnectionError:
                        pass
                    else:
                        one.task_ids.add(created["task"]["id"])
                        one.session_id = created["session"]["id"]
                        one.worktree = created["session"]["worktree_path"]
                        return
                    await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            self._people.problems.append(f"nobody answered task.create {request} for {PATIENCE_S:g} s")

    async def _end(self, tab: Tab, one: Fleeting) -> bool:
        payload: dict[str, Any] = {"task_id": next(iter(one.task_ids))}
        if one.end == "task.delete":
            payload["force"] = True
        if one.end.startswith("task.session"):
            payload["session_id"] = one.session_id
        try:
            async with asyncio.timeout(PATIENCE_S):
                await tab.call(one.end, payload)
        except CallFailed as refused:
            self._people.counts[f"refused: {refused.code} {refused.reason}".rstrip()] += 1
            if refused.code == "INTERNAL_ERROR":
                self._people.problems.append(f"{one}: {refused}")
            return False
        except ConnectionError:
            return False
        except TimeoutError:
            self._people.problems.append(f"nobody answered {one} for {PATIENCE_S:g} s")
            return False
        return True

    def problems(self) -> Iterator[str]:
        """What is wrong with the store and the files of all of them."""
        for one in self.all:
            yield from self._problems(one)

    def _problems(self, one: Fleeting) -> Iterator[str]:
        if len(one.task_ids) > 1:
            yield f"made several times under one id: {one}"
        tasks = self._stage.rows("SELECT * FROM tasks WHERE client_task_id = ?", one.client_id)
        sessions = self._stage.rows("SELECT * FROM task_sessions WHERE id = ?", one.session_id)
        if one.task_ids and not tasks and one.end != "task.delete":
            yield f"lost: {one}"
        if one.done and one.end == "task.delete" and (tasks or sessions):
            yield f"not deleted: {one}, {[task['state'] for task in tasks]}"
        if one.done and one.end == "task.complete" and {row["state"] for row in (*tasks, *sessions)} != {"COMPLETED"}:
            yield f"not completed: {one}, {[row['state'] for row in (*tasks, *sessions)]}"
        if one.done and one.end == "task.session.delete" and sessions:
            yield f"not deleted: {one}"
        if one.session_id and not sessions:
            yield from self._left_over(one)

    def _left_over(self, one: Fleeting) -> Iterator[str]:
        """A deleted session leaves no file behind (the branch of its worktree stays)."""
        history = self._stage.home / "sessions" / f"{one.session_id}.jsonl"
        for path in (history, Path(one.worktree)):
            if one.worktree and path.exists():
                yield f"{path} is left of {one}"
