"""Purges contents: deletes their bytes for good, whatever refers to them.

For what must not stay: a secret, a personal record. All that refers to a blob stays as it is, its
hashes too; readers get its substitute, or Purged where there is none, which fsck does not call a
fault. Dropped with it are derived copies: images of trees, and what the stat cache says of its
files. Its tombstone (`casfs.store.tombstones`) refuses the same bytes from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from casfs.backend.protocols import Total, targets
from casfs.backend.sqlite_connection import remove_derived
from casfs.errors import NotFound, Refused
from casfs.maintenance import purged_patches
from casfs.native import images
from casfs.store import local_trees, tombstones
from casfs.store.referrers import Referrers
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from casfs.system.clock import now_ms
from casfs.trees.snapshot import stat_cache

SEARCH_INDEX = "search.db"


def users(store: Store, hash: str) -> tuple[list[str], list[str]]:
    """Returns what leads to a blob: the nodes that refer to it, and the heads that reach it."""
    with Referrers(store) as index:
        nodes = index.of(hash)
        reaching = {hash, *index.walk_up(hash)}
    heads = [name for name, head in store.heads.list() if not reaching.isdisjoint(targets(head))]
    return nodes, [name for name in heads if not name.startswith(local_trees.HEADS)]


def check(store: Store, hash: str) -> int:
    """Returns the size of a blob that can be purged whole. Raises NotFound, Refused."""
    tombstones.purgeable(store)
    info = store.blobs.info([hash]).get(hash)
    if info is None:
        raise NotFound(f"no blob {hash} in this store")
    if info.type is not None:
        type = store.registry.name(info.type)
        raise Refused(f"{hash} is a {type}: only a part of its text can be purged, by --text")
    if info.purged:
        raise Refused(f"{hash} was purged before")
    if info.size == 0:
        raise Refused(f"{hash} is the empty blob: there is nothing to purge")
    return info.size


def purge(store: Store, hash: str, why: str = "") -> bool:
    """Purges a blob whole. Returns as `purge_all`. Raises NotFound, Refused."""
    size = check(store, hash)
    return purge_whole(store, [Tombstone(hash, size, purged_at=now_ms(), why=why)], why)


def purge_whole(store: Store, purged: Sequence[Tombstone], why: str) -> bool:
    """Purges blobs whole, and what the diffs of steps show of them. Returns as `purge_all`."""
    diffs = purged_patches.tombstones_of(store, {tombstone.hash for tombstone in purged}, why)
    return purge_all(store, [*purged, *diffs])


def purge_all(store: Store, purged: Collection[Tombstone]) -> bool:
    """Purges blobs and nodes, whose substitutes are stored; returns False where copies may remain
    in the database's log for now. Raises as `tombstones.add`."""
    for tombstone in purged:
        stat_cache.forget(store, tombstone.hash)
    images.evict(store, lambda total: True, Total())  # before: a kill may come
    done = tombstones.add(store, purged)
    images.evict(store, lambda total: True, Total())  # one that was made meanwhile
    remove_derived(store.root / SEARCH_INDEX)  # it has the words of outputs
    return done
