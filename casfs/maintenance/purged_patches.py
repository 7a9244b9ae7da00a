"""The diffs of steps that show a file which is purged whole: each gets a substitute without it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain

from casfs.digest import TreeHash
from casfs.errors import CasfsError
from casfs.store import tombstones
from casfs.store.nodes.directory import Entry, File
from casfs.store.referrers import Referrers
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from casfs.system.clock import now_ms
from casfs.threads.threads import StepNode
from casfs.trees import tree
from casfs.trees.diff import renames, unified_diff


def tombstones_of(store: Store, hashes: Collection[str], why: str) -> list[Tombstone]:
    """Stores the substitutes of the diffs that show one of these blobs, and returns the tombstones,
    which are to be added with those of the blobs."""
    tombstones_by_hash: dict[str, Tombstone] = {}
    for step in _steps_above(store, hashes):
        patch = step.payload["changes"]
        if patch is None:
            continue
        try:
            data = store.get(patch)
            left = unified_diff.without(data, _changes(store, step, hashes))
        except CasfsError:  # fsck's business, or purged
            continue
        if left != data:
            # Of a diff from which a text was purged, the substitute shows the file.
            before = tombstones.get(store, patch)
            shown = patch if before is None else before.substitute or patch
            size = store.blobs.info([shown])[shown].size
            tombstones_by_hash[shown] = Tombstone(
                shown, size, purged_at=now_ms(), why=why, substitute=store.put(left).hash
            )
    return list(tombstones_by_hash.values())


def _steps_above(store: Store, hashes: Collection[str]) -> Iterator[StepNode]:
    """Yields the steps that come after the first that has one of the blobs."""
    with Referrers(store) as index:
        above = set(chain.from_iterable(map(index.walker(), hashes)))
    for hash, info in store.blobs.info(sorted(above)).items():
        if info.type is not None and store.registry.name(info.type) == "thread-step":
            yield store.node(hash, "thread-step")


def _changes(store: Store, step: StepNode, hashes: Collection[str]) -> list[tree.Change]:
    """Returns the changes of a step that show one of the blobs."""
    previous = step.payload["previous"]
    start = step.payload["start"]
    before: TreeHash | None = store.node(previous or start).payload["workspace"]
    changes = tree.changes(store, before, step.payload["workspace"])
    detected_changes = list(renames.detect(store, list(changes)))
    return [
        change
        for change in detected_changes
        if _is_of(change.old, hashes) or _is_of(change.new, hashes)
    ]


def _is_of(entry: Entry | None, hashes: Collection[str]) -> bool:
    return isinstance(entry, File) and entry.digest.hash in hashes
