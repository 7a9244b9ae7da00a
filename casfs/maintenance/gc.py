"""Garbage collection: mark what the roots reach, sweep the rest after a grace period.

Roots are all heads: active and ended threads, checkpoints, registered workflows and schemas,
open workspaces, running steps; every hash in a head's record is a root as well. So is a blob
that was touched within the grace period, since its head may not be written yet.

*Cache* heads (action results, plugin trees, checkpoints past a retention that the user set)
are roots like the others until a limit is given: then the least recently used are evicted
until the rest fits. Eviction costs a recomputation, never data. Images of trees are not roots:
they are deleted with their tree, or to meet a limit. What a person removed (`casfs.store.removals`)
is a root for the grace period; then its heads are deleted.

The trees of tool calls in sessions of outside agents are kept like all else until a limit is given:
then the oldest of each directory go (`casfs.maintenance.turn_trees`).

A tree mount has a head too; where a crash or a reboot has ended the mount, a run drops that
head first. Trees that are natively mounted without a head are roots as long as any process sees
them.

Only the backend's `GcRun.sweep` deletes, and it is safe against concurrent writers. Damage
stops a run before it deletes anything: the refs of a broken node are unknown, as is whether
a missing blob was a node.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from casfs.backend.capabilities import Compressing, GcRun, Tiered
from casfs.backend.derived import find_missing, last_use, start_gc, total_stored
from casfs.backend.protocols import DamagedHead, Head, HeadName, Swap, Total, targets
from casfs.checkpoints import checkpoint
from casfs.errors import CasfsError, Conflict, Corrupt, Invalid
from casfs.history import path_index
from casfs.maintenance import turn_trees
from casfs.native import images, mounted_trees
from casfs.store import graph, local_trees, referrers, removals, tombstones
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.system import interruption
from casfs.workspaces import lifecycle

GRACE_S = 24 * 3600
CACHE_PREFIXES = ("actions/", "plugins/")  # of heads that may be evicted
MARK_BATCH_NODES = 256  # nodes read between two updates of the marks
Progress = Callable[[int, int], None]  # blobs and bytes marked so far


@dataclass(frozen=True, slots=True)
class Limits:
    """The store's maximum bytes of content and number of object files, and the bytes of the trees
    of tool calls in each directory with sessions of outside agents; None: no limit."""

    max_bytes: int | None = None
    max_files: int | None = None
    max_turn_trees: int | None = None

    def exceeded(self, total: Total) -> bool:
        too_big = self.max_bytes is not None and total.bytes > self.max_bytes
        too_many = self.max_files is not None and total.files > self.max_files
        return too_big or too_many


NO_LIMITS = Limits()


@dataclass(slots=True)
class Result:
    """`kept`, `freed`: content; `evicted`: names of cache heads and images; `removals`: number of
    those that can be undone no more; `turn_trees`: number of trees of tool calls that are freed."""

    kept: Total
    freed: Total = field(default_factory=Total)
    evicted: list[str] = field(default_factory=list)
    removals: int = 0
    turn_trees: int = 0


def collect(
    store: Store,
    *,
    grace: int = GRACE_S,
    limits: Limits = NO_LIMITS,
    keep: int = 0,
    keeps_removed: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda blobs, bytes: None,
) -> Result:
    """Runs once. `grace`: seconds; `keep`: checkpoints to keep per name (0: all); `keeps_removed`:
    what a person removed stays, however long ago.

    Raises Conflict during another run, Corrupt where the store is damaged, Invalid.
    """
    if grace < 0 or keep < 0:
        raise Invalid("a grace period and a number of checkpoints cannot be negative")
    before = int(time.time()) - grace
    if not dry_run:
        lifecycle.sweep(store)
        tombstones.complete(store)
    with start_gc(store.backend) as collection:
        marker = Marker(store, collection, progress, limits.max_turn_trees)
        marker.follow(mounted_trees.blobs(store))
        files = total_stored(store.blobs).files
        final = [
            removal
            for removal in removals.listing(store)
            if removal.removed_at < before * 1000 and not keeps_removed
        ]
        dropped = [head for removal in final for head in removals.kept_heads(removal)]
        evicted = _mark_kept(
            store,
            collection,
            marker=marker,
            before=before,
            limits=limits,
            keep=keep,
            dropped=dropped,
        )
        result = Result(collection.marked, removals=len(final))
        result.evicted = [name for name, _ in evicted]
        if not dry_run:
            _evict(store, dropped, marker)
            result.evicted = _evict(store, evicted, marker)
        trees = images.roots(store)
        gone = set()
        for hash, info in collection.sweep(before, marker.follow, dry_run=dry_run):
            result.freed.blobs += 1
            result.freed.bytes += info.size
            result.turn_trees += hash in marker.old_turn_trees
            if hash in trees:
                gone.add(hash)
        result.freed.files = max(0, files - collection.marked.files)
        result.evicted += images.evict(
            store, limits.exceeded, kept=collection.marked, gone=gone, dry_run=dry_run
        )
        if not dry_run and isinstance(store.backend, Tiered):
            store.backend.tiers.tidy()  # no image shows a range that it frees
    if not dry_run:
        _drop_local_trees(store)
        referrers.prune(store)
        path_index.prune(store)
        _compress(store)
    return result


def _drop_local_trees(store: Store) -> None:
    """Deletes the heads of local trees whose node is gone."""
    heads = dict(store.heads.list(local_trees.HEADS))
    nodes = {local_trees.node_of(name): name for name in heads}
    for node in find_missing(store.blobs, nodes):
        with suppress(Conflict):  # it is put anew
            store.backend.publish([], [Swap(nodes[node], heads[nodes[node]], new=None)])


def _compress(store: Store) -> None:
    """Compresses the nodes anew where a type has grown enough for a new dictionary."""
    if isinstance(store.backend, Compressing):
        recompression = store.backend.recompression()
        recompression.retire(lambda dictionary: False)  # which a killed purge has left
        if recompression.train():
            recompression.recompress()


def why(store: Store, hash: str) -> list[str] | None:
    """Returns a shortest path from a root to `hash`: the head's name, then hashes; None where no
    root reaches it."""
    roots: dict[str, HeadName] = {}
    owners = local_trees.owners(store)
    for name, head in store.heads.list():
        for target in () if name.startswith(local_trees.HEADS) else targets(head):
            roots.setdefault(target, name)
    child: dict[str, str] = {hash: ""}
    level = [hash]
    with referrers.Referrers(store) as index:
        while level:
            interruption.check()
            above: list[str] = []
            for blob_hash in level:
                if blob_hash in roots:
                    return [roots[blob_hash], *_path_down(child, blob_hash)]
                parents = [*index.of(blob_hash), *owners.get(blob_hash, ())]
                above += [parent for parent in parents if parent not in child]
                child.update((parent, blob_hash) for parent in above if parent not in child)
            level = list(dict.fromkeys(above))
    return None


def _path_down(child: dict[str, str], hash: str) -> list[str]:
    path = []
    while hash:
        path.append(hash)
        hash = child[hash]
    return path


class Marker:
    """`old_turn_trees`: the roots of trees of tool calls that are over the limit, which other nodes
    may have as well."""

    def __init__(
        self,
        store: Store,
        collection: GcRun,
        progress: Progress,
        max_turn_trees: int | None = None,
    ) -> None:
        self._store = store
        self._collection = collection
        self._progress = progress
        self._max_turn_trees = max_turn_trees
        # What comes during the run is not among them, and followed as any other node.
        self._calls = [] if max_turn_trees is None else turn_trees.by_directory(store)
        self._weakly_held = {hash for calls in self._calls for call in calls for hash in call.turns}
        self.old_turn_trees: set[str] = set()

    def follow_turn_trees(self) -> None:
        """Marks the trees of the newest calls in each directory, up to the limit. Counted is what
        nothing else has marked before."""
        self.old_turn_trees.clear()
        for calls in self._calls:
            before = self._collection.marked.bytes
            for call in calls:
                if self._collection.marked.bytes - before > (self._max_turn_trees or 0):
                    self.old_turn_trees.update(call.roots(self._store))
                    continue
                for hash in call.turns:
                    self.follow(graph.node_refs(self._store, hash, with_local=True))

    def follow(self, hashes: list[str]) -> None:
        """Marks blobs and all that they reach. Raises Corrupt for a missing blob or an
        unreadable node."""
        stack = self._mark(set(hashes))
        while stack:
            interruption.check()
            batch = stack[-MARK_BATCH_NODES:]
            stack = stack[:-MARK_BATCH_NODES]
            refs: set[str] = set()
            for hash in batch:
                refs.update(self._refs(hash))
            stack += self._mark(refs)
            marked = self._collection.marked
            self._progress(marked.blobs, marked.bytes)

    def _mark(self, hashes: set[str]) -> list[str]:
        if absent := find_missing(self._store.blobs, hashes):
            raise _stopped(f"{min(absent)} is missing and still needed")
        return self._collection.mark(hashes)

    def _refs(self, hash: str) -> list[str]:
        try:
            is_turn = hash in self._weakly_held
            return graph.node_refs(self._store, hash, with_local=not is_turn, with_weak=not is_turn)
        except CasfsError as error:
            raise _stopped(str(error)) from None


def _stopped(why: str) -> Corrupt:
    return Corrupt(f"nothing was collected or packed: {why}; run `casfs fsck` first")


def _mark_kept(
    store: Store,
    collection: GcRun,
    marker: Marker,
    before: int,
    limits: Limits,
    keep: int,
    dropped: list[tuple[HeadName, Head]],
) -> list[tuple[HeadName, Head]]:
    """Marks the blobs to keep, but for the heads `dropped`; returns the cache heads to evict."""
    cache = _cache(store, keep)
    names = {name for name, _ in [*cache, *dropped]}
    _mark_roots(store, collection, marker=marker, before=before, cache=names)
    for index, (_, head) in enumerate(cache):
        marker.follow(targets(head))
        if limits.exceeded(collection.marked):
            collection.reset()  # this head exceeds the limit, so it and all older ones are evicted
            _mark_roots(store, collection, marker=marker, before=before, cache=names)
            for _, fitting in cache[:index]:
                marker.follow(targets(fitting))
            return cache[index:]
    return []


def _mark_roots(
    store: Store, collection: GcRun, marker: Marker, before: int, cache: set[HeadName]
) -> None:
    """Marks blobs in the grace period and all that heads other than cache reach."""
    for batch in collection.recent(before):
        marker.follow(batch)
    for name, head in store.heads.list():
        if isinstance(head, DamagedHead):
            raise _stopped(f"the head {name!r} is damaged")
        # A local tree lives as long as its node, through which it is marked (`graph.node_refs`).
        if name not in cache and not name.startswith(local_trees.HEADS):
            marker.follow(targets(head))
    marker.follow_turn_trees()


def _cache(store: Store, keep: int) -> list[tuple[HeadName, Head]]:
    """Returns the heads that may be evicted, the most recently used first."""
    heads = [(name, head) for prefix in CACHE_PREFIXES for name, head in store.heads.list(prefix)]
    if keep:
        for name in checkpoint.names(store):
            prefix = checkpoint.head_name(name, "")
            heads += list(head_kinds.sound(store.heads, prefix))[:-keep]
    return sorted(heads, key=lambda named_head: _used_at(store, *named_head), reverse=True)


def _used_at(store: Store, name: HeadName, head: Head) -> int:
    """Returns when a cache head was made or last used, in ms since 1970 UTC."""
    created_at = head.record.get("createdAt")
    return max(created_at if isinstance(created_at, int) else 0, last_use(store.heads, name))


def _evict(store: Store, heads: list[tuple[HeadName, Head]], marker: Marker) -> list[str]:
    """Deletes cache heads; one that has moved meanwhile is kept, with all that it reaches."""
    dropped: list[str] = []
    for name, head in heads:
        try:
            store.backend.publish([], [Swap(name, head, new=None)])
            dropped.append(name)
        except Conflict:
            current = store.heads.get(name)
            marker.follow([] if current is None else targets(current))
    return dropped
