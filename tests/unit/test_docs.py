"""The documents name what there is: actions, fields, notifications, settings, agents, and places in the code."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import agent_rows
import kandev
from kandev.agents import BUILT_IN, AgentOverride
from kandev.cli.words import STAGES
from kandev.config import explain, load_config
from kandev.domain.failures import FailureCause
from kandev.domain.models import (
    HoldReason,
    Message,
    PermissionRequest,
    QueuedPrompt,
    ResumeOutcome,
    Task,
    Turn,
)
from kandev.domain.resume import ResumeReason
from kandev.gateway import requests
from kandev.gateway.actions import _TABLE
from kandev.gateway.guard import STATUS
from kandev.gateway.hub import BOARD_ACTIONS
from kandev.lifecycle.transcript import AGENT_STATE
from kandev.orchestrator.views import ResumeAnswer, SessionStatus, SessionView

SOURCES = Path(kandev.__file__).parent
CHECKOUT = Path(__file__).parents[2]
DOCUMENTS = sorted([*CHECKOUT.glob("docs/*.md"), CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md"])
PROTOCOL = (CHECKOUT / "docs/protocol.md").read_text()
OPERATIONS = (CHECKOUT / "docs/operations.md").read_text()
AGENTS = (CHECKOUT / "docs/agents.md").read_text()


def rows(text: str, heading: str) -> Iterator[list[str]]:
    """The cells of the rows of every table below a heading, until the next one of its level."""
    level = heading.split(" ", maxsplit=1)[0]
    part = text.split(f"\n{heading}\n", 1)[1].split(f"\n{level} ", 1)[0]
    for line in part.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def named(text: str) -> set[str]:
    """What a text marks as code."""
    return set(re.findall(r"`([^`]+)`", text))


def fields_of(struct: type[msgspec.Struct]) -> set[str]:
    """The fields of a request as the documents write them: a ? marks an optional one."""
    return {field.name + ("" if field.required else "?") for field in msgspec.structs.fields(struct)}


def test_every_action_is_documented_with_its_fields() -> None:
    """docs/protocol.md has a row for each action, and names the fields of its request and no others."""
    found = {}
    for action, request, *_ in rows(PROTOCOL, "## Actions"):
        if "." in action:
            found[action.strip("`")] = {name.strip() for name in request.split(",") if name.strip()}
    assert found == {action: fields_of(struct) for action, (struct, _) in _TABLE.items()}


@pytest.mark.parametrize(
    ("name", "struct"),
    [
        ("task", Task),
        ("session", SessionView),
        ("turn", Turn),
        ("message", Message),
        ("queue entry", QueuedPrompt),
        ("permission", PermissionRequest),
        ("outcome of a start", ResumeOutcome),
    ],
)
def test_every_field_of_an_object_is_documented(name: str, struct: type[msgspec.Struct]) -> None:
    """The list behind an object's name in docs/protocol.md holds its fields."""
    text = PROTOCOL.split(f"\n**{name}**:", 1)[1].split("\n\n", 1)[0]
    missing = [field for field in struct.__struct_fields__ if not re.search(rf"\b{field}\b", text)]
    assert not missing


def test_every_field_of_a_status_is_documented() -> None:
    """The table of the status in docs/protocol.md holds its fields, and every reason for a resume."""
    found = {name for field, *_ in rows(PROTOCOL, "## Objects") for name in named(field)}
    assert set(SessionStatus.__struct_fields__) <= found
    reasons = next(meaning for field, meaning in rows(PROTOCOL, "## Objects") if field == "`resume_reason`")
    assert reasons.split(", ") == [str(reason) for reason in ResumeReason]


def test_the_answer_of_a_resume_is_documented() -> None:
    """The row of task.session.resume names the fields of its answer."""
    answer = next(row[2] for row in rows(PROTOCOL, "### Sessions") if row[0] == "`task.session.resume`")
    assert answer.split(", ") == list(ResumeAnswer.__struct_fields__)


def published() -> set[str]:
    """Every notification that the sources name."""
    pattern = re.compile(r'(?<!log\.info\()(?<!failpoint\()"((?:task|session|message|permission)\.[a-z_.]+)"')
    texts = (path.read_text() for room in ("lifecycle", "orchestrator") for path in (SOURCES / room).glob("*.py"))
    found = {name for text in texts for name in pattern.findall(text)}
    return (found | BOARD_ACTIONS | {action for _, _, action in AGENT_STATE.values()}) - set(_TABLE)


def test_every_notification_is_documented() -> None:
    """docs/protocol.md has a row for each notification, and says which of them a board gets."""
    found = {action.strip("`"): board for action, _, board in rows(PROTOCOL, "## Notifications") if "." in action}
    assert set(found) == published()
    assert {action for action, board in found.items() if board == "yes"} == BOARD_ACTIONS


