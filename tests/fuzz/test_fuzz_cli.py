"""Whatever is typed as an id or a text, a command ends with one of its exit codes and words that can be printed."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import assume, example, given
from hypothesis import strategies as st

from backend import Backend
from fuzzed import HARD_TEXTS, QUIET, ends, fuzz
from kandev.cli.__main__ import cli
from kandev.cli.plain import one_line, strip_controls

pytestmark = QUIET

CODES = {0, 1, 2, 3, 4, 5}
BY_ID = ["status", "show", "history", "queue", "cancel", "stop", "logs", "export", "complete", "resume"]
TYPED = st.one_of(
    HARD_TEXTS,
    st.sampled_from(
        ["..", "../../etc/passwd", "%2e%2e", "%", "_", "*", "-", "--", "--json", "a" * 65, "\udcff\udcfe", "'"]
    ),
    st.text(st.characters(), max_size=12),
    st.binary(max_size=12).map(os.fsdecode),
).map(lambda text: os.fsdecode(text.encode(errors="surrogatepass").replace(b"\0", b"")))
"""What a system can hand to a program: bytes that are no UTF-8 arrive as halves of pairs, and NUL cannot arrive."""


class Line:
    """The command line beside a running backend, inside of this process."""

    def __init__(self, backend: Backend, task_id: str, session_id: str) -> None:
        self.session_id = session_id
        self.ids = (task_id, session_id)
        self._env = {**backend.env(), "KANDEV_URL": None, "KANDEV_TOKEN": None}

    def run(self, *arguments: str, stdin: str = "") -> tuple[int, str]:
        """The exit code and what was written; an exception is the test's failure."""
        with ends():
            result = CliRunner().invoke(cli, arguments, input=stdin, env=self._env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    backend = Backend(tmp_path_factory.mktemp("cli"))

    async def begin() -> tuple[str, str]:
        await backend.__aenter__()
        await backend.start()
        async with backend.client() as client:
            created = await client.call("task.create", {"agent": "demo", "description": "hello", "start": False})
            return str(created["task"]["id"]), str(created["session"]["id"])

    ids = asyncio.run(begin())
    try:
        yield Line(backend, *ids)
    finally:
        asyncio.run(backend.__aexit__(None, None, None))


@fuzz(80)
@given(command=st.sampled_from(BY_ID), typed=TYPED, as_json=st.booleans())
def test_sec_2_any_id_is_found_or_refused(line: Line, command: str, typed: str, as_json: bool) -> None:  # noqa: FBT001 - drawn by hypothesis
    """An id is looked up and never used as a path; with --json the refusal is JSON with a code."""
    assume(not typed or not any(one.startswith(typed) for one in line.ids))  # ids are drawn anew for each run
    code, output = line.run(command, *(["--json"] if as_json else []), "--", typed)
    assert code in CODES - {0}
    assert "Traceback" not in output
    if as_json and code != 2:
        assert json.loads(output)["error"]["code"] in {"NOT_FOUND", "VALIDATION_ERROR", "BAD_REQUEST", "CONFLICT"}


@fuzz(40)
@given(text=TYPED)
@example(text="a\udcffb")
def test_hist_6_any_text_is_searched_for(line: Line, text: str) -> None:
    """Wild cards and half characters are text like any other."""
    code, output = line.run("search", "--json", "--", text)
    assert code in CODES
    assert "Traceback" not in output


@fuzz(40)
@given(text=TYPED, from_stdin=st.booleans())
@example(text="\udcff", from_stdin=False)
def test_prompt_1_and_hist_6_any_text_is_sent_as_it_is_or_refused(line: Line, text: str, from_stdin: bool) -> None:  # noqa: FBT001 - drawn by hypothesis
    """What is accepted stands in the transcript or the queue whole; what is no text is refused with words."""
    if from_stdin:
        text = text.encode(errors="replace").decode()
        code, output = line.run("send", line.session_id, "-", "--json", stdin=text)
        text = "\n".join(text.replace("\r\n", "\n").split("\r"))  # as every text stream reads lines
    else:
        code, output = line.run("send", "--json", "--", line.session_id, text)
    assert code in CODES
    assert "Traceback" not in output
    if code == 0:
        assert json.loads(output)["message"]["content"] == text


@fuzz(40)
@given(text=TYPED, title=TYPED, directory=TYPED)
def test_sec_2_any_task_is_made_or_refused(line: Line, text: str, title: str, directory: str) -> None:
    """Title, description and repository are looked at before anything is stored; no directory comes into being."""
    code, output = line.run("new", "--json", "--agent=nobody", f"--title={title}", f"--repo={directory}", "--", text)
    assert code in CODES - {0}
    assert "Traceback" not in output


@fuzz(300)
@given(text=st.one_of(HARD_TEXTS, st.text(st.sampled_from("\x1b[]P\\;0m\x07\x9b\ud800\u202ea\n\r\t"), max_size=30)))
def test_sec_4_any_text_of_an_agent_is_printed_without_its_controls(text: str) -> None:
    """No escape, no change of direction, no half character reaches a terminal."""
    with ends():
        shown, short = strip_controls(text), one_line(text, 40)
    assert not any(char < " " and char not in "\t\n" for char in shown)
    assert not set(shown) & set("\x1b\x7f\x9b\u202e")
    shown.encode()
    assert len(short) <= 40
    assert "\n" not in short


def test_no_home_is_made_by_asking(tmp_path: Path) -> None:
    """A command beside no backend leaves the home alone, whatever it was asked."""
    home = tmp_path / "none"
    result = CliRunner().invoke(cli, ["status", "../x"], env={"KANDEV_HOME": str(home), "KANDEV_URL": None})
    assert result.exit_code == 6
    assert not home.exists()
