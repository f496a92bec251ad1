"""The model server that real agents are pointed at says exactly what it was asked."""

import http.client
import json
import urllib.parse
from typing import Any

import pytest

from real_agents.conftest import Model


def ask(model: Model, text: str, *, stream: bool = False) -> tuple[int, str]:
    """Sends one earlier exchange and a text; (status, body)."""
    said = [
        {"role": "user", "content": [{"type": "input_text", "text": "remember MARK-apple"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I shall"}]},
        {"role": "user", "content": [{"type": "input_text", "text": text}]},
    ]
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(model.url).netloc, timeout=30)
    try:
        connection.request("POST", "/v1/responses", json.dumps({"model": "m", "input": said, "stream": stream}))
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def streamed(body: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line.startswith("data: ")]


def test_an_answer_counts_messages_and_marks(model: Model) -> None:
    """The answer and the log hold the marks of the whole request, in their order."""
    status, body = ask(model, "and MARK-pear?")
    text = json.loads(body)["output"][0]["content"][0]["text"]
    assert (status, text) == (200, "HEARD 3 messages, marks: MARK-apple MARK-pear")
    assert model.request_with("MARK-pear")["messages"] == 3


@pytest.mark.parametrize(("text", "pieces"), [("hello", 2), ("slow: 3", 3)])
def test_a_streamed_answer_comes_in_pieces_that_make_the_whole(model: Model, text: str, pieces: int) -> None:
    """Deltas joined are the text of the final response, and the events are numbered without a gap."""
    events = streamed(ask(model, text, stream=True)[1])
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert len(deltas) == pieces
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "".join(deltas)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_failure_can_be_ordered(model: Model) -> None:
    """`fail: CODE` is answered by that status, as a model that refuses."""
    status, body = ask(model, "fail: 429")
    assert status == 429
    assert json.loads(body)["error"]["code"] == "429"
