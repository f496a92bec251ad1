"""JSON-RPC lines: what is a message, what is noise, and that every line of ours is one line."""

import json
from typing import Any

import pytest

from kandev.protocols import jsonrpc
from kandev.protocols.jsonrpc import Noise, Notification, Request, Response


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"\n", b"  \r\n", b"123", b"null", b"[]", b'"text"', b"true", b"Starting up...", b"\x1b[2J"),
        *(b"\xff\xfe\x00", b'{"a":', b'{"a":1}{"b":2}', b"[{}]", b"\x1e{}", b"\x00" * 40, b"[" * 100_000, b"1" * 5000),
        *(b'{"level":"info","msg":"hi"}', b'{"id":3,"msg":"a log line"}', b'{"method":5}', b"{}", b'\x1b[0m{"id":1}'),
    ],
)
def test_wire_1_what_is_no_message_is_noise(line: bytes) -> None:
    """Scalars, arrays, banners, broken or foreign JSON are noise with a reason and a short sample."""
    event = jsonrpc.parse(line)
    assert isinstance(event, Noise)
    assert event.reason
    assert len(event.sample) <= jsonrpc.SAMPLE_CHARACTERS


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"method":"m","params":"a\xffb"}', "a\ufffdb"),
        (b'{"method":"m","params":"a\\ud800b"}', "a\ufffdb"),
        (b'{"method":"m","params":"a\xed\xa0\x80b"}', "a\ufffd\ufffd\ufffdb"),
        (b'{"method":"m","params":"\\ud83d\\ude00"}', "\U0001f600"),
        (b'{"method":"m","params":"a\x01\tb"}', "a\x01\tb"),
        (b'\xef\xbb\xbf{"method":"m","params":"bom"}\r\n', "bom"),
        (b'{"method":"m","params":NaN}', None),
        (b'{"method":"m","params":[1e999,-Infinity]}', [None, None]),
        (b'{"method":"m","params":{"\\udc00":1}}', {"\ufffd": 1}),
    ],
)
def test_hist_6_damaged_text_costs_only_itself(line: bytes, text: Any) -> None:
    """Bad UTF-8, lone surrogates, raw control characters and numbers that are none do not lose the message."""
    assert jsonrpc.parse(line) == Notification("m", text)


@pytest.mark.parametrize(
    ("raw", "known"),
    [
        *(('"2"', 2), ("2", 2), ("2.0", 2), ('"0"', 0), ("0", 0), ("18446744073709551616", 2**64)),
        *(('"02"', None), ('"x"', None), ('""', None), ('"-1"', None), ('" 2"', None), ('"\uff12"', None)),
        *(("null", None), ("[1]", None), ("{}", None), ("true", None), ("2.5", None), ('"' + "9" * 5000 + '"', None)),
    ],
)
def test_wire_4_the_decimal_string_of_an_id_is_that_id(raw: str, known: int | None) -> None:
    """Only what can be one of our integers is an id; anything else is None with what was sent beside it."""
    event = jsonrpc.parse(f'{{"jsonrpc":"2.0","id":{raw},"result":null}}'.encode())
    assert isinstance(event, Response)
    assert (event.id, event.raw_id) == (known, json.loads(raw))


@pytest.mark.parametrize(
    ("line", "result", "error"),
    [
        ('{"id":1,"result":null}', None, None),
        ('{"id":1,"result":{"a":1},"error":null}', {"a": 1}, None),
        ('{"jsonrpc":"2.0","id":1}', None, None),
        ('{"id":1,"error":{"code":-32603}}', None, {"code": -32603}),
        ('{"id":1,"error":"broken"}', None, {"code": -32603, "message": "broken", "data": "broken"}),
        ('{"id":1,"error":[5]}', None, {"code": -32603, "message": "", "data": [5]}),
    ],
)
def test_tok_7_answers_without_a_result_are_answers(line: str, result: Any, error: Any) -> None:
    """null, a missing result and odd errors are all answers."""
    assert jsonrpc.parse(line.encode()) == Response(1, result, error, 1)


@pytest.mark.parametrize(
    ("raw", "echoed"),
    [('"abc"', "abc"), ("0", 0), ("-5", -5), ("null", None), ("1.5", None), ("[1]", None), ("true", None)],
)
def test_wire_5_the_agents_request_id_is_echoed_as_it_is(raw: str, echoed: Any) -> None:
    """Integer, string and null come back with their type; an invalid id is answered with null."""
    event = jsonrpc.parse(f'{{"id":{raw},"method":"m","params":{{}}}}'.encode())
    assert event == Request(echoed, "m", {})
    assert isinstance(event, Request)
    assert json.loads(jsonrpc.error(event.id, -32601, "no"))["id"] == echoed


def test_an_error_without_an_id_is_an_answer_to_nothing() -> None:
    """A peer that could not read a line says so without an id; this is kept, not taken for noise."""
    event = jsonrpc.parse(b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"}}')
    assert event == Response(None, None, {"code": -32700, "message": "Parse error"}, None)


@pytest.mark.parametrize(
    "text",
    ["a\nb\r\nc", "\u2028\u2029\u0085", "\x00\x0b\x0c\x1c\x1d\x1e\x7f", "\ud83d\ude00", "x\ud800", "\udc00", "plain"],
)
def test_wire_11_every_text_makes_one_line(text: str) -> None:
    """No reader's idea of a line end is in a line of ours, and the text comes back, lone surrogates as U+FFFD."""
    line = jsonrpc.request(1, "m", {"text": text, text: [text]})
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1
    clean = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert json.loads(line)["params"] == {"text": clean, clean: [clean]}


def test_a_number_that_json_does_not_have_is_sent_as_null() -> None:
    """NaN and infinity never reach an agent."""
    assert jsonrpc.result(1, [float("nan"), float("inf")]) == b'{"jsonrpc":"2.0","id":1,"result":[null,null]}\n'


@pytest.mark.parametrize("before", [b"Enter the authorization code: ", b"\x1b[?1049l", b"\xff "])
def test_wire_1_an_answer_behind_a_prompt_on_the_same_line_counts(before: bytes) -> None:
    """An agent that asks for something on stdout has no newline before what it answers."""
    answer = b'{"jsonrpc":"2.0","id":7,"error":{"code":500,"message":"no"}}'
    assert jsonrpc.parse(before + answer) == jsonrpc.parse(answer)


@pytest.mark.parametrize(
    "quoted",
    [
        b'{"jsonrpc": "2.0", "id": 3, "method": "authenticate", "params": {}}',
        b'{"jsonrpc": "2.0", "method": "session/update", "params": {}}',
        b'{"jsonrpc": "2.0", "id": 3',
        b'{"jsonrpc"' * 100_000,
    ],
)
def test_wire_1_a_request_that_a_log_or_an_echo_quotes_does_not(quoted: bytes) -> None:
    """It may be our own. What is no message stays noise, at once however often it begins like one."""
    message = jsonrpc.parse(b"debug: " + quoted)
    assert isinstance(message, jsonrpc.Noise)
    assert message.reason == "not JSON"
