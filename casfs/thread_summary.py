"""What listings show of a thread: the fields of its head, and the beginning of its task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from casfs.errors import CasfsError
from casfs.store import Store
from casfs.thread_state import created_ms, state
from casfs.threads import Thread

MAX_TASK_CHARS = 60


def head_fields(found: Thread) -> dict[str, Any]:
    """Returns the fields of the head alone, so that a damaged thread is listed as well."""
    return {
        "id": found.id,
        "workflow": found.fields.get("workflow", "?"),
        "status": state(found),
        "head": found.hash,
        "start": found.fields.get("start"),
        "updatedAt": found.fields.get("updatedAt", 0),
        "reason": found.fault or found.fields.get("reason"),
        "cause": found.fields.get("cause"),
        "returnCode": found.fields.get("returnCode"),
        "intent": found.fields.get("intent"),
        "spent": found.fields.get("spent"),
        "parent": found.fields.get("parent"),
    }


def listing(store: Store, found: Thread) -> dict[str, Any]:
    """Returns `head_fields`, and what else a list of threads shows."""
    return {
        **head_fields(found),
        "createdAt": created_ms(found.id),
        "role": (found.fields.get("intent") or {}).get("role"),
        "task": task_line(store, found.fields.get("start")),
        "name": found.fields.get("name"),
    }


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
    found: str = store.node(hash, "content").payload["text"]
    return found


def detail_tokens(store: Store, detail: str) -> int | None:
    """Returns the model tokens that the detail of a step counts; None where it counts none."""
    found = detail_payload(store, detail).get("totalTokens")
    return found if isinstance(found, int) else None


def detail_payload(store: Store, hash: str) -> Mapping[str, Any]:
    """Returns what a detail says; nothing where it cannot be read."""
    with suppress(CasfsError):
        payload = store.node(hash).payload
        return payload if isinstance(payload, dict) else {}
    return {}
