"""Content nodes: a text and its artifacts. Prompts, outputs, answers and summaries are these."""

from __future__ import annotations

from collections.abc import Sequence

from casfs.digest import NodeHash
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.threads.summary import content_text

TYPE = "content"
text = content_text


def put(into: Batch | Store, text: str, artifacts: Sequence[str] = ()) -> NodeHash:
    """Puts a content node; returns its hash."""
    return into.put_node(TYPE, {"text": text, "artifacts": list(artifacts)}).hash
