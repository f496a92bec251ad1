"""The model server that real agents are pointed at says exactly what it was asked, in every dialect."""

import http.client
import json
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from real_agents.conftest import Model, serving

Json = dict[str, Any]
REMEMBER, PROMISE = "remember MARK-apple", "I shall"


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """How a client of one dialect asks, and what it reads of the answer."""

    path: str
    body: Callable[[list[tuple[str, str]], Json], Json]
    text: Callable[[Json], str]
    delta: Callable[[Json], str]
    last_event: str
    called: Callable[[Json], tuple[str, Any]]


def responses_body(said: list[tuple[str, str]], parameters: Json) -> Json:
    """The body of POST /v1/responses."""
    items = [{"role": role, "content": [{"type": "input_text", "text": text}]} for role, text in said]
    return {"model": "m", "input": items, "tools": [{"type": "function", "name": "shell", "parameters": parameters}]}


def chat_body(said: list[tuple[str, str]], parameters: Json) -> Json:
    """The body of POST /v1/chat/completions."""
    messages = [{"role": role, "content": text} for role, text in said]
    tools = [{"type": "function", "function": {"name": "shell", "parameters": parameters}}]
    return {"model": "m", "messages": messages, "tools": tools}


def anthropic_body(said: list[tuple[str, str]], parameters: Json) -> Json:
    """The body of POST /v1/messages; Claude Code adds a reminder to what the user says."""
    reminder = {"type": "text", "text": "<system-reminder>slow: 99</system-reminder>"}
    messages = [{"role": role, "content": [reminder, {"type": "text", "text": text}]} for role, text in said]
    return {"model": "m", "messages": messages, "tools": [{"name": "shell", "input_schema": parameters}]}


def gemini_body(said: list[tuple[str, str]], parameters: Json) -> Json:
    """The body of POST :generateContent."""
    names = {"user": "user", "assistant": "model"}
    contents = [{"role": names[role], "parts": [{"text": text}]} for role, text in said]
    return {"contents": contents, "tools": [{"functionDeclarations": [{"name": "shell", "parameters": parameters}]}]}


def gemini_part(body: Json) -> Json:
    """The one part of a candidate."""
    part: Json = body["candidates"][0]["content"]["parts"][0]
    return part


def chat_call(body: Json) -> tuple[str, Any]:
    """The tool that a completion calls."""
    function = body["choices"][0]["message"]["tool_calls"][0]["function"]
    return function["name"], json.loads(function["arguments"])


CLIENTS = {
    "responses": Client(
        path="/v1/responses",
        body=responses_body,
        text=lambda body: str(body["output"][0]["content"][0]["text"]),
        delta=lambda event: str(event["delta"]) if event["type"] == "response.output_text.delta" else "",
        last_event='"response.completed"',
        called=lambda body: (body["output"][0]["name"], json.loads(body["output"][0]["arguments"])),
    ),
    "chat": Client(
        path="/v1/chat/completions",
        body=chat_body,
        text=lambda body: str(body["choices"][0]["message"]["content"]),
        delta=lambda event: str(event["choices"][0]["delta"].get("content", "")),
        last_event="[DONE]",
        called=chat_call,
    ),
    "messages": Client(
        path="/v1/messages",
        body=anthropic_body,
        text=lambda body: str(body["content"][0]["text"]),
        delta=lambda event: str(event.get("delta", {}).get("text", "")),
        last_event='"message_stop"',
        called=lambda body: (body["content"][0]["name"], body["content"][0]["input"]),
    ),
    "gemini": Client(
        path="/v1beta/models/m:generateContent",
        body=gemini_body,
        text=lambda body: str(gemini_part(body)["text"]),
        delta=lambda event: str(gemini_part(event)["text"]),
        last_event='"STOP"',
        called=lambda body: (
            gemini_part(body)["functionCall"]["name"],
            gemini_part(body)["functionCall"]["args"],
        ),
    ),
}

each_dialect = pytest.mark.parametrize("dialect", CLIENTS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """One server for the whole file."""
    with serving(tmp_path_factory.mktemp("model") / "model.jsonl") as running:
        yield running


def ask(model: Model, dialect: str, text: str, **more: Any) -> tuple[int, str]:
    """Sends one earlier exchange and a text; (status, body)."""
    client = CLIENTS[dialect]
    said = [("user", REMEMBER), ("assistant", PROMISE), ("user", text)]
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    path = client.path.replace(":generate", ":streamGenerate") if more.get("stream") else client.path
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(model.url).netloc, timeout=30)
    try:
        connection.request("POST", path, json.dumps({**client.body(said, parameters), **more}))
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@each_dialect
def test_an_answer_counts_messages_and_marks(model: Model, dialect: str) -> None:
    """The answer and the log hold the marks of the whole request, in their order."""
    status, body = ask(model, dialect, "and MARK-pear?")
    text = CLIENTS[dialect].text(json.loads(body))
    assert (status, text) == (200, "HEARD 3 messages, marks: MARK-apple MARK-pear")
    logged = model.request_with("MARK-pear")
    assert (logged["messages"], logged["dialect"]) == (3, dialect)


@each_dialect
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("hello", ["HEARD 3 messages, ", "marks: MARK-apple"]),
        ("slow: 3", ["piece 1 ", "piece 2 ", "piece 3 "]),
        ("Please count from 1 to 2.", ["1 ", "2 "]),
    ],
)
def test_a_streamed_answer_comes_in_pieces(model: Model, dialect: str, text: str, pieces: list[str]) -> None:
    """The pieces are those that the text asks for, and the stream has the end that its dialect has."""
    lines = [line for line in ask(model, dialect, text, stream=True)[1].splitlines() if line.startswith("data: ")]
    data = [line.removeprefix("data: ") for line in lines]
    deltas = [CLIENTS[dialect].delta(json.loads(one)) for one in data if one != "[DONE]"]
    assert [delta for delta in deltas if delta] == pieces
    assert CLIENTS[dialect].last_event in data[-1]


def test_the_events_of_responses_are_numbered(model: Model) -> None:
    """Without a gap, and the last one has the whole text."""
    body = ask(model, "responses", "hello", stream=True)[1]
    events = [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert CLIENTS["responses"].text(events[-1]["response"]) == "HEARD 3 messages, marks: MARK-apple"


@each_dialect
def test_a_tool_call_can_be_ordered(model: Model, dialect: str) -> None:
    """`tool: COMMAND` calls the shell tool that the request offers."""
    body = json.loads(ask(model, dialect, "tool: echo hello")[1])
    assert CLIENTS[dialect].called(body) == ("shell", {"command": "echo hello"})


@each_dialect
def test_a_failure_can_be_ordered(model: Model, dialect: str) -> None:
    """`fail: CODE` is answered by that status, as a model that refuses."""
    status, body = ask(model, dialect, "fail: 429")
    assert status == 429
    assert "fake failure 429" in json.dumps(json.loads(body)["error"])


def test_what_no_dialect_knows_is_logged(model: Model) -> None:
    """So that a test can say what else an agent asked for."""
    before = model.requests()
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(model.url).netloc, timeout=30)
    try:
        connection.request("GET", "/telemetry")
        assert connection.getresponse().status == 404
    finally:
        connection.close()
    assert model.strange() == ["/telemetry"]
    assert model.requests() == before
