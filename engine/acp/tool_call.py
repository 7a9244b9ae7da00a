"""A tool call of an agent as a node."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from casfs.digest import NodeDigest
from casfs.store import Store
from casfs.write_batch import Batch
from engine import content
from engine.acp import protocol

MAX_NAME_CHARS = 200
RECORDED = {"toolCallId", "sessionUpdate", "title", "kind", "status", "rawInput", "locations"}


@dataclass
class ToolCall:
    """`raw`: the members of its updates, the newest of each."""

    raw: dict[str, Any] = field(default_factory=dict)
    begin: float = field(default_factory=time.monotonic)
    duration_ms: int = 0
    hash: str | None = None


def put_call(store: Store, call: ToolCall, root: str) -> str:
    """Puts a `react-tool-call`; a path below `root` is recorded relative to it. What has no member
    of its own is recorded as it came."""
    known, recorded = protocol.read("ToolCallUpdate", call.raw), set(RECORDED)
    parts = known.content or []
    diffs = [one for one in parts if one.type == "diff"]
    texts = [one.content.text for one in parts if getattr(one, "content", one).type == "text"]
    if len(texts) + len(diffs) == len(parts):
        recorded.add("content")
    if not texts and known.raw_output is not None:
        texts = [
            known.raw_output if isinstance(known.raw_output, str) else as_json(known.raw_output)
        ]
        recorded.add("rawOutput")
    read = protocol.dump(known)
    is_read = {name for name in recorded if call.raw.get(name) == read.get(name)} | {
        "sessionUpdate"
    }
    with store.batch() as batch:
        given = {} if known.raw_input is None else known.raw_input
        payload: dict[str, Any] = {
            "name": (known.title or known.kind or "?")[:MAX_NAME_CHARS],
            "arguments": content.put(batch, as_json(given)),
            "result": content.put(batch, "\n".join(texts)),
            "durationMs": call.duration_ms,
            "kind": known.kind,
            "status": known.status,
            "locations": [
                {"path": one.path.removeprefix(root), "line": one.line}
                for one in known.locations or ()
            ],
            "diffs": [
                {
                    "path": one.path.removeprefix(root),
                    "old": None if one.old_text is None else batch.put(one.old_text.encode()).hash,
                    "new": batch.put(one.new_text.encode()).hash,
                }
                for one in diffs
            ],
        }
        if more := {name: one for name, one in call.raw.items() if name not in is_read}:
            payload["more"] = content.put(batch, as_json(more))
        return put(batch, store, "react-tool-call", payload).hash


def put(batch: Batch, store: Store, type: str, payload: Mapping[str, Any]) -> NodeDigest:
    """Puts a node, without members that are empty and those that a store of an older casfs does
    not know."""
    known = store.registry.document(store.registry.current(type))
    optional = known["properties"].keys() - set(known["required"])
    given = {
        name: one
        for name, one in payload.items()
        if name in known["required"] or (name in optional and one)
    }
    return batch.put_node(type, given)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
