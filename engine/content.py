"""Content nodes: a text and its artifacts. Prompts, outputs, answers and summaries are these."""

from __future__ import annotations

from collections.abc import Sequence

from casfs.digest import NodeHash
from casfs.store import Store
from casfs.thread_summary import content_text
from casfs.write_batch import Batch

TYPE = "content"
text = content_text


def put(into: Batch | Store, text: str, artifacts: Sequence[str] = ()) -> NodeHash:
    """Puts a content node; returns its hash."""
    return into.put_node(TYPE, {"text": text, "artifacts": list(artifacts)}).hash
