"""What agents write is text, whatever it looks like."""

from playwright.sync_api import expect

from browser.desk import Desk
from browser.stage import Stage
from conversation import Cast

HOSTILE = """<script>window.hurt = 1</script><img src=x onerror="window.hurt = 1">
[a link](javascript:window.hurt=1) <a href="javascript:window.hurt=1">another</a> ![x](https://example.invalid/x.png)

| <b>cell</b> | `<i>` |
|---|---|
| <svg onload="window.hurt=1"> | [x](data:text/html,<script>1</script>) |

```html
<script>window.hurt = 1</script>
```
"""


def test_sec_4_what_an_agent_writes_is_never_html(desk: Desk, stage: Stage, cast: Cast) -> None:
    """Markup of every kind is shown as it was written: no element, no script address, no request comes of it."""
    tool = {"title": HOSTILE, "toolCallId": "t", "content": [{"type": "content", "content": {"text": HOSTILE}}]}
    told = [{"text": HOSTILE}, {"thought": HOSTILE}, {"update": {"sessionUpdate": "tool_call", **tool}}]
    name, _ = cast.take("native", on={"session/prompt": {"steps": told}})
    session = stage.create(HOSTILE, agent=name, title="<b>bold</b>")
    tab = desk.tab(session.path)
    tab.sees("<script>window.hurt = 1</script>")
    for summary in tab.transcript.locator("summary").all():
        summary.click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("<b>bold</b>")
    found = tab.page.evaluate(
        """() => ({
          hurt: window.hurt ?? null,
          elements: document.querySelectorAll("main script, main img, main svg, main b, main i, main iframe").length,
          links: [...document.querySelectorAll("a")].filter((one) => !/^https?:|^mailto:/.test(one.href)).length,
        })"""
    )
    assert found == {"hurt": None, "elements": 0, "links": 0}


def test_sec_4_the_page_runs_no_inline_script(desk: Desk, stage: Stage) -> None:
    """A script that got into the document would not run: the policy is there, and strict."""
    tab = desk.tab()
    ran = tab.page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          return window.ran === true;
        }"""
    )
    assert not ran
    assert any("Content Security Policy" in complaint for complaint in desk.complaints)
    desk.complaints.clear()
