"""The content nodes of a thread: a text, and what belongs to it. What was asked, said, answered
and summed up is kept as these."""

from __future__ import annotations

from collections.abc import Sequence

from casfs.store import Store
from casfs.write_batch import Batch

TYPE = "content"


def put(into: Batch | Store, text: str, artifacts: Sequence[str] = ()) -> str:
    """The hash of the node."""
    return into.put_node(TYPE, {"text": text, "artifacts": list(artifacts)}).hash


def text(store: Store, hash: str) -> str:
    """Raises NotFound, Corrupt."""
    found: str = store.node(hash, TYPE).payload["text"]
    return found
