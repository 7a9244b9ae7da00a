"""What listings show of a thread: the fields of its head, and the beginning of its task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.threads.state import created_ms, state
from casfs.threads.threads import Thread

MAX_TASK_CHARS = 60


def head_fields(thread: Thread) -> dict[str, Any]:
    """Returns the fields of the head alone, so that a damaged thread is listed as well."""
    return {
        "id": thread.id,
        "workflow": thread.fields.get("workflow", "?"),
        "status": state(thread),
        "head": thread.hash,
        "start": thread.fields.get("start"),
        "updatedAt": thread.fields.get("updatedAt", 0),
        "reason": thread.fault or thread.fields.get("reason"),
        "cause": thread.fields.get("cause"),
        "returnCode": thread.fields.get("returnCode"),
        "intent": thread.fields.get("intent"),
        "spent": thread.fields.get("spent"),
        "parent": thread.fields.get("parent"),
    }


def listing(store: Store, thread: Thread) -> dict[str, Any]:
    """Returns `head_fields`, and what else a list of threads shows."""
    return {
        **head_fields(thread),
        "createdAt": created_ms(thread.id),
        "role": (thread.fields.get("intent") or {}).get("role"),
        "task": task_line(store, thread.fields.get("start")),
        "name": thread.fields.get("name"),
        "archived": thread.is_archived,
        "pinned": thread.is_pinned,
    }


def title(store: Store, thread: Thread) -> str:
    """Returns the name that a person has given to a thread, else the beginning of its task."""
    name = thread.fields.get("name")
    return name or task_line(store, thread.fields.get("start")) or ""


def task_line(store: Store, start: str | None) -> str | None:
    """Returns the beginning of the task of a thread-start; None where it cannot be read."""
    try:
        node = store.node(start or "", "thread-start")
        return first_line(content_text(store, node.payload["input"]))
    except CasfsError:
        return None


def first_line(text: str) -> str:
    """Returns the first line of a text that is not blank, cut to MAX_TASK_CHARS."""
    line = next((line for line in text.splitlines() if line.strip()), "").strip()
    return line if len(line) <= MAX_TASK_CHARS else line[: MAX_TASK_CHARS - 1] + "…"


def content_text(store: Store, hash: str) -> str:
    """Returns the text of a content node. Raises NotFound, Corrupt."""
    text: str = store.node(hash, "content").payload["text"]
    return text


def detail_tokens(store: Store, detail: str) -> int | None:
    """Returns the model tokens that the detail of a step counts; None where it counts none."""
    tokens = detail_payload(store, detail).get("totalTokens")
    return tokens if isinstance(tokens, int) else None


def detail_payload(store: Store, hash: str) -> Mapping[str, Any]:
    """Returns what a detail says; nothing where it cannot be read."""
    with suppress(CasfsError):
        payload = store.node(hash).payload
        return payload if isinstance(payload, dict) else {}
    return {}
