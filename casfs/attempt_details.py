"""The failed attempts at a step, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from casfs.errors import CasfsError
from casfs.store import Store

MAX_STREAM_BYTES = 64 << 10  # of a program's output, its end
MAX_LINE_CHARS = 200


def read(store: Store, hash: str) -> dict[str, Any]:
    """Returns an attempt's detail: its `hash`, `type` (None: a blob) and what is text in it."""
    try:
        node = store.node(hash)
    except CasfsError:
        return {"hash": hash, "type": None}
    found: dict[str, Any] = {"hash": hash, "type": node.type}
    payload = node.payload
    if node.type == "content":
        found["text"] = payload["text"]
    elif node.type == "command-detail":
        found |= {name: payload[name] for name in ("argv", "exitCode", "durationMs")}
        found |= {name: _text(store, payload[name]) for name in ("stdout", "stderr")}
    return found


def line(attempt: Mapping[str, Any]) -> str:
    """Returns one line on how it ended."""
    if "exitCode" in attempt:
        said = (attempt["stderr"] or attempt["stdout"] or "").strip().splitlines()
        last = f": {said[-1][:MAX_LINE_CHARS]}" if said else ""
        return f"{attempt['argv'][0]} exited with {attempt['exitCode']}{last}"
    text = (attempt.get("text") or "").strip().split("\n")[0]
    return text[:MAX_LINE_CHARS] or f"{attempt['type'] or 'blob'} {attempt['hash']}"


def page(attempt: Mapping[str, Any]) -> Iterator[str]:
    """Yields all that it said."""
    yield line(attempt)
    for name in ("stdout", "stderr"):
        if text := (attempt.get(name) or "").rstrip():
            yield f"{name}:\n{text}"
    if rest := (attempt.get("text") or "").strip().partition("\n")[2]:
        yield rest


def _text(store: Store, hash: str) -> str | None:
    try:
        data = store.get(hash)
    except CasfsError:
        return None
    return data[-MAX_STREAM_BYTES:].decode("utf-8", "replace")
