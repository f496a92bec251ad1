"""Gemini's POST /v1beta/models/MODEL:generateContent and :streamGenerateContent."""

from collections.abc import Iterator

from real_agents.fake_model.question import Answer, Frame, Json, Question, framed, marks_in, texts_of

name = "gemini"


def read(body: Json) -> Question:
    """Its contents have parts; tools' results are parts of the user's contents."""
    contents = body.get("contents") or []
    last, answered = "", False
    for content in contents:
        parts = content.get("parts") or []
        if content.get("role", "user") != "user":
            continue
        if any("functionResponse" in part for part in parts):
            answered = True
        elif texts := texts_of(parts):
            last, answered = texts[-1], False
    declared = [one for tool in body.get("tools") or [] for one in tool.get("functionDeclarations") or []]
    wanted = body.get("generationConfig") or {}
    as_json = wanted.get("responseMimeType") == "application/json"
    return Question(
        messages=len(contents),
        marks=marks_in(contents),
        last=last,
        answered=answered,
        tools={one["name"]: one.get("parametersJsonSchema") or one.get("parameters") or {} for one in declared},
        schema=(wanted.get("responseJsonSchema") or wanted.get("responseSchema") or {}) if as_json else None,
    )


def failure(status: int) -> Json:
    """The body of an HTTP error."""
    return {"error": {"code": status, "message": f"fake failure {status}", "status": "INTERNAL"}}


def whole(answer: Answer, question: Question, model: str) -> Json:
    """The answer as one candidate."""
    return _candidate(_part(answer), question, model, "STOP")


def stream(answer: Answer, question: Question, model: str) -> Iterator[Frame]:
    """The same answer as candidates of one piece each."""
    if answer.tool:
        yield Frame(data=whole(answer, question, model))
        return
    yield from framed(answer.pieces, lambda piece: _candidate({"text": piece}, question, model, ""))
    yield Frame(data=_candidate({"text": ""}, question, model, "STOP"))


def _part(answer: Answer) -> Json:
    if answer.tool:
        return {"functionCall": {"name": answer.tool.name, "args": answer.tool.arguments}}
    return {"text": answer.text}


def _candidate(part: Json, question: Question, model: str, finish: str) -> Json:
    candidate = {"content": {"role": "model", "parts": [part]}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    read_tokens = 10 * question.messages
    usage = {"promptTokenCount": read_tokens, "candidatesTokenCount": 5, "totalTokenCount": read_tokens + 5}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model, "responseId": "fake"}
