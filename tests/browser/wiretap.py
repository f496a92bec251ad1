"""What passes between a page and its backend: read, held back, and cut."""

import json
import re
from typing import Any

from playwright.sync_api import Page, WebSocketRoute


class Wiretap:
    """Stands in the WebSocket of one page. Its calls take effect while the test waits for something of the page."""

    def __init__(self, page: Page) -> None:
        self.asked: list[str] = []
        self.answers: list[Any] = []
        self._page = page
        self._routes: list[WebSocketRoute] = []
        self._late: dict[str, str] = {}
        self._held: list[str] = []
        self._holds: str | None = None
        self._is_cut = False
        page.route_web_socket(re.compile("/ws$"), self._between)

    def hold(self, action: str) -> None:
        """Answers to this action wait from now on, and are late."""
        self._holds = action

    def release(self) -> int:
        """Sends what was held back to the page, and holds no more; how many that were."""
        self._holds, held = None, self._held
        self._held = []
        for line in held:
            self._routes[-1].send(line)
        return len(held)

    def cut(self) -> None:
        """Ends the connection; the page is not let in again until `mend`."""
        self._is_cut = True
        self._routes[-1].close()

    def mend(self) -> None:
        """Lets the page in again."""
        self._is_cut = False

    def _between(self, route: WebSocketRoute) -> None:
        if self._is_cut:
            route.close()
            return
        self._routes.append(route)
        server = route.connect_to_server()

        def to_server(text: str | bytes) -> None:
            frame = json.loads(text)
            self.asked.append(frame["action"])
            if frame["action"] == self._holds:
                self._late[frame["id"]] = frame["action"]
            server.send(text)

        def to_page(text: str | bytes) -> None:
            passed = [line for line in str(text).split("\n") if not self._keeps(line)]
            if passed:
                route.send("\n".join(passed))

        route.on_message(to_server)
        server.on_message(to_page)

    def _keeps(self, line: str) -> bool:
        frame = json.loads(line)
        if frame["type"] != "notification":
            self.answers.append(frame["payload"])
        is_late = self._late.pop(str(frame.get("id")), None) is not None
        if is_late:
            self._held.append(line)
        return is_late
