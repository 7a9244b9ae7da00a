"""What an outside agent reports, in one form for all agents."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from casfs.attach import spool
from casfs.errors import Invalid

MAX_PATH_BYTES = 4095  # of Linux
MAX_NAME_BYTES = 255
MAX_ID_CHARS = 128
MAX_NAMED_CHARS = 64  # of an event's name in a message
MAX_DURATION_MS = 2**53 - 1  # the largest integer that a node can hold
PROMPT_ID = re.compile("[0-9A-Za-z_-]{1,64}")


class Kind(Enum):
    BEGIN = "begin"  # a session begins, or is resumed
    PROMPT = "prompt"
    CALL = "call"  # a tool is about to run
    RESULT = "result"  # it has run
    ANSWER = "answer"  # the agent has answered the prompt
    END = "end"  # the session ends; it may be resumed later
    CHECK = "check"  # nobody reports it: a person wants to know which calls are over


@dataclass(frozen=True)
class ToolCall:
    """`id`: by which a result names its call; `kind`: what the tool does, as `react-tool-call` has
    it; `paths`: the files that it changes, None where it may change any; `writes`: whether it may
    change files at all."""

    id: str
    name: str
    arguments: Any
    kind: str
    writes: bool
    paths: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ToolResult:
    text: str
    failed: bool
    duration_ms: int = 0


@dataclass(frozen=True)
class SessionEvent:
    """`session`: the agent's own id of it; `directory`: in which it works; `reported_ms`: since
    1970 UTC; `pid`: the agent's process; `text`: the prompt, or the answer; `id`: of the prompt, as
    the agent's transcript has it; `asks`: it may ask a person whether a call is to be made."""

    kind: Kind
    agent: str
    session: str
    directory: str
    reported_ms: int
    pid: int
    transcript: str | None = None
    text: str = ""
    id: str | None = None
    call: ToolCall | None = None
    result: ToolResult | None = None
    asks: bool = True


Reader = Callable[[spool.Event, Mapping[str, Any]], SessionEvent | None]


def read(event: spool.Event, readers: Mapping[str, Reader]) -> SessionEvent | None:
    """Returns what an event of the spool says; None where it is of no interest. Raises Invalid,
    which names it, for one that is damaged or from a newer agent."""
    if event.fault is not None:
        raise Invalid(event.fault)
    reader = readers.get(event.agent)
    if reader is None:
        raise Invalid(f"no agent {event.agent!r} can be attached")
    try:
        return reader(event, event.payload)
    # Of any kind: numbers without an end and texts without a limit fail in ways that no list
    # of errors names, and one event must not end the recording of all others.
    except Exception as error:
        name = str(event.payload.get("hook_event_name"))[:MAX_NAMED_CHARS]
        raise Invalid(f"{event.agent} reported {name!r} in an unknown form: {error!r}") from None


def session_id(value: Any) -> str:
    """Returns the id of a session. Raises ValueError."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS:
        raise ValueError("session id")
    return value


def absolute_path(value: Any) -> str:
    """Returns the path of a session's directory. Raises ValueError for what is none."""
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise ValueError("cwd")
    # A system call with a longer one fails, in whatever asks about the directory.
    names = value.encode("utf-8", "surrogateescape").split(b"/")
    if sum(map(len, names)) + len(names) > MAX_PATH_BYTES or max(map(len, names)) > MAX_NAME_BYTES:
        raise ValueError("cwd")
    return value


def prompt_id(value: Any) -> str | None:
    """Returns the id of a prompt; None for what is no id: a step's is not searched for secrets."""
    return value if isinstance(value, str) and PROMPT_ID.fullmatch(value) else None


def duration_ms(value: Any) -> int:
    """Returns a duration in milliseconds; 0 for what is none: the call counts all the same."""
    if isinstance(value, int | float) and 0 <= value <= MAX_DURATION_MS:
        return int(value)
    return 0


def as_text(value: Any) -> str:
    """Returns what a tool gave back as text: a text itself, else JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
