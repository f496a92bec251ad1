"""The browser of one test: its tabs share a profile, and nothing that their consoles say goes unheard."""

import re
from pathlib import Path

from playwright.sync_api import BrowserContext, ConsoleMessage, Page

from browser.stage import Stage
from browser.tab import Tab

SHOTS = Path(__file__).parent / "shots"
LIMIT_MS = 20_000
EXPECTED = re.compile(r"WebSocket connection to .* failed|net::ERR_|status of 401|username fields")
"""What Chromium itself says of a server that is away, or that asks for its token."""


class Desk:
    """Opens tabs of one browser profile, and collects what their consoles say."""

    def __init__(self, context: BrowserContext, stage: Stage) -> None:
        self._context = context
        self._stage = stage
        self.complaints: list[str] = []
        context.set_default_timeout(LIMIT_MS)
        context.on("console", self._heard)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))

    def tab(self, path: str = "/") -> Tab:
        """A tab at a place of the page, let in by the token."""
        page = self._context.new_page()
        page.goto(f"{self._stage.url}{path}?token={self._stage.backend.token}")
        return Tab(page, SHOTS)

    def allow(self, *permissions: str) -> None:
        """Gives the page rights of the browser."""
        self._context.grant_permissions(list(permissions), origin=self._stage.url)

    def prepare(self, script: str) -> None:
        """Runs a script before those of each page that is opened from here on."""
        self._context.add_init_script(script)

    def blank(self) -> Page:
        """A tab that was not let in yet."""
        return self._context.new_page()

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not EXPECTED.search(message.text):
            self.complaints.append(message.text)
