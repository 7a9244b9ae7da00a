"""Packs what nothing has used lately into cold packs.

A plain blob is cold where neither it nor a node that refers to it was put for some time, and no
open workspace or native mount needs it, nor an image or a head that was used lately. Packing takes
gc's lock and marks as gc does; writers go on meanwhile, and what they touch stays. Each pack is
durable when the next is begun, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import time

from casfs.backend.capabilities import Tiered
from casfs.backend.derived import last_use, start_gc
from casfs.backend.protocols import Total, targets
from casfs.errors import Refused
from casfs.maintenance.gc import Marker, Progress
from casfs.native import images, mounted_trees
from casfs.store.store import Store
from casfs.workspaces import registry


def pack(
    store: Store,
    *,
    older_than: int,
    dry_run: bool = False,
    progress: Progress = lambda blobs, bytes: None,
) -> Total:
    """Moves the blobs that were not used for `older_than` seconds to cold packs. Returns what was
    moved, or would be; `files`: the packs. Raises Conflict during a gc or another such run,
    Corrupt where the store is damaged, Refused."""
    backend = store.backend
    if not isinstance(backend, Tiered):
        raise Refused("this kind of store has no cold packs; a shared one packs by itself")
    before = int(time.time()) - older_than
    with start_gc(backend) as collection:
        marker = Marker(store, collection, lambda blobs, bytes: None)

        def placed(blobs: int, bytes: int) -> None:
            marker.follow(list(store.blobs.info(images.roots(store, before))))  # new ones as well
            marker.follow(mounted_trees.blobs(store))
            if blobs:
                progress(blobs, bytes)

        placed(0, 0)
        for name, head in store.heads.list():
            if name.startswith(registry.HEADS) or last_use(store.heads, name) >= before * 1000:
                marker.follow(targets(head))
        cold = collection.unmarked_files(before)
        if dry_run:
            sizes = [size for _, size in cold]
            return Total(len(sizes), sum(sizes))
        done = backend.tiers.move(cold, "cold", before=before, progress=placed)
        backend.tiers.tidy()
    return done
