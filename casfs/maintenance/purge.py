"""Purges one blob: deletes its content for good, whatever refers to it.

For what must not stay: a secret, a personal record. All that refers to the blob stays as it is,
its hashes too; only reading that content fails, with Purged, which fsck does not call a fault.
Putting the same bytes again brings it back. Dropped with it are derived copies: images of trees,
and what the stat cache says of its files. Nodes are not purged: what they refer to would be lost.
"""

from __future__ import annotations

from casfs.backend.capabilities import Purgeable
from casfs.backend.protocols import Total, targets
from casfs.errors import NotFound, Refused
from casfs.native import images
from casfs.referrers import Referrers
from casfs.store import Store
from casfs.trees.snapshot import stat_cache


def users(store: Store, hash: str) -> tuple[list[str], list[str]]:
    """Returns what leads to a blob: the nodes that refer to it, and the heads that reach it."""
    with Referrers(store) as index:
        nodes, reaching = index.of(hash), {hash, *index.walk_up(hash)}
    heads = (name for name, head in store.heads.list() if not reaching.isdisjoint(targets(head)))
    return nodes, list(heads)


def check(store: Store, hash: str) -> int:
    """Returns the size of a blob that can be purged. Raises NotFound, Refused."""
    if not isinstance(store.blobs, Purgeable):
        raise Refused("this kind of store cannot purge a blob; remove what has it, and run gc")
    info = store.blobs.info([hash]).get(hash)
    if info is None:
        raise NotFound(f"no blob {hash} in this store")
    if info.type is not None:
        type = store.registry.name(info.type)
        raise Refused(f"{hash} is a {type}, and only plain blobs can be purged; remove what has it")
    if info.purged:
        raise Refused(f"{hash} was purged before")
    if info.size == 0:
        raise Refused(f"{hash} is the empty blob: there is nothing to purge")
    return info.size


def purge(store: Store, hash: str) -> bool:
    """Purges a blob; returns False where copies may remain in the database's log for now. Raises
    NotFound, Refused."""
    check(store, hash)
    assert isinstance(store.blobs, Purgeable)
    stat_cache.forget(store, hash)
    done = store.blobs.purge(hash)
    images.evict(store, lambda total: True, Total())
    return done