def test_every_error_code_is_documented() -> None:
    """docs/protocol.md has each code with its HTTP status."""
    found = {row[0].strip("`"): row[-1] for row in rows(PROTOCOL, "## Errors") if row[0].strip("`").isupper()}
    assert {code: int(status) for code, status in found.items()} == {**STATUS, "INTERNAL_ERROR": 500}


def test_every_cause_of_a_failed_start_is_documented() -> None:
    """docs/protocol.md has each of them among the reasons."""
    found = {name for row in rows(PROTOCOL, "## Errors") for name in named(row[0])}
    assert {str(cause) for cause in FailureCause} <= found


def test_every_reason_to_hold_a_queue_is_documented() -> None:
    """docs/protocol.md lists why a queue may be held, and the actions of recover."""
    listed = PROTOCOL.split("Why a queue is held:", 1)[1].split(".", 1)[0]
    assert named(listed) == {str(reason) for reason in HoldReason if reason}
    actions = get_args(requests.Recover.__annotations__["action"])
    assert {row[0].strip("`") for row in rows(PROTOCOL, "### Sessions")} >= set(actions)


def test_every_stage_of_a_start_has_words() -> None:
    """docs/protocol.md lists the stages, and the command line and the page have words for each."""
    listed = re.search(r"of a start under way: ([a-z_, ]+);", PROTOCOL)
    assert listed is not None
    page = (CHECKOUT / "page/src/words/stages.ts").read_text()
    assert set(listed[1].split(", ")) == set(STAGES) == set(re.findall(r"^  (\w+): \"", page, re.MULTILINE))


def test_every_setting_is_documented(tmp_path: Path) -> None:
    """docs/operations.md has a row for each setting, with its default."""
    settings = explain(load_config({"KANDEV_HOME": str(tmp_path)}))
    documented = {name for row in rows(OPERATIONS, "## Settings") for name in named(row[0])}
    missing = [setting.key for setting in settings if setting.key != "home" and setting.key not in documented]
    assert not missing


def test_every_agent_is_documented_with_its_flags() -> None:
    """docs/agents.md has a row for each built-in agent: its two flags, and how it is installed."""
    found = {row[0].strip("`"): row for row in rows(AGENTS, "## Built-in agents")}
    for name, agent in BUILT_IN.items():
        session = agent.session
        wanted = [session.native_session_resume, session.history_context_injection]
        assert found[name][2:4] == ["yes" if flag else "no" for flag in wanted]
        assert agent.install_hint.rpartition(" ")[2] in found[name][1]


def test_every_setting_of_an_agent_is_documented() -> None:
    """docs/agents.md has a row for each key of a table [agents.NAME]."""
    documented = {name for row in rows(AGENTS, "## Settings of an agent") for name in named(row[0])}
    assert set(AgentOverride.__struct_fields__) <= documented


def test_the_table_of_agents_is_that_of_their_definitions() -> None:
    """docs/agents.md holds what the generator writes."""
    assert agent_rows.with_table(AGENTS) == AGENTS, f"write it: {agent_rows.COMMAND}"


def test_what_was_verified_is_told_with_its_version() -> None:
    """docs/agents.md has a row for each agent that the tests of real agents install, with the version that they do."""
    found = {name: row for row in rows(AGENTS, "## What was verified") for name in named(row[0])}
    assert set(found) <= set(BUILT_IN)
    for place in CHECKOUT.glob("tests/real_agents/packages/*/package.json"):
        wanted = json.loads(place.read_text()).get("dependencies", {})
        for package, version in wanted.items():
            assert found[place.parent.name][1] == f"`{package}` {version}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_places_in_the_code_exist(document: Path) -> None:
    """A file, or FILE:NAME, that a document marks as code is there, below the checkout or below src/kandev."""
    lost = []
    for text in named(document.read_text()):
        match = re.fullmatch(r"([\w./-]+\.(?:py|sql|ts|toml|lock)):?(\w+)?", text)
        if match is None or "/" not in match[1]:
            continue
        path = next((base / match[1] for base in (CHECKOUT, SOURCES) if (base / match[1]).exists()), None)
        if path is None or (match[2] and not re.search(rf"\b(def|class) {match[2]}\b", path.read_text())):
            lost.append(text)
    assert not lost


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    """A relative link names a file that is there, and an anchor a heading of its file."""
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        name, _, anchor = target.partition("#")
        if "://" in target:
            continue
        path = document.parent / name if name else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            lost.append(target)
    assert not lost


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
