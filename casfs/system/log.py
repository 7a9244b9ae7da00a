"""The log of background processes: JSON lines in `log/<process>.jsonl` of the store.

For diagnosis; never content, never in the CAS (seed 000 keeps its debug log out of it for the
same reason). A line is written whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from casfs import canonical
from casfs.system.clock import now_ms

FSCK_LOG = "fsck.jsonl"  # a line for each integrity check
MAX_LINE_BYTES = 4096


class Log(Protocol):
    def __call__(self, event: str, **fields: Any) -> None: ...


def silent(event: str, **fields: Any) -> None:
    """A log that discards its lines."""


def to_file(path: Path) -> Log:
    """Returns a log that appends to `path`; several processes may share it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def log(event: str, **fields: Any) -> None:
        texts = {key: _json_value(value) for key, value in fields.items()}
        line = {"time": now_ms(), "pid": os.getpid(), "event": event, **texts}
        with suppress(OSError):  # a full disk must not end the process that logs it
            os.write(fd, canonical.encode(line) + b"\n")

    return log


def last_event(path: Path, fields: Collection[str]) -> dict[str, Any] | None:
    """Returns the last line of a log, which must have these fields with numbers; else None."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_LINE_BYTES))
            event = json.loads(file.read().splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return None
    is_sound = isinstance(event, dict) and all(type(event.get(field)) is int for field in fields)
    return event if is_sound else None


def _json_value(value: Any) -> Any:
    """Returns `value` when JSON can hold it, else its text; invalid UTF-8 becomes U+FFFD."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= canonical.MAX_INT:
        return value
    return str(value).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
