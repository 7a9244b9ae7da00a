"""What the transcript of an agent says of a message to it: whether the agent has heard it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from typing import Any

from casfs.errors import Corrupt
from casfs.system import foreign_json
from casfs.transcripts import json_lines

MAX_BYTES = 64 << 20  # that are searched, from the end
HELD = "Held peer message"  # as claude says of what its person has to allow


class Trace(Enum):
    """NONE: nothing of it; QUEUED: the agent has it, its model not yet; HELD: until the agent's
    person allows it; HEARD: it stands in the conversation."""

    NONE = 0
    QUEUED = 1
    HELD = 2
    HEARD = 3


def trace(transcript: str | None, offset: int, mark: str) -> Trace:
    """Returns the furthest that a message with a mark has come, by the lines behind a byte."""
    if transcript is None:
        return Trace.NONE
    try:
        with json_lines.opened(transcript) as file:
            end = file.seek(0, os.SEEK_END)
            # It was written anew where it is shorter.
            file.seek(max(offset if offset <= end else 0, end - MAX_BYTES))
            data = file.read(MAX_BYTES)
    except (OSError, Corrupt):
        return Trace.NONE
    lines = [line for line in data.splitlines() if mark.encode() in line]
    return max(map(_trace_of_line, lines), key=lambda each: each.value, default=Trace.NONE)


def _trace_of_line(line: bytes) -> Trace:
    try:
        value = foreign_json.parse(line)
    except ValueError:
        return Trace.NONE
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "queue-operation":
        return Trace.QUEUED
    if kind == "system":
        return Trace.HELD if HELD in str(value.get("content")) else Trace.NONE
    return Trace.HEARD if kind is not None and _is_said(kind, value) else Trace.NONE


def _is_said(kind: str, value: Mapping[str, Any]) -> bool:
    """Whether a line is part of what the model is told, and not what a tool has printed, or what a
    hook has."""
    if kind == "response_item":  # codex
        payload = value.get("payload")
        return isinstance(payload, dict) and payload.get("type") == "message"
    if kind == "attachment":
        attachment = value.get("attachment")
        return isinstance(attachment, dict) and attachment.get("type") != "hook_success"
    message = value.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    blocks = content if isinstance(content, list) else []
    is_result = any(isinstance(block, dict) and "tool_use_id" in block for block in blocks)
    return kind == "user" and not is_result
