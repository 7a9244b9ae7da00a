"""Local changes: what a restore would overwrite that is in no tree.

`current` is the tree of what a directory holds (`casfs.trees.snapshot.tracked`), `olds` are the
trees that it may have been restored to, `new` is the one to come; None is an empty tree. An entry
that is as in none of them was changed locally. What is missing is no local change: nothing is
lost when it comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from casfs.digest import TreeHash
from casfs.store.nodes.directory import Subdirectory
from casfs.store.store import Store
from casfs.trees import tree


def local_changes(
    store: Store, current: TreeHash, roots: Sequence[TreeHash | None], above: bytes = b""
) -> Iterator[bytes]:
    """Yields the paths that are as in none of `roots`: the trees `olds` and `new`; a directory
    before what is in it."""
    if current in roots:
        return
    trees = [tree.load(store, root) for root in roots if root is not None]
    for name, entry in tree.load(store, current).items():
        theirs = [entries.get(name) for entries in trees]
        if not any(tree.is_same(store, entry, their_entry) for their_entry in theirs):
            yield above + name
        if isinstance(entry, Subdirectory):
            below = [tree.subtree(their_entry) for their_entry in theirs]
            yield from local_changes(
                store, entry.digest.hash, roots=below, above=above + name + b"/"
            )


def replaced_directories(
    store: Store, current: TreeHash, new: TreeHash, above: bytes = b""
) -> Iterator[tuple[bytes, TreeHash]]:
    """Yields the directories of `current`, path and tree, in whose place `new` has no directory."""
    if current == new:
        return
    after = tree.load(store, new)
    for name, entry in tree.load(store, current).items():
        to = after.get(name)
        if to is None or not isinstance(entry, Subdirectory):
            continue
        if isinstance(to, Subdirectory):
            below = (entry.digest.hash, to.digest.hash)
            yield from replaced_directories(store, *below, above + name + b"/")
        else:
            yield above + name, entry.digest.hash
