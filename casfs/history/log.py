"""The log of a path: the versions that changed it, or anything below it, newest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from casfs.digest import TreeHash
from casfs.history.versions import Chain, Place, Version
from casfs.system import interruption
from casfs.trees import tree
from casfs.trees.tree import Change


@dataclass(frozen=True, slots=True)
class Changed:
    """A version, what it changed at the path, and the tree before it; None before the first."""

    version: Version
    change: Change
    before: TreeHash | None


def log(place: Place, path: bytes) -> Iterator[Changed]:
    """Yields the versions. After a step come those of the threads that it called, which changed the
    path in its place. Equal trees are not looked into."""
    yield from _log(place, b"/".join(tree.split_path(path)))


def _log(place: Place | None, path: bytes, within: Chain | None = None) -> Iterator[Changed]:
    while place is not None and within in (None, place.chain):
        interruption.check()
        older = place.older()
        if within and (older is None or older.chain is not within):
            return  # what the calling step gave it
        if older is None or older.version.root != place.version.root:
            new, old = place.entry(path), older.entry(path) if older else None
            if new != old:
                before = older.version.root if older else None
                yield Changed(place.version, Change(path, old, new), before)
        for called in place.called():
            yield from _log(called, path, called.chain)
        place = older
