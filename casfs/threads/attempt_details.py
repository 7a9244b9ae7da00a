"""The failed attempts at a step, as text, and the turns that a record holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from casfs.digest import NodeHash, is_hash
from casfs.errors import CasfsError
from casfs.store.store import Store

MAX_STREAM_BYTES = 64 << 10  # of a program's output, its end
MAX_LINE_CHARS = 200
HOLDERS = {  # of turns, by type: the member with their hashes
    "content": "artifacts",
    "react-session": "turns",
    "hermes-detail": "turns",
    "cursor-detail": "turns",
}


def read(store: Store, hash: str) -> dict[str, Any]:
    """Returns an attempt's entry: its `hash`, `type` (None: a blob) and what is text in it. That of
    a content node is how the attempt ended, beside what its agent's own record says."""
    try:
        node = store.node(hash)
    except CasfsError:
        return {"hash": hash, "type": None}
    attempt: dict[str, Any] = {"hash": hash, "type": node.type}
    payload = node.payload
    if node.type == "content":
        record = detail(store, hash)
        if record is not None:
            attempt = {**read(store, record), **attempt, "detail": record}
        attempt["text"] = payload["text"]
    elif node.type == "command-detail":
        attempt |= {name: payload[name] for name in ("argv", "exitCode", "durationMs")}
        attempt |= {name: _text(store, payload[name]) for name in ("stdout", "stderr")}
    return attempt


def detail(store: Store, hash: str) -> str | None:
    """Returns the agent's own record in an attempt's entry: the entry itself, or of a content node
    its last artifact, unless that is a turn."""
    with suppress(CasfsError):
        node = store.node(hash)
        if node.type != "content":
            return hash
        last = node.payload["artifacts"][-1:]
        type = store.node(last[0]).type if last else "content"
        return None if type == "content" or is_turn(type) else last[0]
    return hash


def turns(store: Store, hash: str) -> list[NodeHash]:
    """Returns the turns that a detail or an attempt's entry holds, oldest first."""
    return list(dict.fromkeys(_turns_in(store, hash, is_entry=True)))


def _turns_in(store: Store, hash: str, is_entry: bool) -> Iterator[NodeHash]:
    with suppress(CasfsError):  # a blob
        node = store.node(hash)
        held = node.payload[HOLDERS[node.type]] if node.type in HOLDERS else ()
        for below in filter(is_hash, held):  # an old `cursor-detail` has its turns inline
            yield from _turns_in(store, below, is_entry=False)
        if not held and not is_entry and (node.type == "content" or is_turn(node.type)):
            yield node.hash


def is_turn(type: str) -> bool:
    return type.endswith("-turn")


def line(attempt: Mapping[str, Any]) -> str:
    """Returns one line on how it ended."""
    text = (attempt.get("text") or "").strip().split("\n")[0]
    if "exitCode" in attempt and not text:
        said = (attempt["stderr"] or attempt["stdout"] or "").strip().splitlines()
        last = f": {said[-1][:MAX_LINE_CHARS]}" if said else ""
        return f"{attempt['argv'][0]} exited with {attempt['exitCode']}{last}"
    return text[:MAX_LINE_CHARS] or f"{attempt['type'] or 'blob'} {attempt['hash']}"


def page(attempt: Mapping[str, Any]) -> Iterator[str]:
    """Yields all that it said."""
    yield line(attempt)
    for name in ("stdout", "stderr"):
        if text := (attempt.get(name) or "").rstrip():
            yield f"{name}:\n{text}"
    if body := (attempt.get("text") or "").strip().partition("\n")[2]:
        yield body


def _text(store: Store, hash: str) -> str | None:
    try:
        data = store.get(hash)
    except CasfsError:
        return None
    return data[-MAX_STREAM_BYTES:].decode("utf-8", "replace")
