"""A checkpoint from the one before it and a new root, without looking at the whole tree: what
the tree holds is counted from what the last one held and from what changed.
"""

from __future__ import annotations

from typing import Any

from . import checkpoint
from .backend import Head
from .batch import Batch
from .checkpoint import Checkpoint
from .store import Store
from .trees import tree


def put_checkpoint(
    store: Store, batch: Batch, name: str, last: str, root: str, message: str
) -> Checkpoint:
    """Record `root`, whose nodes are stored, under `name`; the caller commits the batch.

    `last`: the checkpoint node that the work began from, not always the newest of the name.
    """
    begun = store.node(last, "checkpoint").payload
    previous = checkpoint.latest(store, name)
    counts, paths = _compare(store, previous.root if previous else None, root)
    files, size = _grown(store, begun["root"], root)
    payload: dict[str, Any] = {
        "root": root,
        "previous": previous.hash if previous else None,
        "name": name,
        "createdAt": checkpoint._now(previous),
        "message": message,
        "stats": {
            "files": begun["stats"]["files"] + files,
            "bytes": begun["stats"]["bytes"] + size,
            **counts,
        },
        "changed_files": paths,
    }
    node = batch.put_node("checkpoint", payload)
    id = checkpoint._id(payload["createdAt"], node.hash)
    head = Head(node.hash, checkpoint._record(payload))
    batch.swap(f"{checkpoint.HEADS}{name}/{id}", None, head)
    return Checkpoint(name, id, node.hash, root, payload["createdAt"], message)


def _compare(store: Store, old: str | None, new: str) -> tuple[dict[str, int], list[str]]:
    """What changed: how much, and the first paths."""
    counts = dict.fromkeys(("added", "modified", "deleted"), 0)
    paths: list[str] = []
    for change in tree.shown(store, tree.diff(store, old, new)):
        counts[checkpoint.KEYS[change.letter]] += 1
        if len(paths) < checkpoint.MAX_CHANGED:
            paths.append(change.path.decode("utf-8", "replace"))
    return counts, paths


def _grown(store: Store, old: str, new: str) -> tuple[int, int]:
    """By how many files and bytes a tree grew."""
    files = size = 0
    for change in tree.diff(store, old, new):
        for entry, sign in ((change.old, -1), (change.new, 1)):
            if isinstance(entry, tree.File):
                files += sign
                size += sign * entry.digest.size_bytes
    return files, size
