"""The transcript of Claude Code (version 2.1), cut: a copy that ends before a prompt or a call.

It has a line for each content of a message. A copy under another id is enough to resume from: what
stands in its lines may stay as it is. Lines of a later compaction, mode or cost are left out with
all that follows the cut.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from casfs.errors import NotFound
from casfs.rewind.session_steps import CallRecord, StepRecord
from casfs.system.files import os_errors, replacing

SUFFIX = ".jsonl"


class CutConversation(NamedTuple):
    """`id`: of the new session; `transcript`: its file; `command`: what goes on from there."""

    id: str
    transcript: Path
    command: str


def cut(transcript: Path, step: StepRecord, call: CallRecord | None) -> CutConversation:
    """Copies a transcript up to before the prompt of a step, or before one of its calls, under a
    new session id. Raises NotFound, Failed."""
    with os_errors(f"cannot read {transcript}"):
        try:
            lines = transcript.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            raise NotFound(f"the agent has deleted its transcript {transcript}") from None
    values = [_value(line) for line in lines]
    if call is None:
        end = _prompt_line(values, step)
        kept = lines[:end]
    else:
        end = _call_line(values, call)
        kept = [*lines[:end], *_results_of_kept(lines, values, end)]
    if not any(_is_message(value) for value in values[:end]):
        raise NotFound("nothing is left of the conversation: begin a new session")
    id = str(uuid.uuid4())
    copy = transcript.with_name(id + SUFFIX)
    with os_errors(f"cannot write {copy}"), replacing(copy, durable=True) as file:
        os.fchmod(file.fileno(), 0o600)
        file.writelines(kept)
    return CutConversation(id, copy, f"claude --resume {id}")


def _value(line: bytes) -> dict[str, Any]:
    """Returns a line as JSON; an empty object for one that is cut off, or of another form."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _prompt_line(values: list[dict[str, Any]], step: StepRecord) -> int:
    """Returns the line of a prompt. Raises NotFound."""
    by_text = None
    for number, value in enumerate(values):
        if value.get("type") != "user" or value.get("isMeta") or _result_ids(value):
            continue
        if step.prompt_id is not None and value.get("promptId") == step.prompt_id:
            return number
        if _text(value) == step.prompt:
            by_text = number
    if by_text is None:
        raise NotFound(f"prompt {step.index} is not in the agent's transcript")
    return by_text


def _call_line(values: list[dict[str, Any]], call: CallRecord) -> int:
    for number, value in enumerate(values):
        if any(part.get("id") == call.id for part in _parts(value, "tool_use")):
            return number
    raise NotFound(f"call {call.step}.{call.number} is not in the agent's transcript")


def _results_of_kept(lines: list[bytes], values: list[dict[str, Any]], end: int) -> Iterator[bytes]:
    """Yields the lines after `end` with results of calls before it, which ran side by side."""
    requested = {part.get("id") for value in values[:end] for part in _parts(value, "tool_use")}
    answered = {id for value in values[:end] for id in _result_ids(value)}
    for line, value in zip(lines[end:], values[end:], strict=True):
        ids = set(_result_ids(value))
        if ids and ids <= requested - answered:
            yield line


def _is_message(value: dict[str, Any]) -> bool:
    return value.get("type") in ("user", "assistant")


def _parts(value: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    message = value.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, dict) and part.get("type") == kind]


def _result_ids(value: dict[str, Any]) -> list[Any]:
    return [part.get("tool_use_id") for part in _parts(value, "tool_result")]


def _text(value: dict[str, Any]) -> str:
    message = value.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in _parts(value, "text"))
