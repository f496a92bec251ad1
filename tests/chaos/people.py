"""What people do in their tabs: prompt, cancel, stop, bring back, withdraw, answer; a refusal is an answer too."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from chaos.cast import Part, Sent
from chaos.schedule import Act
from chaos.stage import Stage
from chaos.tabs import CallFailed, Tab

AGAIN_S: Final = 0.05
PATIENCE_S: Final = 60.0
"""For how long a person tries to get an answer to a prompt: every fault is over long before."""

REFUSALS: Final = {"CONFLICT", "UNAVAILABLE", "TIMEOUT", "NOT_FOUND"}
TRY_AGAIN: Final = {"UNAVAILABLE", "TIMEOUT"}


class People:
    """All who act in an episode. `problems` are answers that nobody may get."""

    def __init__(self, stage: Stage, parts: Sequence[Part], tabs: Sequence[Tab], *, seed: str) -> None:
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self.answering = 0.3
        self._stage = stage
        self._parts = parts
        self._tabs = tabs
        self._numbers = 0
        self._chance = random.Random(f"{seed}/people")

    def next_text(self, kind: str) -> str:
        """A prompt that nobody sent yet."""
        self._numbers += 1
        return f"{kind} #{self._numbers}"

    async def act(self, act: Act) -> None:
        """Does what the schedule says."""
        part, tab = self._parts[act.session], self._tabs[act.tab]
        match act.kind:
            case "prompt":
                await self.prompt(part, tab, act.detail)
            case "twice":
                other = self._tabs[(act.tab + 1) % len(self._tabs)]
                await self.prompt(part, tab, act.detail, other)
            case "cancel" | "stop":
                await self.ask(part, tab, f"task.session.{act.kind}")
            case "resume":
                await self.ask(part, tab, "task.session.resume", open_queue=act.at > 0.4)
            case "recover":
                await self.recover(part, tab, act.detail)
            case "withdraw":
                await self._withdraw(part, tab)
            case "again":
                await self._send_again(part, tab)

    async def bring_on(self, part: Part, tab: Tab, mood: str) -> None:
        """At the begin of a round: somebody looks at a session that waits for a person."""
        found = self._stage.glance("SELECT * FROM task_sessions WHERE id = ?", part.session_id)
        if not found or mood == "leave":
            return
        session = found[0]
        if session["state"] in {"FAILED", "CANCELLED"} or session["parked_reason"] or mood == "recover":
            if session["state"] in {"FAILED", "CANCELLED"} or session["queue_held"]:
                await self.recover(part, tab, "resume")
        elif session["queue_held"] and mood == "open":
            await self.ask(part, tab, "message.queue.resume")
        elif session["queue_held"] and mood == "prompt":
            await self.prompt(part, tab, "short")

    async def look_at(self, ids: Mapping[str, str], tab: Tab) -> None:
        """Somebody opens any session, which asks for its agent; a refusal is an answer."""
        self.counts["sessions looked at again"] += 1
        try:
            async with asyncio.timeout(PATIENCE_S):
                await tab.call("task.session.resume", {name: ids[name] for name in ("task_id", "session_id")})
        except CallFailed as refused:
            self.counts[f"refused: {refused.code} {refused.reason}".rstrip()] += 1
        except ConnectionError:
            pass
        except TimeoutError:
            self.problems.append(f"nobody answered task.session.resume of {ids} for {PATIENCE_S:g} s")

    async def prompt(self, part: Part, tab: Tab, kind: str, *others: Tab) -> None:
        """Sends a prompt until it is answered; from several tabs at once under one id where `others` are given."""
        text = self.next_text(kind)
        sent = part.sent[text] = Sent(client_id=f"c-{text}", text=text)
        self.counts["prompts sent"] += 1
        answers = await asyncio.gather(*(self._send(part, one, sent) for one in (tab, *others)))
        ids = {answer for answer in answers if answer}
        if len(ids) > 1:
            self.problems.append(f"{part}: {sent.client_id} was answered with several messages: {ids}")
        sent.state = "acknowledged" if ids else "refused"
        sent.message_id = next(iter(ids), "")
        self.counts[f"prompts {sent.state}"] += 1

    async def _send(self, part: Part, tab: Tab, sent: Sent) -> str:
        request = {**part.ids, "content": sent.text, "client_message_id": sent.client_id}
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    sent.tries += 1
                    try:
                        return str((await tab.call("message.add", request))["message"]["id"])
                    except CallFailed as refused:
                        if refused.code not in TRY_AGAIN and refused.reason != "disk_full":
                            self._judge(part, refused)
                            return ""
                    except ConnectionError:
                        pass
                    await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            self.problems.append(f"{part}: nobody answered message.add for {PATIENCE_S:g} s: {sent}")
            return ""

    async def recover(self, part: Part, tab: Tab, action: str) -> None:
        """Brings a session back."""
        part.fresh_starts += action in {"fresh_start", "retry_token"}
        await self.ask(part, tab, "task.session.recover", action=action)

    async def ask(self, part: Part, tab: Tab, action: str, /, **payload: Any) -> bool:
        """Asks once; whether it was answered well. A lost connection and a refusal are no problem."""
        ids = {"session_id": part.session_id} if action.startswith(("message", "turn", "permission")) else part.ids
        self.counts[action] += 1
        try:
            async with asyncio.timeout(PATIENCE_S):
                await tab.call(action, {**ids, **payload})
        except CallFailed as refused:
            self._judge(part, refused)
            return False
        except ConnectionError:
            return False
        except TimeoutError:
            self.problems.append(f"{part}: nobody answered {action} {payload} for {PATIENCE_S:g} s")
            return False
        return True

    def _judge(self, part: Part, refused: CallFailed) -> None:
        self.counts[f"refused: {refused.code} {refused.reason}".rstrip()] += 1
        if refused.code not in REFUSALS:
            self.problems.append(f"{part}: {refused}")

    async def _withdraw(self, part: Part, tab: Tab) -> None:
        by_id = {sent.message_id: sent for sent in part.sent.values() if sent.message_id}
        query = "SELECT message_id FROM queued_prompts WHERE session_id = ? ORDER BY position DESC"
        for row in self._stage.glance(query, part.session_id)[:1]:
            sent = by_id.get(row["message_id"])
            if sent is not None and not sent.withdrawn:
                sent.withdrawn = "asked"
                self.counts["withdrawals"] += 1
                if await self.ask(part, tab, "message.queue.cancel", message_id=sent.message_id):
                    sent.withdrawn = "done"

    async def _send_again(self, part: Part, tab: Tab) -> None:
        query = "SELECT id FROM turns WHERE session_id = ? AND state = 'interrupted' ORDER BY started_at DESC"
        for row in self._stage.glance(query, part.session_id)[:1]:
            await self.ask(part, tab, "turn.send_again", turn_id=row["id"])

    async def answer_permissions(self) -> None:
        """Answers what agents ask, sometimes in two tabs at once, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                for part in self._parts:
                    for tab in self._tabs:
                        if (mirror := tab.mirrors.get(part.session_id)) is None:
                            continue
                        for request_id in list(mirror.permissions):
                            if self._chance.random() < self.answering:
                                option = self._chance.choice(("allow_once", "reject_once"))
                                answer = {"request_id": request_id, "option_id": option}
                                group.create_task(self.ask(part, tab, "permission.respond", **answer))
                await asyncio.sleep(0.2)
