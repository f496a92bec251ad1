"""A model server for real agents, without a model: every dialect that they speak, on loopback.

    PYTHONPATH=tests python -m real_agents.fake_model --log requests.jsonl [--port 18080]

OpenAI's responses and chat completions (Codex, Copilot, OpenCode), Anthropic's messages (Claude Code), Gemini's
generateContent; streamed and whole. It answers each request with what the request held, so that a test can tell
whether an agent remembers:

    HEARD 3 messages, marks: MARK-apple MARK-pear

A mark is MARK- and letters or digits, and counts wherever it stands in the messages. The last text of the user steers:

| text | answer |
|---|---|
| `slow: N` | N pieces, 0.1 s apart |
| `Count from 1 to N` | the numbers, 0.1 s apart, as a real model would take its time |
| `fail: CODE` | that HTTP error |
| `hang: 1` | the beginning of an answer, and then nothing |
| `tool: COMMAND` | one call of a shell tool that the request offers; with its result in the request, the usual text |

Each request is one JSON line of the log: {"path", "dialect", "messages", "marks", "last", "body"}; `dialect` is empty
for what no dialect knows, which is answered by 404.
"""
