"""Garbage collection: mark what the roots reach, sweep the rest after a grace period.

Roots are all heads: threads active or ended, checkpoints, registered workflows and schemas,
open workspaces, steps in flight; every hash in a head's record counts as well. A blob that
was touched within the grace period is a root too, since its head may be yet to come.

*Cache* heads (action results, plugin trees, checkpoints past a retention that the user set)
are roots like the others until a limit is given: then the least recently used of them go
first, until what remains fits. Losing one is a miss later, never a loss. Images of trees keep
nothing: they go with their tree, and where a limit leaves no room for them.

A tree that is mounted to be looked at has a head too; where a crash or a reboot has ended the
mount, a run drops that head first.

Nothing here deletes by itself; `Collection.sweep` does, and is safe against writers that
work at the same time. Damage stops a run before it deletes anything: what a broken node
refers to cannot be known, nor whether something that is missing was a node.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from casfs import graph
from casfs.backend.capabilities import GcRun
from casfs.backend.derived import find_missing, last_use, start_gc, total_stored
from casfs.backend.protocols import Head, Swap, Total, targets
from casfs.checkpoints import checkpoint
from casfs.errors import CasfsError, Conflict, Corrupt, Invalid, NotFound
from casfs.native import images
from casfs.store import Store
from casfs.workspaces import lifecycle

GRACE = 24 * 3600  # seconds
CACHE = ("actions/", "plugins/")
PORTION = 256  # nodes read between two looks at the marks
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What may remain: bytes of content, files of their own. None is no limit."""

    max_bytes: int | None = None
    max_files: int | None = None

    def exceeded(self, total: Total) -> bool:
        too_big = self.max_bytes is not None and total.bytes > self.max_bytes
        too_many = self.max_files is not None and total.files > self.max_files
        return too_big or too_many


NO_LIMITS = Limits()


@dataclass(slots=True)
class Result:
    """`kept`, `freed`: content; `evicted`: the cache heads and images that had to go."""

    kept: Total
    freed: Total = field(default_factory=Total)
    evicted: list[str] = field(default_factory=list)


def collect(
    store: Store,
    *,
    grace: int = GRACE,
    limits: Limits = NO_LIMITS,
    keep: int = 0,
    dry_run: bool = False,
    progress: Progress = lambda done: None,
) -> Result:
    """Run once. `keep`: newest checkpoints of a name that are no cache (0: all of them).

    Raises Conflict while another run is under way, Corrupt where the store is damaged.
    """
    if grace < 0 or keep < 0:
        raise Invalid("a grace period and a number of checkpoints cannot be negative")
    before = int(time.time()) - grace
    if not dry_run:
        lifecycle.sweep(store)
    with start_gc(store.backend) as collection:
        marker = _Marker(store, collection, progress)
        files = total_stored(store.blobs).files
        evicted = _choose(store, collection, marker, before, limits, keep)
        result = Result(collection.marked, evicted=[name for name, _ in evicted])
        if not dry_run:
            result.evicted = _drop(store, evicted, marker)
        trees, gone = images.roots(store), set()
        for hash, info in collection.sweep(before, marker.follow, dry_run=dry_run):
            result.freed.blobs += 1
            result.freed.bytes += info.size
            if hash in trees:
                gone.add(hash)
        result.freed.files = max(0, files - collection.marked.files)
        result.evicted += images.trim(
            store, limits.exceeded, collection.marked, gone, dry_run=dry_run
        )
    return result


def why(store: Store, hash: str) -> list[str] | None:
    """How a root reaches `hash`: the head's name, then hash by hash. None: nothing does."""
    seen: set[str] = set()
    for name, head in store.heads.list():
        for root in targets(head):
            found = _path(store, root, hash, seen)
            if found is not None:
                return [name, *found]
    return None


