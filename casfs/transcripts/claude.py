"""The transcript of Claude Code (version 2.1), cut: a copy that ends before a prompt or a call.

It has a line for each content of a message. A copy under another id is enough to resume from: what
stands in its lines may stay as it is. Lines of a later compaction, mode or cost are left out with
all that follows the cut.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
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
    Summary,
    count,
    time_ms,
)

MAX_META_BYTES = 1 << 16


def cut(transcript: Path, step: StepRecord, call: CallRecord | None) -> CutConversation:
    """Copies a transcript up to before the prompt of a step, or before one of its calls, under a
    new session id. Raises NotFound, Failed."""
    lines = json_lines.read(transcript)
    if call is None:
        end = json_lines.prompt_line(list(prompts(lines)), step)
        kept = lines.raw[:end]
    else:
        end = _call_line(lines, call)
        kept = [*lines.raw[:end], *_results_of_kept(lines, end)]
    json_lines.refuse_empty(any(map(_is_message, lines.values[:end])))
    id = str(uuid.uuid4())
    copy = transcript.with_name(f"{id}.jsonl")
    json_lines.write(copy, kept)
    return CutConversation(id, copy, resume.command("claude", id))


def prompts(lines: Lines) -> Iterator[tuple[int, str | None, str]]:
    """Yields the prompts of a person: the number of the line, the id, the text."""
    for number, value in enumerate(lines.values):
        if value.get("type") == "user" and not value.get("isMeta") and not _result_ids(value):
            yield number, value.get("promptId"), json_lines.joined_texts(_content(value))


def _call_line(lines: Lines, call: CallRecord) -> int:
    for number, value in enumerate(lines.values):
        if any(part.get("id") == call.id for part in _parts(value, "tool_use")):
            return number
    raise json_lines.missing_call(call)


def _results_of_kept(lines: Lines, end: int) -> Iterator[bytes]:
    """Yields the lines after `end` with results of calls before it, which ran side by side."""
    before = lines.values[:end]
    requested = {part.get("id") for value in before for part in _parts(value, "tool_use")}
    answered = {id for value in before for id in _result_ids(value)}
    for line, value in zip(lines.raw[end:], lines.values[end:], strict=True):
        ids = set(_result_ids(value))
        if ids and ids <= requested - answered:
            yield line


def _is_message(value: Value) -> bool:
    return value.get("type") in ("user", "assistant")


def _content(value: Value) -> Any:
    message = value.get("message")
    return message.get("content") if isinstance(message, dict) else None


def _parts(value: Value, kind: str) -> list[Value]:
    return json_lines.parts(_content(value), kind)


def _result_ids(value: Value) -> list[Any]:
    return [part.get("tool_use_id") for part in _parts(value, "tool_result")]


def subagents(transcript: Path) -> list[Path]:
    """Returns the transcripts of the subagents of a session, oldest first."""
    paths = (transcript.parent / transcript.stem / "subagents").glob("agent-*.jsonl")
    return json_lines.oldest_first(paths)


def calling_id(subagent: Path) -> str | None:
    """Returns the id of the call that began a subagent; None where it is not known."""
    about = json_lines.read_head(subagent.with_suffix(".meta.json"), MAX_META_BYTES)
    values = json_lines.parsed(about.replace(b"\n", b" ")).values
    id = values[0].get("toolUseId") if values else None
    return id if isinstance(id, str) else None


def messages(lines: Lines) -> Iterator[Message]:
    """Yields what a transcript says. A message of the model has a line for each of its parts, with
    the same id and the same usage."""
    # What older versions have in it of subagents.
    return _messages(value for value in lines.values if not value.get("isSidechain"))


def subagent_messages(lines: Lines) -> Iterator[Message]:
    """Yields what the transcript of a subagent says."""
    return _messages(lines.values)


def _messages(values: Iterable[Value]) -> Iterator[Message]:
    blocks: list[Value] = []
    for value in values:
        is_part = value.get("type") == "assistant"
        if blocks and (not is_part or _message_id(value) != _message_id(blocks[0])):
            yield _model_message(blocks)
            blocks = []
        if is_part:
            blocks.append(value)
        elif value.get("type") == "user":
            yield from _user_messages(value)
    if blocks:
        yield _model_message(blocks)


def _message_id(value: Value) -> Any:
    message = value.get("message")
    return message.get("id") if isinstance(message, dict) else None


def _user_messages(value: Value) -> Iterator[Message]:
    time = time_ms(value.get("timestamp"))
    results = _parts(value, "tool_result")
    for part in results:
        text = json_lines.joined_texts(part.get("content"))
        yield ResultMessage(str(part.get("tool_use_id")), text, bool(part.get("is_error")), time)
    text = json_lines.joined_texts(_content(value))
    if value.get("isCompactSummary"):
        yield Summary(text)
    elif not results and not value.get("isMeta"):
        yield PromptMessage(text, value.get("promptId"), time)


def _model_message(blocks: list[Value]) -> ModelMessage:
    first = blocks[0].get("message")
    message = first if isinstance(first, dict) else {}
    figures = message.get("usage")
    usage = figures if isinstance(figures, dict) else {}
    cached = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    parts = [part for block in blocks for part in _parts(block, "text")]
    thoughts = [part for block in blocks for part in _parts(block, "thinking")]
    calls = [part for block in blocks for part in _parts(block, "tool_use")]
    return ModelMessage(
        "\n".join(str(part.get("text", "")) for part in parts),
        "\n".join(str(part.get("thinking", "")) for part in thoughts),
        tuple(
            RequestedCall(str(part.get("id")), str(part.get("name")), part.get("input"))
            for part in calls
        ),
        model=json_lines.text_or_none(message.get("model")),
        input_tokens=sum(count(usage.get(name)) for name in cached),
        output_tokens=count(usage.get("output_tokens")),
        time_ms=time_ms(blocks[0].get("timestamp")),
    )


def about(transcript: Path, lines: Lines) -> tuple[str, str]:
    """Returns the id of a session and the directory in which it began. Raises NotFound."""
    for value in lines.values:
        if isinstance(value.get("cwd"), str):
            return transcript.stem, value["cwd"]
    raise NotFound(f"{transcript} does not say in which directory it was")
