"""A checkpoint from the one before it and a new root, without looking at the whole tree: what
the tree holds is counted from what the last one held and from what changed.
"""

from __future__ import annotations

from casfs.checkpoints import checkpoint
from casfs.checkpoints.checkpoint import Checkpoint, Content
from casfs.store import Store
from casfs.trees import tree
from casfs.write_batch import Batch


def put_checkpoint(
    store: Store, batch: Batch, name: str, last: str, root: str, message: str
) -> Checkpoint:
    """Record `root`, whose nodes are stored, under `name`; the caller commits the batch.

    `last`: the checkpoint node that the work began from, not always the newest of the name.
    """
    begun = store.node(last, "checkpoint").payload
    previous = checkpoint.latest(store, name)
    counts, paths = checkpoint.compare(store, previous.root if previous else None, root)
    files, size = _grown(store, begun["root"], root)
    stats = {
        "files": begun["stats"]["files"] + files,
        "bytes": begun["stats"]["bytes"] + size,
        **counts,
    }
    return checkpoint.put(batch, name, previous, Content(root, message, stats, paths))


def _grown(store: Store, old: str, new: str) -> tuple[int, int]:
    """By how many files and bytes a tree grew."""
    files = size = 0
    for change in tree.diff(store, old, new):
        for entry, sign in ((change.old, -1), (change.new, 1)):
            if isinstance(entry, tree.File):
                files += sign
                size += sign * entry.digest.size_bytes
    return files, size
