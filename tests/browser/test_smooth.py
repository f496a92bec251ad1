"""The page stays smooth under a flood, and with a very long transcript; it is small, and nothing jumps."""

import gzip
import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Self

from playwright.sync_api import Browser, expect

import kandev
from browser.desk import Desk
from browser.long import lengthen
from browser.stage import Stage
from browser.tab import Tab
from conversation import Cast

UPDATES = 10_000
ENTRIES = 100_000
SCRIPT_BYTES = 60 * 1024
LONGEST_TASK_MS = 200
LAYOUT_SHIFT = 0.05
FRAME_MS = 32
FRAMES = 200
LOADED = 99_000
LOADED_MS = 120_000
DRAWN = 700

WATCH = """() => {
  window.shift = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
  }).observe({ type: "layout-shift", buffered: true });
}"""

SCROLL = """async (frames) => {
  const view = document.querySelector(".transcript");
  for (let frame = 0; frame < frames; frame++) {
    view.scrollTop -= 150;
    await new Promise(requestAnimationFrame);
  }
}"""

MIDDLE = """() => {
  const view = document.querySelector(".transcript");
  view.scrollTop = view.scrollHeight / 2;
}"""

Figure = Callable[[str], None]


class Tasks:
    """What the page's main thread does while the block runs, in milliseconds of processor time of each task.

    Not of the clock: the machine has others to serve.
    """

    def __init__(self, browser: Browser, tab: Tab) -> None:
        self._browser, self._tab = browser, tab
        self.times: list[float] = []

    def __enter__(self) -> Self:
        self._browser.start_tracing(page=self._tab.page, categories=["toplevel", "blink.user_timing"])
        self._tab.page.evaluate("performance.mark('the page')")
        return self

    def __exit__(self, *_: object) -> None:
        events = json.loads(self._browser.stop_tracing())["traceEvents"]
        mark = next(event for event in events if event["name"] == "the page")
        own = [event for event in events if (event["pid"], event["tid"]) == (mark["pid"], mark["tid"])]
        self.times = [event["tdur"] / 1000 for event in own if event["name"].endswith("RunTask") and "tdur" in event]
        assert self.times, "the trace has no task of the page"


def test_the_first_load_is_small(figure: Figure) -> None:
    """Script under 60 KB gzipped, as far as it is loaded at first: all of it."""
    scripts = list((Path(kandev.__file__).parent / "page/assets").glob("*.js"))
    assert scripts
    size = sum(len(gzip.compress(script.read_bytes(), 6)) for script in scripts)
    figure(f"script: {size / 1024:.1f} KB gzipped")
    assert size < SCRIPT_BYTES


def test_ten_thousand_updates_hold_up_nobody(
    browser: Browser, desk: Desk, stage: Stage, cast: Cast, figure: Figure
) -> None:
    """Tool calls and text while they stream in: no task over 200 ms, typing goes on, nothing jumps, the end is seen."""
    turns = [({"tool": f"tool {n}"}, {"chunks": 18, "text": f"{n}.{{n}} "}) for n in range(UPDATES // 20)]
    steps = [*chain.from_iterable(turns), {"text": "the end"}]
    name, _ = cast.take("native", on={"session/prompt": {"match": "flood", "steps": steps}})
    session = stage.create("hello", agent=name)
    tab = desk.tab(session.path)
    tab.sees("heard: hello")
    tab.page.evaluate(WATCH)
    with Tasks(browser, tab) as tasks:
        tab.send("flood")
        tab.field.press_sequentially("typed meanwhile", delay=20)
        expect(tab.transcript.get_by_text("the end")).to_be_in_viewport()
    expect(tab.field).to_have_value("typed meanwhile")
    shift = float(tab.page.evaluate("window.shift"))
    figure(f"{UPDATES} updates: longest task {max(tasks.times):.0f} ms of {sum(tasks.times):.0f}, shift {shift:.3f}")
    assert max(tasks.times) < LONGEST_TASK_MS
    assert shift < LAYOUT_SHIFT


def test_a_hundred_thousand_entries_scroll_smoothly(browser: Browser, desk: Desk, stage: Stage, figure: Figure) -> None:
    """The newest page is there at once; scrolling up loads the older ones, and only what is near is drawn."""
    session = stage.create("remember long")
    first = desk.tab(session.path)
    first.sees("I will remember the word long")
    first.close()
    lengthen(stage, session, ENTRIES)
    tab = desk.tab(session.path)
    tab.sees(f"entry {ENTRIES}")
    with Tasks(browser, tab) as tasks:
        tab.page.evaluate(SCROLL, FRAMES)
    each = sum(tasks.times) / FRAMES
    top = int(tab.page.evaluate("Number(document.querySelector('[data-seq]').dataset.seq)"))
    figure(f"{ENTRIES} entries, scrolled from the newest up to {top}: a frame {each:.1f} ms")
    assert each < FRAME_MS
    assert top < ENTRIES - 500
    tab.page.goto(f"{stage.url}{session.path}#at-{ENTRIES - LOADED}")
    expect(tab.page.locator(".is-found")).to_contain_text(f"entry {ENTRIES - LOADED}", timeout=LOADED_MS)
    tab.page.evaluate(MIDDLE)
    with Tasks(browser, tab) as tasks:
        tab.page.evaluate(SCROLL, FRAMES)
    each = sum(tasks.times) / FRAMES
    drawn = int(tab.page.evaluate("document.querySelectorAll('[data-seq]').length"))
    figure(f"{ENTRIES} entries, {LOADED} of them loaded, scrolled among these: a frame {each:.1f} ms, {drawn} drawn")
    assert each < FRAME_MS
    assert drawn < DRAWN
