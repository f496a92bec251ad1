"""An agent that does nothing but emit: ACP on stdio, standard library only, every update numbered.

    chunks N     N text chunks as fast as possible; a new message every CHUNKS_A_MESSAGE
    tools N      N tool calls, each with an id of its own, as fast as possible
    ticks N MS   N text chunks MS milliseconds apart; each holds the time before its write (CLOCK_MONOTONIC, ns)
    leave        nothing; the agent ends once it has answered

Sessions have no memory: any id is loaded, and replays REPLAYED updates. Run it by `python -I -S`.
"""

import json
import os
import sys
import time

CHUNKS_A_MESSAGE = 1_000
LINES_A_WRITE = 300
REPLAYED = 10
SESSION = "bench-0123456789abcdef"

UPDATE = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"' + SESSION.encode() + b'","update":'
CHUNK = UPDATE + (
    b'{"sessionUpdate":"agent_message_chunk","messageId":"m%d",'
    b'"content":{"type":"text","text":"%08d numbered text;"}}}}\n'
)
TOOL = UPDATE + (
    b'{"sessionUpdate":"tool_call","toolCallId":"call-%08d","title":"Read file %08d","kind":"read",'
    b'"status":"completed","locations":[{"path":"/src/file.py","line":12}],"rawInput":{"path":"/src/file.py"}}}}\n'
)
TICK = UPDATE + (
    b'{"sessionUpdate":"agent_message_chunk","messageId":"ticks","content":{"type":"text","text":"%08d %d;"}}}}\n'
)


def write(data: bytes) -> None:
    """Write everything to stdout."""
    while data:
        data = data[os.write(1, data) :]


def answer(request_id: int, result: object) -> None:
    """Answer a request."""
    write(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode() + b"\n")


def chunk(number: int) -> bytes:
    """Return the line of one chunk."""
    return CHUNK % (number // CHUNKS_A_MESSAGE, number)


def tool(number: int) -> bytes:
    """Return the line of one tool call."""
    return TOOL % (number, number)


def perform(text: str) -> None:
    """Do what a prompt asks for."""
    command, *numbers = text.split()
    if command == "leave":
        return
    if command == "ticks":
        count, pause_ms = map(int, numbers)
        for number in range(count):
            time.sleep(pause_ms / 1000)
            write(TICK % (number, time.monotonic_ns()))
        return
    line = {"chunks": chunk, "tools": tool}[command]
    count = int(numbers[0])
    for start in range(0, count, LINES_A_WRITE):
        write(b"".join([line(number) for number in range(start, min(start + LINES_A_WRITE, count))]))


def main() -> None:
    """Serve until stdin ends."""
    for line in sys.stdin.buffer:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                info = {"name": "flood", "version": "1"}
                capabilities = {"loadSession": True}
                answer(message["id"], {"protocolVersion": 1, "agentCapabilities": capabilities, "agentInfo": info})
            case "session/new":
                answer(message["id"], {"sessionId": SESSION})
            case "session/load":
                write(b"".join(map(chunk, range(REPLAYED))))
                answer(message["id"], {})
            case "session/prompt":
                text = message["params"]["prompt"][0]["text"]
                perform(text)
                answer(message["id"], {"stopReason": "end_turn"})
                if text == "leave":
                    return


if __name__ == "__main__":
    main()
