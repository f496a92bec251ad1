"""A session that has had a turn and whose backend is killed and started: what most moments begin with."""

from typing import Any

from playwright.sync_api import expect

from browser.desk import Desk
from browser.stage import Session, Stage
from browser.tab import Tab
from conversation import Cast
from fakes import FakeAgent


class Play:
    """A session that has had one turn, its agent, and a tab that was opened after a kill and a start."""

    def __init__(self, desk: Desk, stage: Stage, cast: Cast) -> None:
        self._desk, self._stage, self._cast = desk, stage, cast
        self.agent: FakeAgent
        self.session: Session

    def begin(self, kind: str, *, task: dict[str, Any] | None = None, **script: Any) -> None:
        """Makes the session and waits for the end of its first turn; `task` are more fields of task.create."""
        name, self.agent = self._cast.take(kind, **script)
        self.session = self._stage.create("one", agent=name, **(task or {}))
        first = self._desk.tab(self.session.path)
        first.sees("heard: one")
        expect(first.page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
        first.close()

    def come_back(self, **script: Any) -> Tab:
        """Kills and starts the backend while the agent learns a new script, and opens the page."""
        self._stage.kill9()
        self.agent.update(**script)
        self._stage.start()
        return self.tab()

    def tab(self) -> Tab:
        """A tab with the session's page."""
        return self._desk.tab(self.session.path)