class _Marker:
    def __init__(self, store: Store, collection: GcRun, progress: Progress) -> None:
        self._store = store
        self._collection = collection
        self._progress = progress

    def follow(self, hashes: list[str]) -> None:
        """Mark blobs and all that they reach. Raises Corrupt where something is missing or a
        node cannot be read."""
        stack = self._mark(set(hashes))
        while stack:
            portion, stack = stack[-PORTION:], stack[:-PORTION]
            refs: set[str] = set()
            for hash in portion:
                refs.update(self._refs(hash))
            stack += self._mark(refs)
            self._progress(self._collection.marked.blobs)

    def _mark(self, hashes: set[str]) -> list[str]:
        if absent := find_missing(self._store.blobs, hashes):
            raise _stopped(f"{min(absent)} is missing and still needed")
        return self._collection.mark(hashes)

    def _refs(self, hash: str) -> list[str]:
        try:
            return graph.node_refs(self._store, hash)
        except CasfsError as error:
            raise _stopped(str(error)) from None


def _stopped(why: str) -> Corrupt:
    return Corrupt(f"nothing was collected: {why}; run `casfs fsck` first")


def _choose(
    store: Store,
    collection: GcRun,
    marker: _Marker,
    before: int,
    limits: Limits,
    keep: int,
) -> list[tuple[str, Head]]:
    """Mark what stays; returns the cache heads that have to go."""
    cache = _cache(store, keep)
    names = {name for name, _ in cache}
    _mark_roots(store, collection, marker, before, names)
    for place, (_, head) in enumerate(cache):
        marker.follow(targets(head))
        if limits.exceeded(collection.marked):
            collection.reset()  # this one was too much, and so is all that is older
            _mark_roots(store, collection, marker, before, names)
            for _, fitting in cache[:place]:
                marker.follow(targets(fitting))
            return cache[place:]
    return []


def _mark_roots(
    store: Store, collection: GcRun, marker: _Marker, before: int, cache: set[str]
) -> None:
    """Mark what the heads reach that are no cache, and what is young."""
    for portion in collection.recent(before):
        marker.follow(portion)
    for name, head in store.heads.list():
        if name not in cache:
            marker.follow(targets(head))


def _cache(store: Store, keep: int) -> list[tuple[str, Head]]:
    """The heads that may be evicted, the most recently used first."""
    found = [(name, head) for prefix in CACHE for name, head in store.heads.list(prefix)]
    if keep:
        for name in checkpoint.names(store):
            for old in checkpoint.listing(store, name)[:-keep]:
                key = f"{checkpoint.HEADS}{name}/{old.id}"
                head = store.heads.get(key)
                if head is not None:
                    found.append((key, head))
    return sorted(found, key=lambda one: _used_at(store, *one), reverse=True)


def _used_at(store: Store, name: str, head: Head) -> int:
    """When a cache head was made or last used, in ms since 1970 UTC."""
    made = head.record.get("usedAt") or head.record.get("createdAt") or 0
    return max(int(made), last_use(store.heads, name))


def _drop(store: Store, heads: list[tuple[str, Head]], marker: _Marker) -> list[str]:
    """Drop cache heads; one that is being used just now stays, with what it reaches."""
    dropped = []
    for name, head in heads:
        try:
            store.backend.publish([], [Swap(name, head, None)])
            dropped.append(name)
        except Conflict:
            now = store.heads.get(name)
            marker.follow([] if now is None else targets(now))
    return dropped


def _path(store: Store, root: str, wanted: str, seen: set[str]) -> list[str] | None:
    """The shortest way from `root` to `wanted`; what was seen before leads nowhere."""
    came_from: dict[str, str] = {}
    level = [root]
    while level:
        below = []
        for hash in level:
            if hash == wanted:
                return _way_back(came_from, hash)
            if hash not in seen:
                seen.add(hash)
                for ref in _known_refs(store, hash):
                    came_from.setdefault(ref, hash)
                    below.append(ref)
        level = below
    return None


def _way_back(came_from: dict[str, str], hash: str) -> list[str]:
    way = [hash]
    while (hash := came_from.get(hash, "")) and hash not in way:
        way.append(hash)
    return way[::-1]


def _known_refs(store: Store, hash: str) -> list[str]:
    try:
        return graph.refs(store, hash)
    except NotFound:
        return []
