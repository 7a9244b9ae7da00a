"""The chat of Gemini CLI (0.61) and of Qwen Code (0.24), cut.

gemini: the id of a session stands in the first line. A message with calls is written twice, the
second time with what they gave back, and the last one counts; so a call cannot be kept without
those of the same message. qwen: the id is the name of the file alone.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from casfs.errors import NotFound
from casfs.sessions.session_steps import CallRecord, StepRecord
from casfs.transcripts import json_lines, resume
from casfs.transcripts.json_lines import CutConversation, Lines, Value
from casfs.transcripts.messages import (
    Message,
    ModelMessage,
    PromptMessage,
    RequestedCall,
    ResultMessage,
    count,
    id_of_call,
    time_ms,
)

SHORT_ID = 8  # characters of the id in the name of a file


def cut(transcript: Path, step: StepRecord, call: CallRecord | None) -> CutConversation:
    """As `claude.cut`."""
    lines = json_lines.read(transcript)
    if not lines.values or "sessionId" not in lines.values[0]:
        raise NotFound(f"{transcript} does not begin with an id: of another version of gemini")
    end = _end(lines, step, call)
    json_lines.refuse_empty(any(_role(value) for value in lines.values[1:end]))
    old = str(lines.values[0]["sessionId"])
    id = str(uuid.uuid4())
    copy = transcript.with_name(transcript.name.replace(old[:SHORT_ID], id[:SHORT_ID]))
    if copy == transcript:
        raise NotFound(f"{transcript} is not named by its session: of another version of gemini")
    json_lines.write(copy, _with_id(lines, end, old, id))
    return CutConversation(id, copy, resume.command("gemini", id))


def _with_id(lines: Lines, end: int, old: str, new: str) -> Iterator[bytes]:
    """Yields the lines up to `end` under another id: each resume writes a first line again, and
    sets the id."""
    for raw, value in zip(lines.raw[:end], lines.values[:end], strict=True):
        changes = value.get("$set")
        is_set = isinstance(changes, dict) and "sessionId" in changes
        is_head = "sessionId" in value or is_set
        yield raw.replace(old.encode(), new.encode()) if is_head else raw


def cut_qwen(transcript: Path, step: StepRecord, call: CallRecord | None) -> CutConversation:
    """As `claude.cut`."""
    lines = json_lines.read(transcript)
    end = _end(lines, step, call)
    json_lines.refuse_empty(any(_role(value) for value in lines.values[:end]))
    id = str(uuid.uuid4())
    copy = transcript.with_name(f"{id}.jsonl")
    json_lines.write(copy, lines.raw[:end])
    return CutConversation(id, copy, resume.command("qwen", id))


def _end(lines: Lines, step: StepRecord, call: CallRecord | None) -> int:
    prompt = json_lines.prompt_line(list(prompts(lines)), step)
    if call is None:
        return prompt
    for number, value in enumerate(lines.values[prompt:], prompt):
        if any(_is_call(part, call) for part in _calls(value)):
            return _first_of_message(lines, number)
    raise json_lines.missing_call(call)


def _first_of_message(lines: Lines, number: int) -> int:
    id = lines.values[number].get("id")
    if id is None:
        return number
    return next(first for first, value in enumerate(lines.values) if value.get("id") == id)


def _role(value: Value) -> str | None:
    kind = value.get("type")
    return kind if kind in ("user", "gemini", "assistant") else None


def _content(value: Value) -> Any:
    message = value.get("message")
    return message.get("parts") if isinstance(message, dict) else value.get("content")


def prompts(lines: Lines) -> Iterator[tuple[int, str | None, str]]:
    """Yields the prompts of a person: the number of the line, the id, the text."""
    for number, value in enumerate(lines.values):
        content = _content(value)
        text = json_lines.joined_texts(content)
        # The results of tools stand in messages of the user, too.
        if value.get("type") == "user" and text:
            yield number, None, text


def _calls(value: Value) -> Iterator[Value]:
    """Yields the calls of a message, as {id, name, args}."""
    yield from _tool_calls(value)
    content = _content(value)
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("functionCall"), dict):
            yield part["functionCall"]


def _is_call(requested: Value, call: CallRecord) -> bool:
    name = str(requested.get("name"))
    return call.id in (requested.get("id"), id_of_call(name, requested.get("args")))


def messages(lines: Lines) -> Iterator[Message]:
    """Yields what a chat says; of a message that is written twice, the last one. Calls have the ids
    that are made of what was asked, as those of its hooks."""
    ids: dict[str, str] = {}
    for message in messages_of_qwen(lines):
        if isinstance(message, ModelMessage):
            calls = [replace(call, id=_made_id(call)) for call in message.calls]
            ids |= {old.id: new.id for old, new in zip(message.calls, calls, strict=True)}
            yield replace(message, calls=tuple(calls))
        elif isinstance(message, ResultMessage):
            yield replace(message, call_id=ids.get(message.call_id, message.call_id))
        else:
            yield message


def _made_id(call: RequestedCall) -> str:
    return id_of_call(call.tool, call.arguments)


def messages_of_qwen(lines: Lines) -> Iterator[Message]:
    """As `messages`, with the ids of the model."""
    last = {_id(value): number for number, value in enumerate(lines.values)}
    for number, value in enumerate(lines.values):
        if _id(value) is not None and last[_id(value)] != number:
            continue
        time = time_ms(value.get("timestamp"))
        content = _content(value)
        text = json_lines.joined_texts(content)
        if value.get("type") == "user" and text:
            yield PromptMessage(text, None, time)
        elif _role(value) in ("gemini", "assistant"):
            yield _model_message(value, text, time)
            for call in _tool_calls(value):
                if "result" in call:
                    result = json.dumps(call["result"], ensure_ascii=False, indent=1)
                    yield ResultMessage(str(call.get("id")), result, time_ms=time)


def _tool_calls(value: Value) -> list[Value]:
    calls = value.get("toolCalls")
    members = calls if isinstance(calls, list) else []
    return [call for call in members if isinstance(call, dict)]


def _id(value: Value) -> str | None:
    id = value.get("id")
    return id if isinstance(id, str) else None


def _model_message(value: Value, text: str, time: int) -> ModelMessage:
    figures = value.get("tokens") or value.get("usageMetadata")
    usage = figures if isinstance(figures, dict) else {}
    thoughts = value.get("thoughts")
    descriptions = [
        str(thought.get("description", ""))
        for thought in (thoughts if isinstance(thoughts, list) else [])
        if isinstance(thought, dict)
    ]
    return ModelMessage(
        text,
        "\n".join(descriptions),
        tuple(
            RequestedCall(str(call.get("id")), str(call.get("name")), call.get("args"))
            for call in _calls(value)
        ),
        model=value.get("model"),
        input_tokens=count(usage.get("input", usage.get("promptTokenCount"))),
        output_tokens=count(usage.get("output", usage.get("candidatesTokenCount"))),
        time_ms=time,
    )


def about(transcript: Path, lines: Lines) -> tuple[str, str]:
    """As `claude.about`. The directory stands in a file beside the chats."""
    root = transcript.parent.parent / ".project_root"
    try:
        directory = root.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise NotFound(f"{transcript} does not say in which directory it was") from None
    first = lines.values[0] if lines.values else {}
    return str(first.get("sessionId", transcript.stem)), directory
