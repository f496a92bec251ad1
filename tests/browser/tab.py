"""One tab of the page, in the words of who looks at it."""

import re
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

LIMIT_MS = 20_000
expect.set_options(timeout=LIMIT_MS)


class Tab:
    """Does and sees what a person does and sees; waits for what it looks for."""

    def __init__(self, page: Page, shots: Path) -> None:
        self.page = page
        self._shots = shots

    def send(self, text: str) -> None:
        """Types a message and presses Enter."""
        self.field.fill(text)
        self.field.press("Enter")

    def press(self, name: str) -> None:
        """Presses the button of that name."""
        self.page.get_by_role("button", name=name, exact=True).click()

    @property
    def field(self) -> Locator:
        """Where messages are written."""
        return self.page.get_by_label("Message", exact=True)

    @property
    def moment(self) -> Locator:
        """What is said above the field."""
        return self.page.locator(".moment")

    @property
    def waiting(self) -> Locator:
        """The messages that wait."""
        return self.page.locator(".waiting li")

    @property
    def question(self) -> Locator:
        """What the agent asks and nobody has answered."""
        return self.page.locator(".permission")

    @property
    def transcript(self) -> Locator:
        """The conversation."""
        return self.page.get_by_role("log")

    def sees(self, text: str) -> None:
        """Waits until the agent or the server has said this."""
        expect(self.transcript).to_contain_text(text)

    def sees_moment(self, pattern: str) -> None:
        """Waits until the line above the field matches."""
        expect(self.moment).to_contain_text(re.compile(pattern))

    def sees_no_moment(self) -> None:
        """Waits until nothing is said above the field."""
        expect(self.moment).to_have_count(0)

    def answered(self, text: str, answer: str) -> None:
        """Sends a message and waits for its answer."""
        self.send(text)
        self.sees(answer)

    def mark(self) -> None:
        """Leaves a mark that a reload would wipe out."""
        self.page.evaluate("window.marked = true")

    def is_marked(self) -> bool:
        """Whether the mark is still there."""
        return bool(self.page.evaluate("window.marked === true"))

    def close(self) -> None:
        """Closes the tab: an open one would bring its session back by itself."""
        self.page.close()

    def shot(self, name: str) -> None:
        """Keeps a picture in the ignored folder `shots`."""
        self.page.screenshot(path=self._shots / f"{name}.png")
