"""The rollout of Codex (version 0.169), cut.

The id of a session stands in the name of its file and in the first line, `session_meta`; where only
the name is changed, it goes on under the old one. The context of a turn stands before its prompt,
and does no harm without it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

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
    Summary,
    count,
    parsed_arguments,
    time_ms,
)

CALLS = ("function_call", "custom_tool_call", "local_shell_call")
META = "session_meta"
SESSIONS = "sessions"
SEALED = "encrypted_content"
MAX_META_BYTES = 1 << 20  # of the first line, which has the instructions
ID_CHARS = 36


def cut(transcript: Path, step: StepRecord, call: CallRecord | None) -> CutConversation:
    """As `claude.cut`."""
    lines = json_lines.read(transcript)
    if not lines.values or lines.values[0].get("type") != META:
        raise NotFound(f"{transcript} does not begin with {META}: of another version of codex")
    if call is None:
        end = json_lines.prompt_line(list(prompts(lines)), step)
    else:
        end = _call_line(lines, call)
    json_lines.refuse_empty(any(_item(value) for value in lines.values[:end]))
    old = str(lines.values[0]["payload"]["id"])
    id = str(uuid.uuid4())
    name = transcript.name.removesuffix(json_lines.COMPRESSED)
    copy = transcript.with_name(name.replace(old, id))
    if old not in name:
        raise NotFound(f"{transcript} is not named by its session: of another version of codex")
    payload = {**lines.values[0]["payload"], "id": id, "session_id": id}
    meta = {**lines.values[0], "payload": payload}
    json_lines.write(copy, [json.dumps(meta).encode() + b"\n", *lines.raw[1:end]])
    return CutConversation(id, copy, resume.command("codex", id))


def _item(value: Value) -> Value:
    """Returns what a line tells a model; an empty object for any other line."""
    payload = value.get("payload")
    is_item = value.get("type") == "response_item" and isinstance(payload, dict)
    return payload if is_item else {}  # type: ignore[return-value]


def prompts(lines: Lines) -> Iterator[tuple[int, str | None, str]]:
    """Yields the prompts of a person: the number of the line, the id, the text."""
    turn: str | None = None
    for number, value in enumerate(lines.values):
        payload = value.get("payload")
        if value.get("type") == "turn_context" and isinstance(payload, dict):
            turn = payload.get("turn_id")
        item = _item(value)
        if item.get("type") == "message" and item.get("role") == "user":
            text = json_lines.joined_texts(item.get("content"))
            # What codex itself says of the directory stands in such messages, too.
            if not text.startswith("<"):
                yield number, turn, text


def _call_line(lines: Lines, call: CallRecord) -> int:
    for number, value in enumerate(lines.values):
        item = _item(value)
        if item.get("type") in CALLS and item.get("call_id") == call.id:
            return number
    raise json_lines.missing_call(call)


def subagents(transcript: Path) -> list[Path]:
    """Returns the rollouts of the subagents of a session, oldest first. Each names its parent."""
    id = json_lines.stem(transcript)[-ID_CHARS:]
    # `sessions/YYYY/MM/DD/rollout-TIME-ID.jsonl`: what began later has a later name.
    top = transcript.parents[3] if len(transcript.parts) > 4 else transcript
    if top.name != SESSIONS:  # who reports it may name any file
        return []
    rollouts = {path for path in top.glob("*/*/*/rollout-*.jsonl*") if path.name > transcript.name}
    # While codex goes on with one that it has compressed, both are there.
    once = [path for path in rollouts if path.with_suffix("") not in rollouts]
    return [path for path in json_lines.oldest_first(once) if parent(path) == id]


def parent(rollout: Path) -> str | None:
    """Returns the id of the session of which a rollout is of a subagent; None for any other."""
    head = json_lines.read_head(rollout, MAX_META_BYTES)
    first = json_lines.parsed(head.partition(b"\n")[0]).values
    payload = first[0].get("payload") if first else None
    return payload.get("parent_thread_id") if isinstance(payload, dict) else None


def subagent_messages(lines: Lines) -> Iterator[Message]:
    """Yields what the rollout of a subagent says of itself: by default it begins with a copy of
    all that its parent has said. What it was asked is a message of another agent."""
    tasks = [number for number, value in enumerate(lines.values) if _is_task(value)]
    begins_with_copy = bool(lines.values) and lines.values[0].get("type") == META
    begin = 0
    if begins_with_copy:
        begin = tasks[0] if tasks else len(lines.values)
    for number in tasks:
        value = lines.values[number]
        content = _item(value).get("content")
        sealed = [part.get("encrypted_content") for part in json_lines.parts(content, SEALED)]
        # A server that seals it gives a text without a space.
        readable = [text for text in sealed if isinstance(text, str) and " " in text]
        text = json_lines.joined_texts(content) + "".join(readable)
        yield PromptMessage(text, None, time_ms(value.get("timestamp")))
    yield from messages(Lines(lines.raw[begin:], lines.values[begin:]))


def _is_task(value: Value) -> bool:
    return _item(value).get("type") == "agent_message"


def messages(lines: Lines) -> Iterator[Message]:
    """Yields what a rollout says. The tokens of an answer stand in a record of their own behind
    it."""
    by_line = {number: (id, text) for number, id, text in prompts(lines)}
    pending: ModelMessage | None = None
    model: str | None = None
    for number, value in enumerate(lines.values):
        time = time_ms(value.get("timestamp"))
        payload = value.get("payload")
        fields = payload if isinstance(payload, dict) else {}
        item = _item(value)
        if value.get("type") == "turn_context":
            model = json_lines.text_or_none(fields.get("model"))
        elif value.get("type") == "compacted":
            yield Summary(str(fields.get("message", "")))
        elif number in by_line:
            id, text = by_line[number]
            yield PromptMessage(text, id, time)
        elif item.get("role") == "assistant" or item.get("type") in (*CALLS, "reasoning"):
            pending = _added(pending or ModelMessage(model=model, time_ms=time), item)
        elif str(item.get("type")).endswith("_call_output"):
            if pending is not None:
                yield pending
            pending = None
            output = item.get("output")
            text = output if isinstance(output, str) else json_lines.joined_texts(output)
            yield ResultMessage(str(item.get("call_id")), text, time_ms=time)
        elif pending is not None and value.get("type") == "token_usage_record":
            yield _with_usage(pending, fields)
            pending = None
    if pending is not None:
        yield pending


def _added(message: ModelMessage, item: Value) -> ModelMessage:
    """Returns the answer of the model with one more part of it."""
    if item.get("type") == "reasoning":
        thoughts = json_lines.joined_texts(item.get("summary"))
        return replace(message, thoughts="\n".join(filter(None, (message.thoughts, thoughts))))
    if item.get("type") in CALLS:
        arguments = parsed_arguments(item.get("arguments") or item.get("input") or "null")
        call = RequestedCall(str(item.get("call_id")), str(item.get("name")), arguments)
        return replace(message, calls=(*message.calls, call))
    text = json_lines.joined_texts(item.get("content"))
    return replace(message, text="\n".join(filter(None, (message.text, text))))


def _with_usage(message: ModelMessage, fields: Value) -> ModelMessage:
    usage = fields.get("usage")
    figures = usage if isinstance(usage, dict) else {}
    return replace(
        message,
        input_tokens=count(figures.get("input_tokens")),
        output_tokens=count(figures.get("output_tokens")),
    )


def about(transcript: Path, lines: Lines) -> tuple[str, str]:
    """As `claude.about`."""
    first = lines.values[0] if lines.values else {}
    payload = first.get("payload")
    if first.get("type") == META and isinstance(payload, dict) and {"id", "cwd"} <= payload.keys():
        return str(payload["id"]), str(payload["cwd"])
    raise NotFound(f"{transcript} does not say in which directory it was")
